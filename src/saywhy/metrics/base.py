"""The input of every metric, one candidate and some references per image, and the base class of metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from saywhy.data.tokenizer import tokenize
from saywhy.errors import UserError

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Words: TypeAlias = Sequence[str]
#: A caption: a string, which `tokenize` splits, or a sequence of words, which is used as it is.
TextOrWords: TypeAlias = str | Words

Score = TypeVar("Score")


class MetricUnavailable(UserError):
    """A metric whose program, or Java, is missing or fails; the message says what to install."""


def as_words(caption: TextOrWords) -> Words:
    """The words of a caption: text is tokenised, words are returned as they are.

    >>> as_words("A dog runs."), as_words(["a", "dog"])
    (['a', 'dog', 'runs'], ['a', 'dog'])
    """
    return tokenize(caption) if isinstance(caption, str) else caption


def read_captions(
    candidates: Sequence[TextOrWords], references: Sequence[Sequence[TextOrWords]]
) -> tuple[list[Words], list[list[Words]]]:
    """Check that every candidate has references, and tokenise captions that are text."""
    if isinstance(candidates, str) or any(isinstance(group, str) for group in references):
        raise UserError("captions must be a list of candidates and a list of lists of references, not one text")
    if len(candidates) != len(references):
        raise UserError(
            f"{len(candidates)} candidates but references for {len(references)} images: give one candidate per image"
        )
    if not candidates:
        raise UserError("no captions to score: give at least one candidate")
    for index, group in enumerate(references):
        if not group:
            raise UserError(f"image {index} (counted from 0) has no reference caption: give at least one")
    return list(map(as_words, candidates)), [list(map(as_words, group)) for group in references]


class Metric(ABC, Generic[Score]):
    """A metric that is updated batch by batch: `update` for each batch, then `compute`; `reset` starts again."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Remove all captions."""
        self._candidates: list[Words] = []
        self._references: list[list[Words]] = []

    def update(self, candidates: Sequence[TextOrWords], references: Sequence[Sequence[TextOrWords]]) -> None:
        """Add a batch of captions and their references."""
        words, reference_words = read_captions(candidates, references)
        self._candidates += words
        self._references += reference_words

    @abstractmethod
    def compute(self) -> Score:
        """The score of all captions since the last `reset`."""
