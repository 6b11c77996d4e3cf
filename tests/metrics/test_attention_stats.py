"""Statistics of attention, against loops that follow the definitions."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from statistics import mean

import numpy as np
import pytest

from saywhy.metrics.attention_stats import attention_stats


@dataclass
class AttendedCaption:
    words: tuple[str, ...]
    alpha: np.ndarray
    beta: np.ndarray | None = None


def random_captions(heads: int | None, count: int = 40, seed: int = 0, gate: bool = True) -> list[AttendedCaption]:
    """Captions of different lengths over different numbers of features, with some α of exactly 0."""
    random = np.random.default_rng(seed)
    captions = []
    for _ in range(count):
        words = tuple(f"word{n}" for n in random.integers(0, 30, random.integers(1, 9)))
        shape = (len(words), *([heads] if heads else []), random.integers(2, 12))
        alpha = random.random(shape) * (random.random(shape) > 0.2) + 1e-9 * (np.arange(shape[-1]) == 0)
        alpha = (alpha / alpha.sum(-1, keepdims=True)).astype(np.float32)
        beta = random.random(len(words)).astype(np.float32) if gate else None
        captions.append(AttendedCaption(words, alpha, beta))
    return captions


def reference_alpha_stats(captions: list[AttendedCaption]) -> dict[str, float]:
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
    statistics = {"entropy": entropies, "share": shares, "change": changes, "largest": largest}
    return {name: mean(values) for name, values in statistics.items()}


def reference_gate_stats(captions: list[AttendedCaption], least: int) -> list[tuple[float, str, int]]:
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
def test_alpha_statistics_equal_the_reference(heads):
    captions = random_captions(heads)
    stats = attention_stats(captions).as_dict()
    for name, value in reference_alpha_stats(captions).items():
        assert stats[name] == pytest.approx(value), name
    assert stats["heads"] == (heads or 1)
    assert stats["words"] == sum(len(caption.words) for caption in captions)
    assert stats["features"] == pytest.approx(mean(caption.alpha.shape[-1] for caption in captions))


@pytest.mark.parametrize("least", [3, 7])
def test_gate_statistics_equal_the_reference(least):
    captions = random_captions(None)
    expected = reference_gate_stats(captions, least)
    assert len(expected) >= 4
    gate = attention_stats(captions, least=least).gate
    assert gate is not None
    for listed, rows in ((gate.lowest, expected[:10]), (gate.highest, expected[::-1][:10])):
        assert [(entry.word, entry.count) for entry in listed] == [(word, count) for _, word, count in rows]
        assert [entry.beta for entry in listed] == pytest.approx([beta for beta, _, _ in rows])
    by_count = sorted(expected, key=lambda row: (-row[2], row[1]))[:10]
    assert [(entry.word, entry.count) for entry in gate.commonest] == [(word, count) for _, word, count in by_count]
    assert gate.mean == pytest.approx(mean(float(beta) for caption in captions for beta in caption.beta))


def test_a_word_is_listed_from_ten_occurrences_on():
    alpha, beta = np.ones((1, 2)) / 2, np.array([0.5])
    captions = [AttendedCaption(("frequent",), alpha, beta)] * 10 + [AttendedCaption(("rare",), alpha, beta)] * 9
    gate = attention_stats(captions).gate
    assert gate is not None
    assert [entry.word for entry in gate.lowest] == ["frequent"]


def test_uniform_attention_has_the_entropy_log_l_and_no_change():
    captions = [AttendedCaption(("a", "dog"), np.full((2, features), 1 / features)) for features in (2, 5, 36)]
    stats = attention_stats(captions)
    assert stats.share == pytest.approx(1)
    assert stats.entropy == pytest.approx(mean(map(math.log, (2, 5, 36))))
    assert stats.change == 0


def test_one_hot_attention_that_moves_has_no_entropy_and_full_change():
    stats = attention_stats([AttendedCaption(("a", "dog", "runs"), np.eye(3))])
    assert (stats.entropy, stats.share, stats.change, stats.largest) == (0, 0, 1, 1)


def test_change_is_computed_within_captions_only():
    first, second = np.array([[1.0, 0.0]] * 2), np.array([[0.0, 1.0]] * 2)
    captions = [AttendedCaption(("a", "dog"), first), AttendedCaption(("a", "cat"), second)]
    assert attention_stats(captions).change == 0


def test_undefined_statistics_are_none_and_can_be_written_as_json():
    one_feature = attention_stats([AttendedCaption(("dog",), np.ones((1, 1)))])
    assert (one_feature.entropy, one_feature.share, one_feature.change, one_feature.gate) == (0, None, None, None)
    no_words = attention_stats([AttendedCaption((), np.ones((0, 4)), np.ones(0))])
    assert (no_words.words, no_words.entropy, no_words.features, no_words.gate) == (0, None, None, None)
    no_features = AttendedCaption(("dog",), np.ones((1, 0)), np.ones(1))
    mixed = attention_stats([no_features, AttendedCaption(("dog",), np.ones((1, 1)))])
    assert (mixed.features, mixed.largest, mixed.words) == (1, 1, 2)
    ungated, gated = attention_stats(random_captions(2, gate=False)), attention_stats(random_captions(2))
    for stats in (one_feature, no_words, mixed, ungated, gated):
        assert json.loads(json.dumps(stats.as_dict(), allow_nan=False))["words"] == stats.words
