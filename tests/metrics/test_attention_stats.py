"""Statistics of where a captioner looked, against loops that follow the definitions."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from statistics import mean

import numpy as np
import pytest

from saywhy.metrics.attention_stats import attentions


@dataclass
class Spoken:
    words: tuple[str, ...]
    alpha: np.ndarray
    beta: np.ndarray | None = None


def made_up(heads: int | None, captions: int = 40, seed: int = 0, gate: bool = True) -> list[Spoken]:
    """Captions of different lengths over different numbers of places, with some α of exactly 0."""
    random = np.random.default_rng(seed)
    found = []
    for _ in range(captions):
        words = tuple(f"word{n}" for n in random.integers(0, 30, random.integers(1, 9)))
        shape = (len(words), *([heads] if heads else []), random.integers(2, 12))
        alpha = random.random(shape) * (random.random(shape) > 0.2) + 1e-9 * (np.arange(shape[-1]) == 0)
        alpha = (alpha / alpha.sum(-1, keepdims=True)).astype(np.float32)
        found.append(Spoken(words, alpha, random.random(len(words)).astype(np.float32) if gate else None))
    return found


def slow_attention(captions: list[Spoken]) -> dict[str, float]:
    entropies, shares, changes, largest = [], [], [], []
    for caption in captions:
        rows = caption.alpha.astype(float)
        rows = rows[:, None, :] if rows.ndim == 2 else rows
        for t in range(len(rows)):
            for head in range(rows.shape[1]):
                alpha = rows[t, head]
                entropy = -sum(a * math.log(a) for a in alpha if a > 0)
                entropies.append(entropy)
                shares.append(entropy / math.log(len(alpha)))
                largest.append(max(alpha))
                if t + 1 < len(rows):
                    changes.append(sum(abs(a - b) for a, b in zip(alpha, rows[t + 1, head], strict=True)) / 2)
    values = {"entropy": entropies, "share": shares, "change": changes, "largest": largest}
    return {name: mean(each) for name, each in values.items()}


def slow_gate(captions: list[Spoken], least: int) -> list[tuple[float, str, int]]:
    table = []
    for word in {word for caption in captions for word in caption.words}:
        betas = [
            float(caption.beta[t])
            for caption in captions
            for t in range(len(caption.words))
            if caption.words[t] == word
        ]
        if len(betas) >= least:
            table.append((mean(betas), word, len(betas)))
    return sorted(table)


@pytest.mark.parametrize("heads", [None, 1, 3])
def test_entropy_change_and_largest_are_what_a_loop_finds(heads):
    captions = made_up(heads)
    found = attentions(captions).as_dict()
    for name, value in slow_attention(captions).items():
        assert found[name] == pytest.approx(value), name
    assert found["heads"] == (heads or 1)
    assert found["words"] == sum(len(caption.words) for caption in captions)
    assert found["places"] == pytest.approx(mean(caption.alpha.shape[-1] for caption in captions))


@pytest.mark.parametrize("least", [3, 7])
def test_the_gate_lists_the_words_that_a_loop_finds_from_both_ends(least):
    captions = made_up(None)
    expected = slow_gate(captions, least)
    assert len(expected) >= 4
    gate = attentions(captions, least=least).gate
    assert gate is not None
    for found, wanted in ((gate.lowest, expected[:10]), (gate.highest, expected[::-1][:10])):
        assert [(each.word, each.count) for each in found] == [(word, count) for _, word, count in wanted]
        assert [each.beta for each in found] == pytest.approx([beta for beta, _, _ in wanted])
    by_count = sorted(expected, key=lambda each: (-each[2], each[1]))[:10]
    assert [(each.word, each.count) for each in gate.commonest] == [(word, count) for _, word, count in by_count]
    assert gate.mean == pytest.approx(mean(float(beta) for caption in captions for beta in caption.beta))


def test_a_word_is_listed_from_its_tenth_occurrence_on():
    look = np.ones((1, 2)) / 2
    said = [Spoken(("often",), look, np.array([0.5]))] * 10 + [Spoken(("seldom",), look, np.array([0.5]))] * 9
    gate = attentions(said).gate
    assert gate is not None
    assert [each.word for each in gate.lowest] == ["often"]


def test_looking_everywhere_has_all_of_log_l_whatever_l_is():
    captions = [Spoken(("a", "dog"), np.full((2, places), 1 / places)) for places in (2, 5, 36)]
    found = attentions(captions)
    assert found.share == pytest.approx(1)
    assert found.entropy == pytest.approx(mean(map(math.log, (2, 5, 36))))
    assert found.change == 0


def test_looking_at_one_place_and_then_another_is_no_entropy_and_all_change():
    found = attentions([Spoken(("a", "dog", "runs"), np.eye(3))])
    assert (found.entropy, found.share, found.change, found.largest) == (0, 0, 1, 1)


def test_change_does_not_cross_from_one_caption_to_the_next():
    first, second = np.array([[1.0, 0.0]] * 2), np.array([[0.0, 1.0]] * 2)
    assert attentions([Spoken(("a", "dog"), first), Spoken(("a", "cat"), second)]).change == 0


def test_what_cannot_be_said_is_none_and_still_json():
    lonely = attentions([Spoken(("dog",), np.ones((1, 1)))])
    assert (lonely.entropy, lonely.share, lonely.change, lonely.gate) == (0, None, None, None)
    silent = attentions([Spoken((), np.ones((0, 4)), np.ones(0))])
    assert (silent.words, silent.entropy, silent.places, silent.gate) == (0, None, None, None)
    nowhere = attentions([Spoken(("dog",), np.ones((1, 0)), np.ones(1)), Spoken(("dog",), np.ones((1, 1)))])
    assert (nowhere.places, nowhere.largest, nowhere.words) == (1, 1, 2)
    for found in (lonely, silent, nowhere, attentions(made_up(2, gate=False)), attentions(made_up(2))):
        assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["words"] == found.words
