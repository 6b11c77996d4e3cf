"""A caption as numbers, before it is words."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Hypothesis:
    """Word numbers without markers, and how they came about.

    Attributes:
        words: numbers of the T words.
        logprobs: T + 1 log-probabilities, of the words and of `<end>`.
        score: what the length rule makes of their sum.
        alpha: attention while choosing each word, (T, [heads,] L).
        beta: the gate at each word, (T,), or None.
    """

    words: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float
    alpha: np.ndarray
    beta: np.ndarray | None
