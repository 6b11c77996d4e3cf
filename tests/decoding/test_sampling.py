"""Samples follow the distribution they are said to follow."""

from __future__ import annotations

import pytest
import torch

import tiny
from saywhy.data.vocabulary import END, MARKERS
from saywhy.decoding import Decoding, decode
from saywhy.decoding.sampling import cut

FIRST = len(MARKERS)
P = torch.tensor([0.4, 0.3, 0.2, 0.1])


def one_word(**how) -> torch.Tensor:
    """How often each of four words is drawn for 20,000 images."""
    logits = torch.cat([torch.full((FIRST,), 5.0), P.log()])
    images = tiny.features(1, width=1).select(torch.zeros(20_000, dtype=torch.long))
    rules = Decoding(method="sample", max_words=1, **how)
    words = [hypothesis.words[0] - FIRST for hypothesis in decode(tiny.Script.always(logits), images, rules)]
    return torch.tensor(words).bincount(minlength=4)


def chi_square(counts: torch.Tensor, p: torch.Tensor) -> float:
    expected = counts.sum() * p
    return float(((counts - expected).square() / expected)[p > 0].sum())


@pytest.mark.parametrize(
    ("how", "p"),
    [
        ({}, P),
        ({"temperature": 0.5}, P**2 / (P**2).sum()),
        ({"temperature": 2.0}, P**0.5 / (P**0.5).sum()),
        ({"top_k": 2}, torch.tensor([4, 3, 0, 0]) / 7),
        ({"top_p": 0.6}, torch.tensor([4, 3, 0, 0]) / 7),
        ({"top_p": 0.75}, torch.tensor([4, 3, 2, 0]) / 9),
        ({"top_k": 3, "top_p": 0.5}, torch.tensor([4, 3, 0, 0]) / 7),
    ],
    ids=str,
)
def test_words_come_as_often_as_their_probability_says(how, p):
    counts = one_word(**how)
    assert not counts[p == 0].any()
    assert chi_square(counts, p) < 16.3  # exceeded once in a thousand with three degrees of freedom
    assert how == {} or chi_square(counts, P) > 100, "the test cannot tell the setting"


def test_top_k_and_top_p_cut_what_they_should():
    p = torch.tensor([[0.15, 0.5, 0.05, 0.3], [0.3, 0.05, 0.5, 0.15]])

    def kept(top_k: int, top_p: float) -> list[list[int]]:
        found = cut(p.log(), top_k, top_p)
        assert torch.equal(found[found.isfinite()], p.log()[found.isfinite()])
        return [row.isfinite().nonzero().flatten().tolist() for row in found]

    assert kept(0, 1.0) == kept(4, 1.0) == kept(9, 1.0) == [[0, 1, 2, 3]] * 2
    assert kept(1, 1.0) == [[1], [2]]
    assert kept(2, 1.0) == [[1, 3], [0, 2]]
    assert kept(0, 0.01) == kept(0, 0.49) == [[1], [2]]
    assert kept(0, 0.6) == [[1, 3], [0, 2]]
    assert kept(0, 0.9) == [[0, 1, 3], [0, 2, 3]]
    assert kept(2, 0.7) == [[1, 3], [0, 2]]  # the mass is that of what top_k left
    assert kept(2, 0.6) == [[1], [2]]


def test_the_same_seed_says_the_same_and_another_something_else():
    captioner, features = tiny.captioner(), tiny.features(6)

    def said(seed: int) -> list[tuple[int, ...]]:
        how = Decoding(method="sample", max_words=8, seed=seed)
        return [hypothesis.words for hypothesis in decode(captioner, features, how)]

    assert said(1) == said(1)
    assert said(1) != said(2)
    torch.manual_seed(7)
    drawn = torch.rand(1)
    torch.manual_seed(7)
    said(1)
    assert torch.rand(1) == drawn, "a sample must leave the program's own randomness alone"


def test_as_the_temperature_falls_sampling_becomes_greedy():
    captioner, features = tiny.opinionated(), tiny.features(6)
    greedy = decode(captioner, features, Decoding(method="greedy", max_words=8))
    cold = decode(captioner, features, Decoding(method="sample", temperature=1e-3, max_words=8))
    hot = decode(captioner, features, Decoding(method="sample", temperature=5.0, max_words=8))
    assert [hypothesis.words for hypothesis in cold] == [hypothesis.words for hypothesis in greedy]
    assert [hypothesis.words for hypothesis in hot] != [hypothesis.words for hypothesis in greedy]


def test_log_probabilities_are_the_models_own_whatever_the_temperature():
    logits = torch.cat([torch.full((FIRST,), -60.0), P.log()])
    logits[END] = P[0].log()
    how = Decoding(method="sample", temperature=0.3, top_k=1, min_words=1, max_words=1)
    (found,) = decode(tiny.Script.always(logits), tiny.features(1, width=1), how)
    assert found.logprobs == pytest.approx([float((P[0] / 1.4).log())] * 2, abs=1e-5)
