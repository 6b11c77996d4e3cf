"""`Model.save_pretrained` writes a folder that `load` reads: own models whole, those of transformers by reference."""

from __future__ import annotations

import json

import pytest

import adapted
import saywhy
import tiny
from saywhy.adapters.base import adapters
from saywhy.adapters.load_adapter import adapt
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.errors import UserError
from saywhy.inference.model import Model


def test_a_model_of_saywhy_is_saved_with_its_weights_and_decoding(tmp_path):
    saved = SavedModel("mine", tiny.captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE), {"beam": 2})
    model = Model(saved)
    model.save_pretrained(tmp_path / "saved")
    (image,) = tiny.image_files(tmp_path, 1)
    loaded = saywhy.load(tmp_path / "saved", "cpu")
    assert loaded.decoding == model.decoding
    assert loaded.caption(image).words == model.caption(image).words
    assert "soft-attention over timm:test_efficientnet" in (tmp_path / "saved" / "README.md").read_text()
    with pytest.raises(UserError, match="already"):
        loaded.save_pretrained(tmp_path / "saved")


def test_a_model_of_transformers_is_saved_as_a_reference(tmp_path):
    adapted.Tiny(*adapted.BUILDERS["git"](0)).save(tmp_path / "git")
    model = saywhy.load(tmp_path / "git", "cpu")
    model.save_pretrained(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["model"] == str((tmp_path / "git").resolve())
    assert not list((tmp_path / "saved").glob("*.safetensors"))
    image = adapted.images(1)[0]
    assert saywhy.load(tmp_path / "saved", "cpu").caption(image).words == model.caption(image).words


def test_a_model_that_follows_instructions_is_asked_what_the_caller_wants():
    parts = adapted.BUILDERS["llava"](0)
    prompts = {}
    for prompt in (None, "a cat"):
        captioner = adapt(adapters["llava"], *parts, "tiny", prompt).captioner
        prompts[prompt] = parts[1].decode(captioner.after)
    assert "one short sentence" in prompts[None]
    assert "a cat" in prompts["a cat"]
