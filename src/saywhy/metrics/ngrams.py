"""The n-grams of a whole corpus, counted at once: what CIDEr-D is made of.

All captions lie end to end in one array of word numbers, an image's candidate first, then its references.
An n-gram is a number too, made of the number of its first n - 1 words and that of its last. One sort brings
equal n-grams together, and the metric is left with sums over runs of the sorted array.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from saywhy.metrics.base import Ints, Words


@dataclass(frozen=True)
class Counts:
    """The n-grams of one order: a row for each n-gram of each caption, sorted by n-gram, then by caption."""

    gram: Ints  # (rows,) the n-gram's number, 0, 1, 2 ... without gaps
    caption: Ints  # (rows,) where it stands
    count: Ints  # (rows,) how often
    position: Ints  # (rows,) where in the text it stands first
    image: Ints  # (rows,)
    is_candidate: NDArray[np.bool_]  # (rows,)

    @cached_property
    def starts(self) -> Ints:
        """First row of each run of one n-gram in one image; a candidate's row comes before the others."""
        return _run_starts(self.gram, self.image)

    @cached_property
    def run(self) -> Ints:
        """The run each row belongs to."""
        sizes = np.diff(self.starts, append=len(self.gram))
        return np.repeat(np.arange(len(self.starts)), sizes)

    @cached_property
    def in_reference(self) -> NDArray[np.bool_]:
        """Whether a reference of the image has the n-gram, for each run."""
        # A run with no more than the candidate's row is that row alone.
        sizes = np.diff(self.starts, append=len(self.gram))
        return sizes > self.is_candidate[self.starts]


class Corpus:
    """Candidates and references, laid end to end."""

    def __init__(self, candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> None:
        captions = [c for pair in zip(candidates, references, strict=True) for c in (pair[0], *pair[1])]
        self.images = len(candidates)
        self.text: list[str] = list(chain.from_iterable(captions))
        self.length: Ints = np.fromiter(map(len, captions), np.int64, len(captions))  # (captions,)
        group = np.fromiter(map(len, references), np.int64, self.images) + 1
        self.image: Ints = np.repeat(np.arange(self.images), group)  # (captions,)
        self.candidate: Ints = np.cumsum(group) - group  # (images,) the caption that is the candidate
        self.is_candidate = np.zeros(len(captions), bool)
        self.is_candidate[self.candidate] = True

    def ngrams(self, longest: int) -> Iterator[Counts]:
        """Count the n-grams of 1, 2, ... `longest` words."""
        numbers = {word: number for number, word in enumerate(dict.fromkeys(self.text))}
        word = np.fromiter(map(numbers.__getitem__, self.text), np.int64, len(self.text))
        caption = np.repeat(np.arange(len(self.length)), self.length)
        left = np.repeat(np.cumsum(self.length), self.length) - np.arange(len(word))  # words to the caption's end
        gram, position = np.zeros_like(word), np.arange(len(word))
        for n in range(1, longest + 1):
            position = position[left[position] >= n]
            key = gram[position] * len(numbers) + word[position + n - 1]
            order = np.argsort(key, kind="stable")
            ordered = position[order]
            rank = _ranks(key[order])
            gram[ordered] = rank
            yield self._count(rank, caption[ordered], ordered)

    def _count(self, gram: Ints, caption: Ints, position: Ints) -> Counts:
        first = _run_starts(gram, caption)
        at = caption[first]
        count = np.diff(first, append=len(gram))
        return Counts(gram[first], at, count, position[first], self.image[at], self.is_candidate[at])


def _run_starts(*keys: Ints) -> Ints:
    """Where a new value begins in sorted arrays."""
    new = np.zeros(len(keys[0]), bool)
    new[:1] = True
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(new)


def _ranks(key: Ints) -> Ints:
    """Number the values of a sorted array 0, 1, 2, ... without gaps."""
    new = np.zeros(len(key), np.int64)
    new[_run_starts(key)[1:]] = 1
    return np.cumsum(new)
