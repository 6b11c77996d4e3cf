"""What every metric takes: one candidate and a few references an image, as text or as words."""

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
#: A caption: a string is cut by `tokenize`; a sequence of words is taken as it is.
CaptionLike: TypeAlias = str | Words

Score = TypeVar("Score")


class MetricUnavailable(UserError):
    """A metric that needs something this machine does not have; the message says what to install."""


def as_words(caption: CaptionLike) -> Words:
    """Cut a text; leave words alone.

    >>> as_words("A dog runs."), as_words(["a", "dog"])
    (['a', 'dog', 'runs'], ['a', 'dog'])
    """
    return tokenize(caption) if isinstance(caption, str) else caption


def read(
    candidates: Sequence[CaptionLike], references: Sequence[Sequence[CaptionLike]]
) -> tuple[list[Words], list[list[Words]]]:
    """Check that candidates and references belong together, and cut whatever is text."""
    if isinstance(candidates, str) or any(isinstance(group, str) for group in references):
        raise UserError("captions must come as a list of candidates and a list of lists of references, not as text")
    if len(candidates) != len(references):
        raise UserError(f"{len(candidates)} candidates but references for {len(references)} images: one each, please")
    if not candidates:
        raise UserError("no captions to score: give at least one candidate")
    for place, group in enumerate(references):
        if not group:
            raise UserError(f"image {place} (counted from 0) has no reference caption: give at least one")
    return list(map(as_words, candidates)), [list(map(as_words, group)) for group in references]


class Metric(ABC, Generic[Score]):
    """A metric fed batch by batch: `update` as often as you like, then `compute`; `reset` to begin anew."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all captions seen so far."""
        self._candidates: list[Words] = []
        self._references: list[list[Words]] = []

    def update(self, candidates: Sequence[CaptionLike], references: Sequence[Sequence[CaptionLike]]) -> None:
        """Add a batch of captions and their references."""
        words, reference_words = read(candidates, references)
        self._candidates += words
        self._references += reference_words

    @abstractmethod
    def compute(self) -> Score:
        """Score everything seen since the last `reset`."""
