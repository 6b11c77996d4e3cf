"""Guidance of a loaded model: the log-probabilities, the record of its training, the shipped model."""

from __future__ import annotations

import pytest
import torch

import saywhy
import tiny
from saywhy.captioners.model_folder import SavedModel, load
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import END, START
from saywhy.decoding.config import log_probabilities
from saywhy.errors import UserError
from saywhy.inference.model import Model


def saved(share: float | None, name: str = "ada-lstm") -> SavedModel:
    contents = (tiny.sensitive_captioner(name), tiny.vocabulary(), Preprocessing(tiny.SIDE), {"max_words": 6})
    return SavedModel("tiny", *contents, conditioning_dropout=share)


@pytest.mark.parametrize("name", ["ada-lstm", "coca"])
def test_log_probabilities_of_a_guided_caption_are_those_given_the_image(tmp_path, name):
    model = Model(saved(0.5, name))
    for path in tiny.image_files(tmp_path, 3):
        caption = model.caption(path, guidance=4.0)
        assert caption.guidance == {"guidance": 4.0}
        tokens = [START, *model.vocabulary.encode(caption.words)[1:-1]]
        pixels = torch.from_numpy(model.preprocessing(caption.image))[None]
        with torch.no_grad():
            log_p = log_probabilities(model.captioner(model.captioner.encode(pixels), torch.tensor([tokens]))[0])[0]
        expected = [log_p[t, token].item() for t, token in enumerate(tokens[1:])]
        assert caption.logprobs == pytest.approx(expected, abs=1e-3)
        own_score = (sum(expected) + log_p[-1, END].item()) / (len(tokens)) ** 0.7
        assert caption.score != pytest.approx(own_score, abs=1e-2), "the score is that of the guided distribution"


def test_the_share_of_conditioning_dropout_is_saved_and_loaded(tmp_path):
    for share in (None, 0.0, 0.3):
        saved(share).save(tmp_path / str(share))
        assert load(tmp_path / str(share)).conditioning_dropout == share


def test_a_model_trained_without_conditioning_dropout_is_refused_before_captioning():
    model = Model(saved(0.0))
    for settings in ({"guidance": 2}, {"guidance": 0}, {"lm": "q", "lm_weight": (5, 2.5)}):
        with pytest.raises(UserError, match="trained without conditioning dropout") as caught:
            model.captions([], **settings)
        assert "\n" not in str(caught.value)
    assert model.decoding_with(guidance=1) == model.decoding


def test_the_shipped_model_can_be_guided():
    model = saywhy.load()
    assert model.conditioning_dropout == 0.1
    assert str(model.decoding_with(guidance=2)).endswith("style:coco,guidance2")
