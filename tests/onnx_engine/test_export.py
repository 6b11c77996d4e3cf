"""An exported captioner decodes as the captioner it was exported from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from saywhy.captioners import captioners
from saywhy.decoding.settings import Hypothesis
from saywhy.errors import UserError
from saywhy.inference.model import Model
from saywhy.onnx_engine.engine import load_onnx
from saywhy.onnx_engine.export import export_model
from saywhy.onnx_engine.manifest import ENCODER, STEP

IMAGES = 5


def same(a: object, b: object) -> bool:
    """Whether two captions are equal, but for rounding."""
    assert a.words == b.words
    assert a.score == pytest.approx(b.score, abs=1e-4)
    assert a.logprobs == pytest.approx(b.logprobs, abs=1e-3)
    np.testing.assert_allclose(a.alpha, b.alpha, atol=1e-4)
    assert (a.beta is None) == (b.beta is None)
    if a.beta is not None:
        np.testing.assert_allclose(a.beta, b.beta, atol=1e-4)
    return True


@pytest.mark.parametrize("name", list(captioners))
def test_every_captioner_is_exported_with_the_same_captions(name: str, make_model, tmp_path: Path) -> None:
    model = make_model(name)
    images = tiny.image_files(tmp_path, IMAGES)
    onnx = load_onnx(export_model(model, tmp_path / "onnx").folder)
    for size in (1, 2, IMAGES):  # other sizes than those that were traced
        pairs = list(zip(model.captions(images), onnx.captions(images, batch_size=size), strict=True))
        assert all(same(a, b) for a, b in pairs)
    assert len({a.text for a, _ in pairs}) > 1, "the captions do not depend on the image"
    assert onnx.caption(images[0]).as_dict() == pytest.approx(onnx.caption(images[0]).as_dict())
