"""N-gram counts of a corpus, vectorised, for CIDEr-D and BLEU.

All captions are concatenated in one array of word numbers, the candidate of each image before its references.
An n-gram is a number too, computed from the number of its first n - 1 words and that of its last word. Sorting
puts equal n-grams next to each other, so that the metric consists of sums over runs of the sorted array.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, count

import numpy as np
from numpy.typing import NDArray

from saywhy.metrics.base import Ints, Words


@dataclass(frozen=True)
class Counts:
    """The n-grams of one order: one row per n-gram and caption, sorted by n-gram, then by caption."""

    gram: Ints  # (rows,) number of the n-gram: 0, 1, 2 ... without gaps
    caption: Ints  # (rows,) number of the caption that contains it
    count: Ints  # (rows,) its count in that caption
    position: Ints  # (rows,) index of its first occurrence in the text
    image: Ints  # (rows,) number of the caption's image
    is_candidate: NDArray[np.bool_]  # (rows,) whether the caption is a candidate

    @cached_property
    def starts(self) -> Ints:
        """First row of each run of one n-gram in one image; the candidate's row comes first in its run."""
        return run_starts(self.gram, self.image)

    @cached_property
    def run(self) -> Ints:
        """The number of the run that each row belongs to."""
        sizes = np.diff(self.starts, append=len(self.gram))
        return np.repeat(np.arange(len(self.starts)), sizes)

    @cached_property
    def in_reference(self) -> NDArray[np.bool_]:
        """Whether a reference of the image contains the n-gram, for each run."""
        # A run without references consists of the candidate's row only.
        sizes = np.diff(self.starts, append=len(self.gram))
        return sizes > self.is_candidate[self.starts]


class Corpus:
    """Candidates and references, concatenated."""

    def __init__(self, candidates: Sequence[Words], references: Sequence[Sequence[Words]]) -> None:
        pairs = zip(candidates, references, strict=True)
        captions = [caption for candidate, group in pairs for caption in (candidate, *group)]
        self.images = len(candidates)
        self.text: list[str] = list(chain.from_iterable(captions))
        self.length: Ints = np.fromiter(map(len, captions), np.int64, len(captions))  # (captions,)
        group = np.fromiter(map(len, references), np.int64, self.images) + 1
        self.image: Ints = np.repeat(np.arange(self.images), group)  # (captions,)
        self.candidate: Ints = np.cumsum(group) - group  # (images,) number of the image's candidate among the captions
        self.is_candidate = np.zeros(len(captions), bool)
        self.is_candidate[self.candidate] = True

    @cached_property
    def word(self) -> Ints:
        """The number of each word of the text, in the order of their first occurrence."""
        numbers: defaultdict[str, int] = defaultdict(count().__next__)
        return np.fromiter(map(numbers.__getitem__, self.text), np.int64, len(self.text))

    @cached_property
    def caption(self) -> Ints:
        """The caption of each word of the text."""
        return np.repeat(np.arange(len(self.length)), self.length)

    @cached_property
    def remaining(self) -> Ints:
        """From each word of the text, itself included, the number of words to the end of its caption."""
        return np.repeat(np.cumsum(self.length), self.length) - np.arange(len(self.text))

    def ngrams(self, longest: int) -> Iterator[Counts]:
        """Count the n-grams of 1, 2, ... `longest` words."""
        words = int(self.word.max(initial=0)) + 1
        gram, position = np.zeros_like(self.word), np.arange(len(self.word))
        for n in range(1, longest + 1):
            position = position[self.remaining[position] >= n]
            key, ordered = sort_by_key(gram[position] * words + self.word[position + n - 1], position)
            rank = _ranks(key)
            gram[ordered] = rank
            yield self._count(rank, self.caption[ordered], ordered)

    def _count(self, gram: Ints, caption: Ints, position: Ints) -> Counts:
        first = run_starts(gram, caption)
        captions = caption[first]
        sizes = np.diff(first, append=len(gram))
        return Counts(gram[first], captions, sizes, position[first], self.image[captions], self.is_candidate[captions])


def sort_by_key(key: Ints, position: Ints) -> tuple[Ints, Ints]:
    """Keys in ascending order and, among equal keys, their positions in ascending order.

    Both are packed into one number where they fit: numpy sorts numbers several times faster than it finds their order.
    """
    bits = int(position.max(initial=0)).bit_length()
    if int(key.max(initial=0)).bit_length() + bits > 62:
        order = np.lexsort((position, key))
        return key[order], position[order]
    packed = np.sort(key << bits | position)
    return packed >> bits, packed & ((1 << bits) - 1)


def run_starts(*keys: Ints) -> Ints:
    """Indices at which a new combination of values begins in sorted arrays."""
    is_start = np.zeros(len(keys[0]), bool)
    is_start[:1] = True
    for key in keys:
        is_start[1:] |= key[1:] != key[:-1]
    return np.flatnonzero(is_start)


def _ranks(key: Ints) -> Ints:
    """The values of a sorted array, renumbered 0, 1, 2, ... without gaps."""
    increments = np.zeros(len(key), np.int64)
    increments[run_starts(key)[1:]] = 1
    return np.cumsum(increments)
