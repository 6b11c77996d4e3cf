"""A server with small models of random weights, in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.inference.model import Model, load

pytest.importorskip("fastapi", reason="saywhy serve needs pip install 'saywhy[web]'")

from fastapi.testclient import TestClient

from saywhy.web.app import create_app
from saywhy.web.limits import Limits

ADDRESS = "http://127.0.0.1:8000"


@pytest.fixture(autouse=True, scope="module")
def _one_thread(one_thread: None) -> None:
    """The servers here run tiny networks."""


def folder_of(path: Path, name: str, seed: int = 0) -> Path:
    """A model folder whose captions differ between images."""
    captioner = tiny.sensitive_captioner("ada-lstm", seed=seed)
    decoding = {"beam": 2, "max_words": 6, "min_words": 4}
    SavedModel(name, captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE, fit="squash"), decoding).save(path)
    return path


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    parent = tmp_path_factory.mktemp("served")
    return [folder_of(parent / name, name, seed) for seed, name in enumerate(("first", "second"))]


@pytest.fixture(scope="session")
def models(folders: list[Path]) -> list[Model]:
    return [load(folder, "cpu") for folder in folders]


@pytest.fixture
def client(models: list[Model]) -> Iterator[TestClient]:
    """A client of a server with both models."""
    with TestClient(create_app(models), base_url=ADDRESS, raise_server_exceptions=False) as opened:
        yield opened


@pytest.fixture
def small_client(models: list[Model]) -> Iterator[TestClient]:
    """A client of a server with low limits."""
    limits = Limits(upload_bytes=200_000, pixels=100_000, image_bytes=1, explanations=2)
    with TestClient(create_app(models, limits), base_url=ADDRESS, raise_server_exceptions=False) as opened:
        yield opened
