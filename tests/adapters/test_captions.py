"""A captioner of transformers says through its adapter what `generate` says, and its decoder is the library's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import adapted
import tiny_transformers
from adapted import pixels_of
from saywhy.data.tokenizer import END, START
from saywhy.decoding.config import decode

BEAMS = [(1, 1.0), (2, 1.0), (3, 0.7), (4, 1.0), (5, 2.0)]


def test_pixels_are_those_of_the_models_own_processor(model, tiny):
    ours = model.captioner.encoder.normalise(pixels_of(model))
    theirs = tiny.processor(adapted.images(), return_tensors="pt")["pixel_values"]
    assert (ours - theirs).abs().max() < 2.5 / 255 / 0.2  # rounding of one filter by two libraries


@pytest.mark.parametrize(("beam", "length_penalty"), BEAMS)
def test_captions_equal_those_of_generate_token_by_token(model, tiny, beam, length_penalty):
    pixels = pixels_of(model)
    settings = model.decoding_with(beam=beam, length_penalty=length_penalty)
    ours = decode(model.captioner, model.captioner.encode(pixels), settings)
    theirs = adapted.generate(
        tiny, model.captioner.encoder.normalise(pixels), settings.max_words, num_beams=beam,
        length_penalty=length_penalty, early_stopping="never" if beam > 1 else False,
    )  # fmt: skip
    native = model.captioner.native.tolist()
    assert [[native[token] for token in caption.tokens] for caption in ours] == theirs
    assert len({tuple(caption) for caption in theirs}) > 3


def test_default_settings_are_those_of_generate(model, tiny):
    pixels = pixels_of(model)
    theirs = adapted.generate(tiny, model.captioner.encoder.normalise(pixels))
    ours = decode(model.captioner, model.captioner.encode(pixels), model.decoding)
    native = model.captioner.native.tolist()
    assert [[native[token] for token in caption.tokens] for caption in ours] == theirs


def test_captions_are_words_of_the_training_captions(model):
    captions = list(model.captions(adapted.images()))
    assert sum(caption.text in tiny_transformers.CAPTIONS for caption in captions) > 3
    for caption in captions:
        assert len(caption.words) == len(caption.logprobs) == len(caption.alpha)
        assert sum(len(word.pieces) for word in caption.words) > len(caption.words)  # some words have several pieces
        np.testing.assert_allclose(caption.alpha.sum(axis=-1), 1, rtol=1e-4)


def test_teacher_forcing_gives_the_logits_of_steps(double):
    captioner, features = double.captioner, double.captioner.encode(pixels_of(double, 3))
    tokens = torch.tensor([[START, 9, 12, 40, 7], [START, 8, 20, 21, 30], [START, 40, 5, 6, 11]])
    with torch.no_grad():
        logits, attention = captioner(features, tokens)
        state = captioner.start(features)
        for t in range(tokens.shape[1]):
            step = captioner.step(tokens[:, t], state)
            state = step.state
            torch.testing.assert_close(step.logits, logits[:, t], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(step.attention.alpha, attention.alpha[:, t], rtol=1e-5, atol=1e-5)


def test_states_can_be_reordered(double):
    captioner, features = double.captioner, double.captioner.encode(pixels_of(double, 2))
    order = torch.tensor([1, 0, 1])
    with torch.no_grad():
        state = captioner.step(torch.tensor([START, START]), captioner.start(features)).state
        ahead = captioner.step(torch.tensor([9, 12]), state)
        reordered = captioner.step(torch.tensor([9, 12])[order], state.select(order))
    torch.testing.assert_close(reordered.logits, ahead.logits[order], rtol=1e-6, atol=1e-6)
    assert (reordered.logits[0] - reordered.logits[1]).abs().max() > 1e-3


def test_without_an_image_the_logits_are_the_same_for_every_image(double):
    captioner = double.captioner
    features = captioner.without_image(captioner.encode(pixels_of(double, 3)))
    tokens = torch.tensor([[START, 9, 12]] * 3)
    with torch.no_grad():
        logits, _ = captioner(features, tokens)
        first = captioner.step(tokens[:, 0], captioner.start(features))
    assert torch.allclose(logits, logits[:1].expand_as(logits), atol=1e-9)
    torch.testing.assert_close(first.logits, logits[:, 0], rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        seeing, _ = captioner(captioner.encode(pixels_of(double, 3)), tokens)
    assert (seeing - logits).abs().max() > 1e-2


def test_no_token_that_ends_a_caption_is_a_word(model):
    native = model.captioner.native.tolist()
    assert native[END] not in native[4:]
    assert len(native) == len(model.vocabulary) == model.captioner.vocabulary_size


def test_a_saved_folder_gives_the_same_captions(model, tiny, tmp_path):
    import saywhy

    tiny.save(tmp_path)
    for place in (tmp_path, f"hf:{tmp_path}"):
        loaded = saywhy.load(place)
        settings = {"max_words": 12}  # BLIP saves no limit of its own
        expected = [caption.text for caption in model.captions(adapted.images(), **settings)]
        assert [caption.text for caption in loaded.captions(adapted.images(), **settings)] == expected
