"""CIDEr-D (Vedantam, Zitnick and Parikh, 2015): TF-IDF weighted n-gram similarity of a caption to its references.

With c(g) the count of n-gram g in a caption, and df(g) the number of images, of N, with g in any reference,

    v(g) = c(g) · (log N - log max(1, df(g)))                    TF-IDF, for the candidate h and a reference r
    sim_n(h, r) = Σ_g min(v_h, v_r) v_r / (|v_h| |v_r|) · exp(-(l_h - l_r)² / 2σ²),      σ = 6
    CIDEr-D = 10 · mean over n = 1..4 and over the references of sim_n

The lengths l count bigrams, not words, as in the coco-caption tools, whose numbers papers report. The scale is
theirs too: papers print 100 times this value. With a single image N = 1, and every score is 0.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from saywhy.errors import UserError
from saywhy.metrics.base import Floats, Metric, TextOrWords, as_words, read_captions
from saywhy.metrics.ngrams import Corpus, Counts, run_starts

_SIGMA = 6.0
_ORDERS = 4


@dataclass(frozen=True)
class CiderScore:
    """CIDEr-D on its scale of 0 to 10: the mean, and the score of each caption."""

    cider: float
    per_caption: Floats = field(repr=False, compare=False)  # (n,)


@dataclass(frozen=True)
class DocumentFrequency:
    """The number of images whose references contain each n-gram, for example over the training set."""

    images: int
    counts: Mapping[tuple[str, ...], int] = field(repr=False)

    @classmethod
    def of(cls, references: Sequence[Sequence[TextOrWords]]) -> DocumentFrequency:
        """Count the n-grams of the references of many images.

        >>> DocumentFrequency.of([["a dog", "a brown dog"], ["a cat"]]).counts["a",]
        2
        """
        if not references:
            raise UserError("no references to count document frequencies: give those of at least one image")
        counts: Counter[tuple[str, ...]] = Counter()
        for group in references:
            words = [as_words(caption) for caption in group]
            counts.update({gram for caption in words for gram in _grams(caption)})
        return cls(len(references), dict(counts))


def cider(
    candidates: Sequence[TextOrWords],
    references: Sequence[Sequence[TextOrWords]],
    frequency: DocumentFrequency | None = None,
) -> CiderScore:
    """Score candidates against references. Document frequencies are those of the references unless given.

    >>> images = [["A dog runs.", "A brown dog is runner."], ["Two men sit.", "Men on a bench."]]
    >>> round(cider(["A dog is runner.", "A cat."], images).cider, 3)
    1.645
    """
    corpus = Corpus(*read_captions(candidates, references))
    similarity = np.zeros(len(corpus.length))  # (captions,) of each reference and its candidate
    for n, counts in enumerate(corpus.ngrams(_ORDERS), 1):
        similarity += _cosine(corpus, counts, _weights(corpus, counts, n, frequency))
    bigrams = np.maximum(0, corpus.length - 1)
    difference = bigrams - bigrams[corpus.candidate][corpus.image]
    similarity *= np.exp(-(difference**2) / (2 * _SIGMA**2))
    similarity[corpus.candidate] = 0
    group = np.bincount(corpus.image) - 1
    scores = 10 / _ORDERS * np.bincount(corpus.image, similarity) / group
    return CiderScore(float(scores.mean()), scores)


class Cider(Metric[CiderScore]):
    """CIDEr-D, updated batch by batch; see `cider`."""

    def __init__(self, frequency: DocumentFrequency | None = None) -> None:
        super().__init__()
        self.frequency = frequency

    def compute(self) -> CiderScore:
        """The score of all captions since the last `reset`."""
        return cider(self._candidates, self._references, self.frequency)


def _grams(words: Sequence[str]) -> list[tuple[str, ...]]:
    return [gram for n in range(1, _ORDERS + 1) for gram in zip(*(words[i:] for i in range(n)), strict=False)]


def _weights(corpus: Corpus, counts: Counts, n: int, frequency: DocumentFrequency | None) -> Floats:
    """log N - log df of each row of the counts."""
    if frequency is None:
        referenced = counts.gram[counts.starts][counts.in_reference]
        images, df = corpus.images, np.bincount(referenced, minlength=len(counts.gram))[counts.gram]
    else:
        first = run_starts(counts.gram)  # each n-gram is looked up once
        grams = (tuple(corpus.text[start : start + n]) for start in counts.position[first].tolist())
        df = np.fromiter((frequency.counts.get(gram, 0) for gram in grams), np.int64, len(first))[counts.gram]
        images = frequency.images
    return math.log(images) - np.log(np.maximum(1.0, df))


def _cosine(corpus: Corpus, counts: Counts, weight: Floats) -> Floats:
    """The clipped cosine similarity of every reference and its image's candidate, (captions,)."""
    value = counts.count * weight
    first = counts.starts
    shared = counts.is_candidate[first][counts.run] & ~counts.is_candidate
    clipped = np.minimum(value[first][counts.run], value) * value
    captions = len(corpus.length)
    dot = np.bincount(counts.caption, np.where(shared, clipped, 0.0), captions)
    norm = np.sqrt(np.bincount(counts.caption, value**2, captions))
    norms = norm * norm[corpus.candidate][corpus.image]
    return np.divide(dot, norms, out=np.zeros(captions), where=norms != 0)
