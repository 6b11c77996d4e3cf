"""Exported captioners, which take seconds to make."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.inference.model import Model

pytest.importorskip("onnxscript", reason="needs the extra onnx")
pytest.importorskip("onnxruntime", reason="needs the extra onnx")

STYLES = ("coco", "flickr8k")
DECODING = {"beam": 3, "max_words": 9, "no_repeat": True}


def tiny_model(folder: Path, name: str = "ada-lstm", styles: tuple[str, ...] = (), **decoding: object) -> Model:
    """A saved model with large random weights; its captions depend on the image."""
    captioner = tiny.sensitive_captioner(name, words=24)
    captioner.styles = len(styles)
    saved = SavedModel("tiny", captioner, tiny.vocabulary(24, styles), Preprocessing(tiny.SIDE), DECODING | decoding)
    saved.save(folder)
    return Model(saved, folder=folder)


@pytest.fixture(scope="session")
def torch_model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """An Ada-LSTM with two styles."""
    return tiny_model(tmp_path_factory.mktemp("onnx") / "torch", styles=STYLES)


@pytest.fixture(scope="session")
def exported(torch_model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model as ONNX; tests must not change it."""
    from saywhy.onnx_engine.export import export_model

    return export_model(torch_model, tmp_path_factory.mktemp("onnx") / "exported").folder


@pytest.fixture
def make_model(tmp_path: Path) -> Callable[..., Model]:
    return lambda *arguments, **options: tiny_model(tmp_path / "model", *arguments, **options)
