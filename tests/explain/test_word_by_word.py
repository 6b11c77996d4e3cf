"""Explanations computed one word at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tiny
from saywhy.explain.methods import REPORT_METHODS
from saywhy.explain.passes import Targets, run_lrp
from saywhy.explain.request import ExplanationRequest, explain
from saywhy.explain.word_by_word import WordByWord

CAPTION = ("word0", "word3", "word1", "word2")
GRADIENTS = ("gradcam", "guided-gradcam", "guided-backprop", "gradient-input")
DETAILS = {"source": "a.png", "model": "tiny", "size": (64, 64), "crop": (0.0, 0.0, 64.0, 64.0), "input_size": 64}


def request(**target: Any) -> ExplanationRequest:
    return ExplanationRequest.parse(tiny.vocabulary(), 9, caption=" ".join(CAPTION), methods=REPORT_METHODS, **target)


@pytest.fixture(params=["ada-lstm", "coca"])
def captioner(request: pytest.FixtureRequest) -> Any:
    return tiny.sensitive_captioner(request.param)


@pytest.fixture
def pixels() -> torch.Tensor:
    return torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def steps(captioner: Any, pixels: torch.Tensor, **target: Any) -> WordByWord:
    return WordByWord(captioner, tiny.vocabulary(), pixels, CAPTION, request(**target), DETAILS)


def whole(captioner: Any, pixels: torch.Tensor, **target: Any) -> Any:
    vocabulary = tiny.vocabulary()
    (explanation,) = explain(captioner, vocabulary, pixels, None, [CAPTION], request(**target), [DETAILS])
    return explanation


def test_words_in_any_order_are_explained_as_all_words_at_once(captioner, pixels):
    by_word, expected = steps(captioner, pixels), whole(captioner, pixels)
    for k in (2, 0, 3, 1):
        single = by_word.explain(k)
        assert single.words[0].budget.image == pytest.approx(expected.words[k].budget.image, rel=1e-4, abs=1e-5)
        np.testing.assert_allclose(single.maps["lrp"][0], expected.maps["lrp"][k], rtol=1e-3, atol=1e-5)
    by_word.add_gradients(GRADIENTS)
    explanation = by_word.explanation()
    assert explanation.methods == expected.methods
    for method in expected.methods:
        scale = np.abs(expected.maps[method]).max()
        np.testing.assert_allclose(explanation.maps[method], expected.maps[method], rtol=1e-3, atol=1e-4 * scale)
    for word, other in zip(explanation.words, expected.words, strict=True):
        assert word.probability == pytest.approx(other.probability, rel=1e-5)
        assert {method: word.earlier_words.get(method) for method in other.earlier_words} == {
            method: pytest.approx(weights, rel=1e-3, abs=1e-4) for method, weights in other.earlier_words.items()
        }


def test_a_contrast_is_explained_as_by_explain(captioner, pixels):
    target = {"position": 2, "contrast": "word4"}
    (word,), (expected,) = (
        steps(captioner, pixels, **target).explain(0).words,
        whole(captioner, pixels, **target).words,
    )
    assert (word.contrast, word.score) == ("word4", pytest.approx(expected.score, rel=1e-5))
    assert word.budget.image == pytest.approx(expected.budget.image, rel=1e-4, abs=1e-5)


def test_alternatives_are_the_most_probable_other_words(captioner, pixels):
    by_word = steps(captioner, pixels)
    by_word.explain(1)
    alternatives = by_word.alternatives(1)
    p = dict(alternatives)
    assert len(alternatives) == 5
    assert CAPTION[1] not in p
    assert list(p.values()) == sorted(p.values(), reverse=True)
    rest = 1 - sum(p.values()) - by_word.explain(1).words[0].probability
    assert 0 <= rest < 1


def test_only_the_first_word_runs_the_forward_pass(captioner, pixels, monkeypatch):
    by_word, calls = steps(captioner, pixels), []
    forward = WordByWord._forward
    monkeypatch.setattr(WordByWord, "_forward", lambda self: calls.append(1) or forward(self))
    for k in (0, 1, 2, 3, 1):
        by_word.explain(k)
    assert len(calls) == 1
    assert by_word.missing == []
    assert by_word._lrp is None  # the graph is freed


def test_relevance_of_some_words_equals_that_of_all(captioner, pixels):
    from saywhy.explain.composites import composite
    from saywhy.explain.passes import lrp_pass

    targets = Targets.of_captions([CAPTION], None, tiny.vocabulary(), torch.device("cpu"))
    _, everything = run_lrp(captioner, pixels, None, targets, composite("by-stride"), 1)
    some = lrp_pass(captioner, pixels, None, targets, composite("by-stride"), 1).relevance([3, 1])
    torch.testing.assert_close(some.features, everything.features[[3, 1]])
    torch.testing.assert_close(some.absorbed, everything.absorbed[[3, 1]])
