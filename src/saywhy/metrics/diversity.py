"""How much the captions of a split differ from one another; references are not used.

- Distinct words: the number of different words in all captions.
- Unique captions: the number of different captions, as a share of all. Ten images with the same caption count as one.
- Length: the mean number of words.
- Self-BLEU (Zhu et al. 2018, "Texygen", https://arxiv.org/abs/1802.01886): the mean over the captions of the BLEU-4
  of each with all others as its references. Lower means more diverse.

BLEU-4 of one caption is as in `bleu`: clipped counts, the closest length of the others, and the tiny constants of the
coco-caption tools in place of smoothing. Texygen smooths with NLTK, which changes captions without a common 4-gram.
More captions are more references and so a higher self-BLEU: compare it only between equal numbers of captions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhy.errors import UserError
from saywhy.metrics.base import Floats, Ints, TextOrWords, Words, as_words
from saywhy.metrics.bleu import bleu_of_counts
from saywhy.metrics.ngrams import Corpus, Counts
from saywhy.metrics.objects import Share

_ORDERS = 4


@dataclass(frozen=True)
class Diversity:
    """How much captions differ.

    Attributes:
        distinct_words: different words in all captions.
        unique: different captions.
        mean_length: words per caption.
        self_bleu: mean BLEU-4 of each caption against all others, as a fraction; None for a single caption.
    """

    distinct_words: int
    unique: Share
    mean_length: float
    self_bleu: float | None

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, shares and self-BLEU in percent."""
        percent = None if self.self_bleu is None else 100 * self.self_bleu
        return {
            "distinct_words": self.distinct_words,
            "unique_captions": self.unique.as_dict(),
            "mean_length": self.mean_length,
            "self_bleu": percent,
        }


def diversity(captions: Sequence[TextOrWords]) -> Diversity:
    """Measure captions of different images.

    >>> found = diversity(["A dog runs on grass.", "A dog runs on grass.", "A cat."])
    >>> found.distinct_words, found.unique.count, found.mean_length, round(found.self_bleu, 3)
    (6, 2, 4.0, 0.667)
    """
    words = _words(captions)
    return Diversity(
        distinct_words=len(set().union(*words)),
        unique=Share(len(set(map(tuple, words))), len(words)),
        mean_length=sum(map(len, words)) / len(words),
        self_bleu=float(self_bleu(words).mean()) if len(words) > 1 else None,
    )


def self_bleu(captions: Sequence[TextOrWords]) -> Floats:
    """BLEU-4 (n,) of each caption against all others, as a fraction.

    >>> self_bleu(["a dog runs on grass", "a dog runs on grass", "two cats"]).round(3).tolist()
    [1.0, 1.0, 0.0]
    """
    words = _words(captions)
    if len(words) < 2:
        raise UserError("self-BLEU compares captions with one another: give at least two")
    corpus = Corpus(words, [[]] * len(words))
    correct = np.zeros((len(words), _ORDERS), np.int64)
    for n, counts in enumerate(corpus.ngrams(_ORDERS)):
        clipped = np.minimum(counts.count, _largest_count_elsewhere(counts))
        correct[:, n] = np.bincount(counts.caption, clipped, len(words))
    guessed = np.maximum(0, corpus.length[:, None] - np.arange(_ORDERS))
    closest = _closest_length_elsewhere(corpus.length)
    scores: Floats = bleu_of_counts(np.column_stack([correct, guessed, corpus.length, closest]))[:, -1]
    return scores


def _words(captions: Sequence[TextOrWords]) -> list[Words]:
    if isinstance(captions, str) or not len(captions):
        raise UserError("captions must be a list of at least one caption")
    return list(map(as_words, captions))


def _largest_count_elsewhere(counts: Counts) -> Ints:
    """For each row (n-gram, caption), the largest count of the n-gram in any other caption; 0 if in none."""
    if not len(counts.gram):
        return counts.count
    first = np.flatnonzero(np.diff(counts.gram, prepend=-1))  # the rows of an n-gram are contiguous
    largest = np.maximum.reduceat(counts.count, first)[counts.gram]
    is_largest = counts.count == largest
    second = np.maximum.reduceat(np.where(is_largest, 0, counts.count), first)[counts.gram]
    alone = is_largest & (np.add.reduceat(is_largest.astype(np.int64), first)[counts.gram] == 1)
    elsewhere: Ints = np.where(alone, second, largest)
    return elsewhere


def _closest_length_elsewhere(length: Ints) -> Ints:
    """For each caption, the length of another one that differs least from its own; of two equally close the shorter."""
    present, inverse, captions = np.unique(length, return_inverse=True, return_counts=True)
    closest = present.copy()
    for index in np.flatnonzero(captions == 1).tolist():
        others = np.delete(present, index)
        closest[index] = others[np.argmin(np.abs(others - present[index]))]  # the first minimum is the shorter
    return closest[inverse]
