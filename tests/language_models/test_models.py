"""Every registered language model: interface, causality, saving and loading."""

from __future__ import annotations

import json

import pytest
import torch

import tiny
from reference.language_models import caption_log_q
from saywhy.captioners import model_folder
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import PAD
from saywhy.errors import UserError
from saywhy.language_models import SavedLanguageModel, build, language_models, load

SMALL = {"lstm": {"width": 8, "hidden": 12, "layers": 2}, "transformer": {"width": 8, "heads": 2, "layers": 2}}
NAMES = sorted(SMALL)


def language_model(name: str, words: int = tiny.WORDS, seed: int = 0):
    torch.manual_seed(seed)
    model = build(name, words, **SMALL[name])
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.eval()


def test_every_registered_language_model_is_tested_here():
    assert sorted(language_models) == NAMES


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode], ids=["no_grad", "inference"])  # packed weights
@pytest.mark.parametrize("name", NAMES)
def test_step_by_step_equals_teacher_forcing(name, mode):
    model, captions = language_model(name), tiny.captions(4, 6)
    with torch.no_grad():
        forced = model(captions[:, :-1]).double().log_softmax(-1)
    for row, caption in zip(forced, captions, strict=True):
        expected = row.gather(1, caption[1:, None]).squeeze(1).tolist()
        with mode():
            assert caption_log_q(model, caption) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_depends_on_earlier_words_and_not_on_later_ones(name):
    model, captions = language_model(name), tiny.captions(1, 6)
    changed = captions.clone()
    changed[0, 3] = captions[0, 3] % 7 + 4
    assert changed[0, 3] != captions[0, 3]
    with torch.no_grad():
        before, after = model(captions), model(changed)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3], after[:, 3])
    assert not torch.allclose(before[:, 5], after[:, 5])


@pytest.mark.parametrize("name", NAMES)
def test_padding_does_not_change_a_caption(name):
    model, captions = language_model(name), tiny.captions(2, 4)
    padded = torch.cat([captions, torch.full((2, 3), PAD)], dim=1)
    with torch.no_grad():
        torch.testing.assert_close(model(padded)[:, :6], model(captions))


@pytest.mark.parametrize("name", NAMES)
def test_selected_states_continue_like_their_rows(name):
    model, captions = language_model(name), tiny.captions(3, 4)
    rows = torch.tensor([2, 0, 0, 1])
    with torch.no_grad():
        state = model.start(3)
        for column in captions[:, :3].T:
            _, state = model.step(column, state)
        logits, _ = model.step(captions[rows, 3], state.select(rows))
        torch.testing.assert_close(logits, model(captions)[rows, 3])


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_predicts_the_same(name, tmp_path):
    model, captions = language_model(name), tiny.captions()
    SavedLanguageModel("mine", model, tiny.vocabulary()).save(tmp_path)
    saved = load(tmp_path)
    assert (saved.name, saved.vocabulary, saved.model.settings) == ("mine", tiny.vocabulary(), model.settings)
    assert not saved.model.training
    with torch.no_grad():
        assert torch.equal(saved.model(captions), model(captions))


def test_a_captioner_is_no_language_model_and_the_other_way_round(tmp_path):
    SavedModel("tiny", tiny.captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE)).save(tmp_path / "captioner")
    SavedLanguageModel("mine", language_model("lstm"), tiny.vocabulary()).save(tmp_path / "lm")
    with pytest.raises(UserError, match="captioner is a captioner, not a language-model"):
        load(tmp_path / "captioner")
    with pytest.raises(UserError, match="lm is a language-model, not a captioner"):
        model_folder.load(tmp_path / "lm")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"language_model": {"name": "lstm", "settings": {"width": 8, "hidden": 13}}}, "has shape"),
        ({"language_model": {"name": "lstm", "settings": {"width": 10**9}}}, "larger than any in"),
        ({"language_model": {"name": "lstm", "settings": {"depth": 3}}}, "no setting 'depth'"),
        ({"language_model": {"name": "gru", "settings": {}}}, "unknown language model 'gru'"),
        ({"language_model": 3}, "not a configuration of a language model"),
        ({"format": 99}, "format 99"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(change, reason, tmp_path):
    SavedLanguageModel("mine", language_model("lstm"), tiny.vocabulary()).save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(UserError, match=reason) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "settings", "reason"),
    [
        ("lstm", {"width": 0}, "width = 0 must be at least 1"),
        ("lstm", {"layers": 1000}, "above 100"),
        ("lstm", {"hidden": 2.5}, "hidden must be int"),
        ("lstm", {"dropout": 1.0}, "dropout = 1.0 must be"),
        ("lstm", {"dropout": float("nan")}, "dropout must be float"),
        ("transformer", {"width": 12, "heads": 8}, "not divisible by 8 heads"),
    ],
)
def test_bad_settings_are_refused(name, settings, reason):
    with pytest.raises(UserError, match=reason):
        build(name, 10, **settings)
