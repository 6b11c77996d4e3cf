"""Scores of two sets of captions of the same images, A and B, and their differences with confidence intervals.

Every score is a function of sums over images, so that a bootstrap resamples images without scoring captions again:

    s(A) = f(Σ_i x_i)                x_i: counts of image i, such as matched n-grams for BLEU; (score, 1) for a mean
    difference = s(B) − s(A)

Intervals are 95 % percentile bootstraps (Efron, 1979) of the difference. They are paired: A and B are scored on the
same resampled images. They cover the choice of images, not that of the training seed. The document frequencies of
CIDEr-D stay those of all images.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from saywhy.audits.statistics import Bootstrap, Estimate
from saywhy.hallucination.chair import CaptionObjects
from saywhy.metrics.base import Floats, MetricUnavailable, Words
from saywhy.metrics.bleu import bleu, bleu_of_counts
from saywhy.metrics.cider import cider
from saywhy.metrics.endings import has_bad_ending
from saywhy.metrics.meteor import meteor, meteor_of_counts
from saywhy.metrics.objects import object_score
from saywhy.metrics.rouge import rouge_l
from saywhy.metrics.word_precision import frequent_objects, word_precision

SAMPLES = 1000
HIGHER, LOWER, NEITHER = 1, -1, 0
"""Which values of a score are better."""
OfSums: TypeAlias = Callable[[np.ndarray], np.ndarray]
ScoreTable: TypeAlias = "dict[str, CountedScore]"


@dataclass(frozen=True)
class ScoreDifference:
    """A score of A and of B, in percent unless it counts words, and the difference B − A with its interval.

    Attributes:
        name: of the score.
        a: its value for A.
        b: its value for B.
        difference: B − A.
        better: `HIGHER` or `LOWER` if such values are better, else `NEITHER`.
    """

    name: str
    a: float
    b: float
    difference: Estimate
    better: int

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval of the difference lies on one side of 0."""
        return self.difference.low > 0 or self.difference.high < 0

    @property
    def verdict(self) -> str:
        """What the interval shows: "A better", "B better"; "higher", "lower" where neither is better; "" if nothing.

        >>> ScoreDifference("CHAIR-s", 9.0, 7.0, Estimate(-2.0, -3.0, -1.0, 100), LOWER).verdict
        'B better'
        """
        if not self.excludes_zero:
            return ""
        if self.better == NEITHER:
            return "higher" if self.difference.value > 0 else "lower"
        return "B better" if self.difference.value * self.better > 0 else "A better"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        estimate = self.difference.as_dict()
        return {
            **{"name": self.name, "a": self.a, "b": self.b, "difference": estimate["value"]},
            **{"low": estimate["low"], "high": estimate["high"]},
            **{"excludes_zero": self.excludes_zero, "verdict": self.verdict or None},
        }


@dataclass(frozen=True)
class CountedScore:
    """A score of one set of captions: the counts of each image, and the score of their sums."""

    counts: Floats  # (N, K)
    of_sums: OfSums  # (…, K) ↦ (…)
    better: int = HIGHER

    @property
    def value(self) -> float:
        """The score of all captions."""
        return float(self.of_sums(self.counts.sum(axis=0)))


def score_table(
    captions: Sequence[Words],
    references: Sequence[Sequence[Words]],
    named: Sequence[CaptionObjects],
    person_boxes: Sequence[bool] | None = None,
    training_counts: Mapping[str, int] | None = None,
) -> ScoreTable:
    """All scores of one set of captions, by name, in the order in which they are shown.

    Args:
        captions: one per image.
        references: the captions by people of each image.
        named: the objects that each caption names.
        person_boxes: whether each image has a person's box; None if there are no boxes.
        training_counts: mentions of objects in the training captions; None if these are not known.
    """
    bleu_counts = bleu(captions, references).counts.astype(float)
    table = {f"BLEU-{n}": CountedScore(bleu_counts, _bleu_of_order(n)) for n in range(1, 5)}
    table["ROUGE-L"] = _mean(rouge_l(captions, references).per_caption)
    table["CIDEr"] = _mean(cider(captions, references).per_caption)
    hallucinated = np.array([len(caption.hallucinated) for caption in named])
    mentioned = np.array([len(caption.mentioned) for caption in named])
    table["CHAIR-s"] = _mean(hallucinated > 0, LOWER)
    table["CHAIR-i"] = _share(hallucinated, mentioned, LOWER)
    if training_counts:
        table |= _frequent_word_scores(captions, references, training_counts)
    boxes = [None] * len(captions) if person_boxes is None else [[box] for box in person_boxes]
    objects = [
        object_score([words], [group], box) for words, group, box in zip(captions, references, boxes, strict=True)
    ]
    recall, persons = ([score.recall for score in objects], [score.invented_persons for score in objects])
    table["recall of objects"] = _share([share.count for share in recall], [share.of for share in recall], HIGHER)
    table["invented persons"] = _share([share.count for share in persons], [share.of for share in persons], LOWER)
    table["bad endings"] = _mean([has_bad_ending(words) for words in captions], LOWER)
    table["words per caption"] = _mean([len(words) for words in captions], NEITHER, scale=1)
    return table


def _frequent_word_scores(
    captions: Sequence[Words], references: Sequence[Sequence[Words]], training_counts: Mapping[str, int]
) -> ScoreTable:
    """Precision (the paper's mAP), recall and F1 of frequent object words, the means over words."""
    words = {word: training_counts[word] for word in frequent_objects(training_counts)}
    scores = [
        word_precision([caption], [group], words).words for caption, group in zip(captions, references, strict=True)
    ]
    counts = np.array([[(word.tp, word.fp, word.fn) for word in image] for image in scores], float)  # (N, words, 3)
    names = {"mAP, frequent words": (1, 1, 0), "recall, frequent words": (1, 0, 1), "F1, frequent words": (2, 1, 1)}
    flat = counts.reshape(len(captions), -1)
    return {name: CountedScore(flat, _mean_over_words(np.array(weights))) for name, weights in names.items()}


def _mean_over_words(weights: np.ndarray) -> OfSums:
    """The mean over words of w₁ TP / (w₁ TP + w₂ FP + w₃ FN), without the words whose denominator is 0."""

    def of_sums(sums: np.ndarray) -> np.ndarray:
        counts = sums.reshape(*sums.shape[:-1], -1, 3) * weights  # (…, words, 3)
        total = counts.sum(axis=-1)
        ratios = np.divide(counts[..., 0], total, out=np.zeros(total.shape), where=total != 0)
        known = (total != 0).sum(axis=-1)
        return np.divide(100 * ratios.sum(axis=-1), known, out=np.full(known.shape, np.nan), where=known != 0)

    return of_sums


def _bleu_of_order(n: int) -> OfSums:
    return lambda sums: 100 * bleu_of_counts(sums)[..., n - 1]


def _mean(values: Sequence[float] | np.ndarray, better: int = HIGHER, scale: float = 100) -> CountedScore:
    """The mean over captions, by default in percent."""
    return _share(values, np.ones(len(values)), better, scale)


def _share(
    counts: Sequence[float] | np.ndarray, of: Sequence[float] | np.ndarray, better: int, scale: float = 100
) -> CountedScore:
    """scale · Σ counts / Σ of; NaN where the denominator is 0."""

    def of_sums(sums: np.ndarray) -> np.ndarray:
        count, total = sums[..., 0], sums[..., 1]
        return np.divide(scale * count, total, out=np.full(np.shape(count), np.nan), where=total != 0)

    return CountedScore(np.column_stack([counts, of]).astype(float), of_sums, better)


def add_meteor(
    tables: Sequence[ScoreTable],
    captions: Sequence[Sequence[Words]],
    references: Sequence[Sequence[Words]],
    notes: list[str],
) -> None:
    """Add METEOR to both tables before ROUGE-L. One Java process scores both; a caption of both is scored once."""
    first, second = captions
    changed = [index for index, words in enumerate(second) if list(words) != list(first[index])]
    try:
        scored = meteor([*first, *(second[i] for i in changed)], [*references, *(references[i] for i in changed)])
    except MetricUnavailable as error:
        notes.append(f"METEOR left out: {error}")
        return
    if scored.counts is None:
        notes.append("METEOR left out: the program's answer has no counts to resample")
        return
    counts = scored.counts[: len(first)]
    for table, own in zip(tables, (counts, counts.copy()), strict=True):
        following = {name: table.pop(name) for name in list(table)[4:]}
        table |= {"METEOR": CountedScore(own, lambda sums: 100 * meteor_of_counts(sums)), **following}
    tables[1]["METEOR"].counts[changed] = scored.counts[len(first) :]


def score_differences(tables: Sequence[ScoreTable], bootstrap: Bootstrap) -> tuple[ScoreDifference, ...]:
    """The difference of every score; one without a value, such as a share of no images, is left out."""
    first, second = tables
    rows = (_difference(name, first[name], second[name], bootstrap) for name in first)
    return tuple(row for row in rows if not np.isnan(row.difference.value))


def _difference(name: str, a: CountedScore, b: CountedScore, bootstrap: Bootstrap) -> ScoreDifference:
    width = a.counts.shape[1]
    counts = np.hstack([a.counts, b.counts])
    difference = bootstrap.of_sums(counts, lambda sums: b.of_sums(sums[..., width:]) - a.of_sums(sums[..., :width]))
    return ScoreDifference(name, a.value, b.value, difference, a.better)
