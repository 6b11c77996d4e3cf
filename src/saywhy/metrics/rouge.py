"""ROUGE-L (Lin, 2004) as captioning papers report it: longest common subsequence, recall weighted above precision.

    P = max_r LCS(c, r) / |c|        R = max_r LCS(c, r) / |r|        maxima over all references r, each on its own
    ROUGE-L = (1 + β²) P R / (R + β² P),   β = 1.2;        the mean over all images

The LCS takes one addition per word: bit i of `row` is 0 where the i-th word of the candidate lengthens the common
subsequence (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from saywhy.metrics.base import Floats, Metric, TextOrWords, Words, read_captions

_BETA = 1.2
_NO_WORDS = ("",)  # the coco-caption tools count an empty caption as one empty word


@dataclass(frozen=True)
class RougeScore:
    """ROUGE-L as a fraction: the mean, and the score of each caption."""

    rouge_l: float
    per_caption: Floats = field(repr=False, compare=False)  # (n,)


def rouge_l(candidates: Sequence[TextOrWords], references: Sequence[Sequence[TextOrWords]]) -> RougeScore:
    """Score candidates against their references.

    >>> round(rouge_l(["A dog runs."], [["A brown dog runs fast.", "The dog."]]).rouge_l, 3)
    0.718
    """
    pairs = zip(*read_captions(candidates, references), strict=True)
    scores = np.array([_score(candidate, group) for candidate, group in pairs])
    return RougeScore(float(scores.mean()), scores)


class RougeL(Metric[RougeScore]):
    """ROUGE-L, updated batch by batch; see `rouge_l`."""

    def compute(self) -> RougeScore:
        """The score of all captions since the last `reset`."""
        return rouge_l(self._candidates, self._references)


def _score(candidate: Words, references: Sequence[Words]) -> float:
    candidate = candidate or _NO_WORDS
    positions = _positions(candidate)
    precision = recall = 0.0
    for reference in references:
        reference = reference or _NO_WORDS
        common = _common_length(positions, len(candidate), reference)
        precision = max(precision, common / len(candidate))
        recall = max(recall, common / len(reference))
    if not precision:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def _positions(words: Words) -> Mapping[str, int]:
    """The set of positions of each word, as the bits of an integer."""
    positions: dict[str, int] = defaultdict(int)
    for position, word in enumerate(words):
        positions[word] |= 1 << position
    return positions


def _common_length(positions: Mapping[str, int], length: int, other: Words) -> int:
    """Length of the longest common subsequence of `length` words with these positions and the words `other`."""
    row = full = (1 << length) - 1
    for word in other:
        if word in positions:
            matches = row & positions[word]
            row = (row + matches) | (row - matches)
    return length - (row & full).bit_count()
