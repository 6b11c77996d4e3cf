"""The command serve: its mistakes, in one line each; the server itself is tested in tests/web."""

from __future__ import annotations

import builtins
import socket
from typing import Any

import pytest


def test_a_missing_package_is_named(run, monkeypatch, no_model):
    real = builtins.__import__

    def without(name: str, *arguments: Any) -> Any:
        if name == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return real(name, *arguments)

    monkeypatch.setattr(builtins, "__import__", without)
    assert run("serve").error == "saywhy: saywhy serve needs uvicorn: pip install 'saywhy[web]'"


def test_a_port_in_use_is_noticed_before_a_model_is_loaded(run, no_model):
    pytest.importorskip("fastapi", reason="saywhy serve needs pip install 'saywhy[web]'")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1, port {port}" in run("serve", "--port", port).error


def test_options_that_no_server_can_have_are_refused_before_a_model_is_loaded(run, no_model):
    pytest.importorskip("fastapi", reason="saywhy serve needs pip install 'saywhy[web]'")
    assert "cannot listen on" in run("serve", "--port", 0, "--host", "é" * 100).error
    assert "'--threads'" in run("serve", "--threads", 10**12).error


def test_an_unknown_model_is_refused(run, tmp_path):
    pytest.importorskip("fastapi", reason="saywhy serve needs pip install 'saywhy[web]'")
    assert "nothing" in run("serve", "--port", 0, "--model", tmp_path / "nothing").error


def test_two_models_of_one_name_are_refused(run, model):
    pytest.importorskip("fastapi", reason="saywhy serve needs pip install 'saywhy[web]'")
    result = run("serve", "--port", 0, "--model", model, "--model", model)
    assert "two models are called 'tiny'" in result.error
