"""Model folders that are not whole, not ours, or not of this version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from saywhy.captioners.model_folder import CONFIG, VOCABULARY, WEIGHTS, SavedModel, load
from saywhy.data.preprocess import Preprocessing
from saywhy.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    SavedModel("tiny", tiny.captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE)).save(folder)
    return folder


def changed(folder: Path, **changes: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert str(folder) in line
    return line


def test_a_whole_folder_loads_and_holds_nothing_else(folder):
    assert load(folder).name == "tiny"
    assert sorted(path.name for path in folder.iterdir()) == sorted([CONFIG, VOCABULARY, WEIGHTS])


def test_a_folder_that_is_not_there_or_no_model_is_refused(tmp_path):
    assert "no model at" in refusal(tmp_path / "gone")
    assert "holds no config.json" in refusal(tmp_path)


def test_a_missing_part_is_named(folder):
    (folder / WEIGHTS).unlink()
    assert "model.safetensors is missing" in refusal(folder)
    (folder / VOCABULARY).unlink()
    assert "vocabulary is missing" in refusal(folder)


@pytest.mark.parametrize("wrong", [0, 2, "1", None])
def test_another_format_is_refused_with_both_versions(folder, wrong):
    changed(folder, format=wrong, saywhy="9.9")
    line = refusal(folder)
    assert "saywhy 9.9" in line
    assert "reads format 1" in line


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}', "\x00"])
def test_a_configuration_that_is_none_is_refused(folder, text):
    (folder / CONFIG).write_text(text)
    refusal(folder)


def test_a_configuration_in_another_encoding_is_refused(folder):
    (folder / CONFIG).write_bytes(b'{"name": "\xff"}')
    assert "not JSON" in refusal(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"preprocessing": {"side": 64}},
        {"captioner": {"name": "soft-attention"}},
        {"captioner": {"name": "soft-attention", "settings": {"hidden": "many"}}},
        {"captioner": "soft-attention"},
        {"encoder": None},
    ],
    ids=str,
)
def test_a_configuration_of_other_parts_is_refused(folder, changes):
    changed(folder, **changes)
    assert "not a configuration" in refusal(folder)


def test_an_unknown_captioner_setting_or_encoder_is_a_users_error_of_one_line(folder):
    config = json.loads((folder / CONFIG).read_text())
    for changes in (
        {"captioner": {"name": "loud-attention", "settings": {}}},
        {"captioner": {"name": "soft-attention", "settings": {"hiden": 3}}},
        {"encoder": {**config["encoder"], "name": "timm:nothing_of_the_kind"}},
        {"encoder": {**config["encoder"], "sise": 3}},
    ):
        changed(folder, **{**config, **changes})
        with pytest.raises(UserError) as caught:
            load(folder)
        assert "\n" not in str(caught.value)


def test_weights_of_other_sizes_do_not_fit(folder):
    config = json.loads((folder / CONFIG).read_text())
    config["captioner"]["settings"]["hidden"] += 1
    changed(folder, captioner=config["captioner"])
    assert "does not fit" in refusal(folder)


def test_a_vocabulary_of_another_size_does_not_fit(folder):
    tiny.vocabulary(tiny.WORDS + 1).save(folder / VOCABULARY)
    assert "E.weight" in refusal(folder)


def test_one_weight_too_few_or_too_many_does_not_fit(folder):
    tensors = load_file(folder / WEIGHTS)
    save_file({name: tensor for name, tensor in tensors.items() if name != "gate.bias"}, folder / WEIGHTS)
    assert "gate.bias" in refusal(folder)
    save_file({**tensors, "spare": torch.zeros(1)}, folder / WEIGHTS)
    assert "spare" in refusal(folder)


def test_untied_weights_do_not_pass_for_tied_ones(folder):
    tensors = load_file(folder / WEIGHTS)
    del tensors["L_o.weight"]
    save_file(tensors, folder / WEIGHTS)
    assert "L_o.weight" in refusal(folder)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_weights_are_refused(folder, keep):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:keep])
    assert "not readable as safetensors" in refusal(folder)


def test_a_pickle_is_never_read_as_weights(folder, tmp_path):
    class Trap:
        def __reduce__(self):
            return Path.touch, (tmp_path / "sprung",)

    torch.save({"E.weight": Trap()}, folder / WEIGHTS)
    assert "not readable as safetensors" in refusal(folder)
    assert not (tmp_path / "sprung").exists()


def test_saving_that_fails_leaves_the_old_model(folder, monkeypatch):
    before = (folder / WEIGHTS).read_bytes()

    def interrupted(tensors, path):
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("saywhy.captioners.model_folder.save_file", interrupted)
    other = SavedModel("other", tiny.captioner(seed=5), tiny.vocabulary(), Preprocessing(tiny.SIDE))
    with pytest.raises(KeyboardInterrupt):
        other.save(folder)
    assert (folder / WEIGHTS).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == sorted([CONFIG, VOCABULARY, WEIGHTS])
