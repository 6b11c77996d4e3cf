"""Intervals of score differences equal those of a slow bootstrap that scores the captions of every sample again."""

from __future__ import annotations

import random
import shutil

import numpy as np
import pytest

from reference import audits, metrics
from reference import comparison as reference
from saywhy.audits.statistics import Bootstrap, Estimate
from saywhy.hallucination.chair import ImageObjects, chair
from saywhy.metrics import bleu, meteor
from saywhy.metrics.bleu import bleu_of_counts
from saywhy.metrics.meteor import meteor_of_counts
from saywhy.metrics.word_precision import word_precision
from saywhy.reports.score_differences import (
    HIGHER,
    LOWER,
    NEITHER,
    ScoreDifference,
    add_meteor,
    score_differences,
    score_table,
)

IMAGES, SAMPLES = 14, 60
WORDS = ["a", "a", "man", "dog", "cat", "table", "pizza", "sits", "on", "the", "grass", "with"]
OBJECTS = ImageObjects(tuple(frozenset(["person", "dog"] if n % 3 else ["cat"]) for n in range(IMAGES)))
TRAINING = {"dog": 9, "man": 7, "table": 5, "zebra": 1}
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="METEOR needs Java")


def captions(seed: int) -> list[list[str]]:
    rng = random.Random(seed)
    return [rng.choices(WORDS, k=rng.randint(1, 9)) for _ in range(IMAGES)]


A, B = captions(1), captions(2)
REFERENCES = [list(group) for group in zip(captions(3), captions(4), captions(5), strict=True)]


def tables():
    return [score_table(side, REFERENCES, chair(side, OBJECTS).per_caption, None, TRAINING) for side in (A, B)]


def mean(values) -> float:
    return 100 * audits.mean(list(values))


def slow_cider(candidates, groups, indices) -> float:
    """Document frequencies are those of all images."""
    return mean(metrics.cider(candidates, groups, documents=REFERENCES))


def slow_chair(candidates, groups, indices) -> float:
    score = chair(candidates, ImageObjects(tuple(OBJECTS.sets[index] for index in indices)))
    return 100 * score.instance


def slow_words(field: str):
    return lambda candidates, groups, _: 100 * getattr(word_precision(candidates, groups, TRAINING), field)


SLOW_SCORES = {
    "mAP, frequent words": slow_words("precision"),
    "recall, frequent words": slow_words("recall"),
    "F1, frequent words": slow_words("f1"),
    "BLEU-1": lambda candidates, groups, _: 100 * metrics.bleu(candidates, groups)[0][0],
    "BLEU-4": lambda candidates, groups, _: 100 * metrics.bleu(candidates, groups)[0][3],
    "ROUGE-L": lambda candidates, groups, _: mean(metrics.rouge_l(candidates, groups)),
    "CIDEr": slow_cider,
    "CHAIR-i": slow_chair,
    "words per caption": lambda candidates, *_: audits.mean([len(words) for words in candidates]),
    "bad endings": lambda candidates, *_: mean(words[-1] in ("a", "the", "on", "with") for words in candidates),
}


@pytest.mark.parametrize("name", SLOW_SCORES)
def test_interval_is_that_of_a_bootstrap_that_scores_every_sample_again(name: str) -> None:
    bootstrap = Bootstrap(range(IMAGES), SAMPLES)
    row = next(row for row in score_differences(tables(), bootstrap) if row.name == name)
    slow = SLOW_SCORES[name]
    everything = range(IMAGES)
    assert row.a == pytest.approx(slow(A, REFERENCES, everything), abs=1e-9)
    assert row.b == pytest.approx(slow(B, REFERENCES, everything), abs=1e-9)
    assert row.difference.value == pytest.approx(row.b - row.a, abs=1e-9)
    samples = reference.sampled_differences(slow, A, B, REFERENCES, bootstrap.weights)
    expected = [audits.quantile(samples, share) for share in (0.025, 0.975)]
    np.testing.assert_allclose([row.difference.low, row.difference.high], expected, atol=1e-9)
    assert row.difference.n == IMAGES


def test_bleu_of_summed_counts_is_bleu_of_the_corpus() -> None:
    score = bleu(A, REFERENCES)
    np.testing.assert_allclose(bleu_of_counts(score.counts.sum(0)), score.bleu)
    np.testing.assert_allclose(bleu_of_counts(score.counts), score.per_caption)


@needs_java
def test_meteor_of_summed_counts_is_what_its_program_computes() -> None:
    pytest.importorskip("pycocoevalcap.meteor.meteor")
    identical = ["a", "dog", "runs"]
    candidates, groups = [*A, identical, [], ["running"]], [*REFERENCES, [identical], [["dog"]], [["runs"]]]
    score = meteor(candidates, groups)
    assert score.counts is not None
    np.testing.assert_allclose(meteor_of_counts(score.counts), score.per_caption, atol=1e-12)
    assert meteor_of_counts(score.counts.sum(0)) == pytest.approx(score.meteor, abs=1e-12)
    assert score.per_caption[IMAGES] == 1


@needs_java
def test_meteor_is_added_before_rouge_and_scores_each_side_by_its_own_captions() -> None:
    pytest.importorskip("pycocoevalcap.meteor.meteor")
    half = [*A[:7], *B[7:]]
    both = [score_table(side, REFERENCES, chair(side, OBJECTS).per_caption, None) for side in (A, half)]
    notes: list[str] = []
    add_meteor(both, (A, half), REFERENCES, notes)
    assert notes == []
    assert list(both[0])[3:6] == ["BLEU-4", "METEOR", "ROUGE-L"]
    for table, side in zip(both, (A, half), strict=True):
        assert table["METEOR"].value == pytest.approx(100 * meteor(side, REFERENCES).meteor)


def test_a_score_without_a_value_is_left_out() -> None:
    nothing = [["on", "grass"]] * 3
    table = score_table(
        nothing, [[["on", "grass"]]] * 3, chair(nothing, ImageObjects((frozenset(),) * 3)).per_caption, None
    )
    names = [row.name for row in score_differences([table, table], Bootstrap(range(3), 20))]
    assert "CHAIR-s" in names
    assert "CHAIR-i" not in names
    assert "recall of objects" not in names


@pytest.mark.parametrize(
    ("better", "value", "verdict"),
    [(HIGHER, 2.0, "B better"), (HIGHER, -2.0, "A better"), (LOWER, -2.0, "B better"), (NEITHER, -2.0, "lower")],
)
def test_verdict_depends_on_which_values_are_better(better: int, value: float, verdict: str) -> None:
    decided = ScoreDifference("x", 0.0, value, Estimate(value, value - 1, value + 1, 9), better)
    undecided = ScoreDifference("x", 0.0, value, Estimate(value, value - 3, value + 3, 9), better)
    assert (decided.verdict, decided.excludes_zero) == (verdict, True)
    assert (undecided.verdict, undecided.excludes_zero) == ("", False)
    assert undecided.as_dict()["verdict"] is None


def test_a_thousand_samples_of_five_thousand_images_take_seconds() -> None:
    import time

    rng = np.random.default_rng(0)
    counts = rng.integers(0, 9, (5000, 20)).astype(float)
    began = time.process_time()
    Bootstrap(range(5000), 1000).of_sums(counts, lambda sums: bleu_of_counts(sums[..., :10])[..., 3])
    assert time.process_time() - began < 5
