"""An exported captioner decodes as the captioner it was exported from."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

import tiny
from saywhy.captioners import Attention, Captioner, CaptionerSettings, State, Step, captioners
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.decoding.caption import Caption
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.inference.familiarity_model import Familiarity
from saywhy.inference.map_statistics import image_statistics, middle_blocks
from saywhy.inference.model import Model, load
from saywhy.onnx_engine.engine import load_onnx
from saywhy.onnx_engine.export import export_model
from saywhy.onnx_engine.manifest import ENCODER, MANIFEST, STEP, Manifest

IMAGES = 5


def assert_same(a: Caption, b: Caption) -> None:
    """Two captions are equal, but for rounding."""
    assert a.words == b.words
    assert (a.source, a.model, a.style, a.grid, a.crop) == (b.source, b.model, b.style, b.grid, b.crop)
    assert a.score == pytest.approx(b.score, abs=1e-3)
    assert a.logprobs == pytest.approx(b.logprobs, abs=1e-2)
    np.testing.assert_allclose(a.alpha, b.alpha, atol=1e-3)
    assert (a.beta is None) == (b.beta is None)
    if a.beta is not None:
        np.testing.assert_allclose(a.beta, b.beta, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(captioners))
def test_every_captioner_is_exported_with_the_same_captions(name: str, make_model, tmp_path: Path) -> None:
    model = make_model(name)
    onnx = load_onnx(export_model(model, tmp_path / "onnx").folder)
    images = tiny.image_files(tmp_path, IMAGES)
    captions = list(model.captions(images))
    assert len({caption.score for caption in captions}) > 1, "the captions do not depend on the image"
    for size in (1, 2, IMAGES):  # other sizes than those that were traced
        for caption, other in zip(captions, onnx.captions(images, batch_size=size), strict=True):
            assert_same(caption, other)


@pytest.mark.parametrize("changes", [{}, {"style": "flickr8k"}, {"beam": 1}, {"beam": 30, "length_penalty": 0.0}])
def test_captions_equal_those_of_torch(changes: dict, torch_model: Model, exported: Path, tmp_path: Path) -> None:
    images = tiny.image_files(tmp_path, IMAGES)
    pairs = zip(torch_model.captions(images, **changes), load_onnx(exported).captions(images, **changes), strict=True)
    for caption, other in pairs:
        assert_same(caption, other)


def test_familiarity_equals_that_of_torch(make_model, tmp_path: Path) -> None:
    model = make_model()
    pixels = tiny.pixels(40)
    blocks = middle_blocks(model.captioner, pixels)
    assert blocks
    _, statistics = image_statistics(model.captioner, pixels, None, blocks)
    train, dev = ({name: values[part] for name, values in statistics.items()} for part in (slice(25), slice(25, 40)))
    assert model.folder is not None
    Familiarity.fit(train, dev).save(model.folder)
    images = tiny.image_files(tmp_path, 3)
    model = load(model.folder, "cpu")
    exported = load_onnx(export_model(model, tmp_path / "onnx").folder)
    shares = [caption.familiarity for caption in exported.captions(images)]
    assert shares == pytest.approx([caption.familiarity for caption in model.captions(images)], rel=1e-3)
    assert len(set(shares)) > 1


def test_half_precision_is_smaller_and_nearly_the_same(torch_model: Model, exported: Path, tmp_path: Path) -> None:
    half = export_model(torch_model, tmp_path / "half", "fp16")
    assert half.sizes[STEP] < (exported / STEP).stat().st_size
    image = tiny.image_files(tmp_path, 1)[0]
    assert load_onnx(half.folder).caption(image).score == pytest.approx(torch_model.caption(image).score, abs=0.05)


def test_eight_bits_are_smaller_and_nearly_the_same(torch_model: Model, exported: Path, tmp_path: Path) -> None:
    small = export_model(torch_model, tmp_path / "int8", "int8")
    assert small.sizes[STEP] < (exported / STEP).stat().st_size
    assert 0 < small.difference < 5, "these weights are larger than those of a trained model"
    assert load_onnx(small.folder).caption(tiny.image_files(tmp_path, 1)[0]).words


def test_photographs_quantise_the_encoder_too(torch_model: Model, exported: Path, tmp_path: Path) -> None:
    images = tiny.image_files(tmp_path, 4)
    small = export_model(torch_model, tmp_path / "int8", "int8", images)
    assert small.sizes[ENCODER] < 0.8 * (exported / ENCODER).stat().st_size
    assert load_onnx(small.folder).caption(images[0]).words
    with pytest.raises(UserError, match="for int8, not for fp32"):
        export_model(torch_model, tmp_path / "fp32", "fp32", images)


def test_constants_of_the_state_are_found(exported: Path) -> None:
    state = {tensor.name: tensor.constant for tensor in Manifest.read(exported).state}
    assert state == {"h": False, "m": False, "h2": False, "m2": False, "image": True, "I_g": True, "keys": True}


def test_an_export_replaces_an_earlier_one(torch_model: Model, tmp_path: Path) -> None:
    folder = export_model(torch_model, tmp_path / "onnx", "fp16").folder
    export_model(torch_model, folder)
    assert Manifest.read(folder).precision == "fp32"
    assert [path.name for path in tmp_path.iterdir()] == ["onnx"], "temporary folders are left"


def test_a_folder_of_other_files_is_not_overwritten(torch_model: Model, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(UserError, match="other files"):
        export_model(torch_model, tmp_path)
    with pytest.raises(UserError, match="a file"):
        export_model(torch_model, tmp_path / "thesis.tex")


@dataclass(frozen=True)
class WordState(State):
    """A state that a graph cannot hold."""

    words: tuple[str, ...]


class Speaking(Captioner[WordState]):
    name, Settings = "speaking", CaptionerSettings

    def start(self, features: Features) -> WordState:
        return WordState(())

    def step(self, tokens: Tensor, state: WordState) -> Step[WordState]:
        n = len(tokens)
        return Step(
            self.no_image.new_zeros(n, self.vocabulary_size),
            replace(state, words=(*state.words, "word")),
            Attention(self.no_image.new_ones(n, 4) / 4),
        )


def test_a_captioner_that_cannot_be_exported_is_refused_by_name(tmp_path: Path) -> None:
    captioner = Speaking(tiny.encoder(), tiny.WORDS, CaptionerSettings()).eval()
    model = Model(SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE)))
    with pytest.raises(UserError, match="captioner speaking cannot be exported: words of its state"):
        export_model(model, tmp_path / "onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("module", ["onnx", "onnxscript", "onnxruntime"])
def test_a_missing_package_is_one_line(
    module: str, torch_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf'{module}.*pip install "saywhy\[onnx\]"'):
        export_model(torch_model, tmp_path / "onnx")


def test_the_manifest_names_what_it_was_exported_from(exported: Path) -> None:
    manifest = Manifest.read(exported)
    assert (manifest.captioner, manifest.encoder) == ("ada-lstm", "timm:test_efficientnet")
    assert MANIFEST not in manifest.digests
    assert STEP in manifest.digests
