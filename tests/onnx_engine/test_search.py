"""Beam search in numpy finds what the search of `saywhy.decoding.beam` finds."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from saywhy.captioners import Captioner
from saywhy.data.tokenizer import END, START
from saywhy.decoding.beam import beam_search as torch_search
from saywhy.decoding.config import log_probabilities
from saywhy.decoding.settings import Decoding
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.onnx_engine.graphs import StateLayout
from saywhy.onnx_engine.runtime import DecoderState, DecoderStep
from saywhy.onnx_engine.search import FEW, beam_search, best_words


class InTorch:
    """A captioner of torch behind the interface of an exported one."""

    def __init__(self, captioner: Captioner, features: Features) -> None:
        self.captioner, self.features = captioner, features
        self.layout = StateLayout.of(captioner, features, START)

    def start(self, features: np.ndarray) -> DecoderState:
        tensors = self.layout.flatten(self.captioner.start(self.features))
        values = dict(zip(self.layout.names, (tensor.numpy() for tensor in tensors), strict=True))
        constants = dict(zip(self.layout.names, self.layout.constant, strict=True))
        constant = {name: value for name, value in values.items() if constants[name]}
        changing = {name: value for name, value in values.items() if not constants[name]}
        return DecoderState(np.arange(len(features)), constant, constant, changing)

    def step(self, tokens: np.ndarray, state: DecoderState) -> DecoderStep:
        values = {**state.constant, **state.changing}
        tensors = [torch.from_numpy(np.ascontiguousarray(values[name])) for name in self.layout.names]
        step = self.captioner.step(torch.from_numpy(tokens), self.layout.build(tensors))
        changing = [name for name, c in zip(self.layout.names, self.layout.constant, strict=True) if not c]
        after = dict(zip(changing, (tensor.numpy() for tensor in self.layout.changing(step.state)), strict=True))
        attention, log_p = step.attention, log_probabilities(step.logits, self.captioner.styles).numpy()
        beta = None if attention.beta is None else attention.beta.numpy()
        state = DecoderState(state.image, state.per_image, state.constant, after)
        return DecoderStep(log_p, attention.alpha.numpy(), beta, state)


SETTINGS = [
    Decoding(),
    Decoding(beam=1),
    Decoding(beam=5, no_repeat=True),
    Decoding(beam=2, no_repeat=True, min_words=8),
    Decoding(length_penalty=0.0),
    Decoding(length_penalty=2.0, max_words=12),
    Decoding(beam=4, max_words=1),
    Decoding(beam=FEW + 9, max_words=5),
]


@pytest.mark.parametrize("name", ["ada-lstm", "coca"])
@pytest.mark.parametrize("decoding", SETTINGS, ids=str)
@torch.no_grad()
def test_all_captions_of_the_beam_are_the_same(name: str, decoding: Decoding) -> None:
    features = tiny.features(4)
    captioner = tiny.sensitive_captioner(name, words=20)
    expected = torch_search(captioner, features, decoding)
    found = beam_search(InTorch(captioner, features), features.vectors.numpy(), decoding, START)
    for captions, others in zip(expected, found, strict=True):
        assert [caption.tokens for caption in captions] == [other.tokens for other in others]
        for caption, other in zip(captions, others, strict=True):
            assert caption.score == pytest.approx(other.score, abs=1e-5)
            assert caption.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            np.testing.assert_allclose(caption.alpha, other.alpha, atol=1e-5)
            assert (caption.beta is None) == (other.beta is None)


@torch.no_grad()
def test_logits_that_are_not_finite_are_one_line() -> None:
    logits = torch.zeros(8)
    logits[5] = torch.nan
    captioner = tiny.TableCaptioner.always(logits)
    features = tiny.features(1, width=1)
    with pytest.raises(UserError, match="not finite"):
        beam_search(InTorch(captioner, features), features.vectors.numpy(), Decoding(), START)


@torch.no_grad()
def test_a_caption_ends_where_every_word_would_repeat_a_trigram() -> None:
    """Two words only, and more of them demanded than there are without a repeated trigram."""
    table = torch.full((6, 6), -torch.inf)
    words = torch.tensor([END, 4, 5])
    table[:, words] = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    captioner, decoding = tiny.TableCaptioner(table), Decoding(no_repeat=True, min_words=15, max_words=20)
    features = tiny.features(1, width=1)
    expected = torch_search(captioner, features, decoding)[0]
    found = beam_search(InTorch(captioner, features), features.vectors.numpy(), decoding, START)[0]
    assert found[0].tokens == expected[0].tokens  # others have equal scores, and any order
    assert len(found[0].tokens) < 15


@pytest.mark.parametrize("k", [1, 3, FEW + 1])
def test_best_words_are_the_largest_in_order(k: int) -> None:
    values = np.random.default_rng(0).normal(size=(7, 50)).astype(np.float32)
    found, places = best_words(values, k)
    np.testing.assert_array_equal(found, -np.sort(-values, axis=1)[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(values, places, 1), found)
