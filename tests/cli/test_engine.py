"""`saywhy export` and `--engine onnx`: a model as ONNX captions as before; mistakes are one line."""

from __future__ import annotations

from pathlib import Path

import pytest

EXPORT = ("export", "--out")


def test_an_exported_model_gives_the_same_lines(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    folder = tmp_path / "onnx"
    result = run(*EXPORT, folder, "--model", model)
    assert (result.code, result.err) == (0, "")
    assert "encoder.onnx" in result.out
    expected = run("caption", *photos, "--model", model).out
    assert run("caption", *photos, "--model", folder, "--engine", "onnx").out == expected


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--engine", "onix"), "unknown engine 'onix': did you mean \"onnx\"?"),
        (("--engine", "onnx", "--risk"), "--engine onnx has no --risk"),
        (("--engine", "onnx", "--regions", "boxes"), "--engine onnx has no --regions"),
        (("--engine", "onnx", "--device", "cuda"), "--engine onnx has no --device cuda"),
        (("--engine", "onnx", "--beam", "5000"), "beam = 5000 is out of range"),
    ],
)
def test_what_the_engine_lacks_is_refused_before_a_model_is_loaded(run, photos: list[Path], options, message) -> None:
    assert message in run("caption", photos[0], *options).error


def test_a_folder_without_an_export_is_one_line(run, photos: list[Path], tmp_path: Path) -> None:
    assert "not a saywhy model" in run("caption", photos[0], "--engine", "onnx", "--model", tmp_path).error


@pytest.mark.usefixtures("no_model")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--precision", "fp8"), "unknown --precision 'fp8'"),
        (("--calibrate", "photos"), "--calibrate is for --precision int8"),
        (("--precision", "int8", "--calibrate", "none"), "none: no such file or folder"),
    ],
)
def test_mistakes_of_export_are_one_line(run, tmp_path: Path, options: tuple, message: str) -> None:
    assert message in run(*EXPORT, tmp_path / "onnx", *options).error
    assert not (tmp_path / "onnx").exists()


@pytest.mark.usefixtures("no_model")
def test_export_overwrites_no_other_files(run, photos: list[Path]) -> None:
    assert "folder of other files" in run(*EXPORT, photos[0].parent).error
    assert "is a file" in run(*EXPORT, photos[0]).error


def test_a_full_disk_is_not_a_fault_of_the_captioner(run, model: Path, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("onnxscript", reason="needs the extra onnx")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("saywhy.onnx_engine.graph_tracer.fold_constants", full)
    error = run(*EXPORT, tmp_path / "onnx", "--model", model).error
    assert error.startswith(f"saywhy: {tmp_path / 'onnx'}: No space left on device")
    assert not list(tmp_path.iterdir())
