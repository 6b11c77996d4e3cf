"""ROUGE-L (Lin, 2004), as captioning reports it: the longest common subsequence, leaning towards recall.

    P = max_r LCS(c, r) / |c|        R = max_r LCS(c, r) / |r|        each over all references r on its own
    ROUGE-L = (1 + β²) P R / (R + β² P),   β = 1.2;        the mean over all images

The LCS is found with one addition a word: bit i of `row` is 0 where the i-th word of the candidate lengthens
the common subsequence (Hyyrö, "Bit-parallel LCS-length computation revisited", 2004).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from saywhy.metrics.base import CaptionLike, Floats, Metric, Words, read

_BETA = 1.2
_NO_WORDS = ("",)  # the standard counts an empty caption as one empty word


@dataclass(frozen=True)
class RougeScore:
    """ROUGE-L as a fraction: the mean, and each caption's own."""

    rouge_l: float
    per_caption: Floats = field(repr=False, compare=False)  # (n,)


def rouge_l(candidates: Sequence[CaptionLike], references: Sequence[Sequence[CaptionLike]]) -> RougeScore:
    """Score candidates against their references.

    >>> round(rouge_l(["A dog runs."], [["A brown dog runs fast.", "The dog."]]).rouge_l, 3)
    0.718
    """
    pairs = zip(*read(candidates, references), strict=True)
    scores = np.array([_score(candidate, group) for candidate, group in pairs])
    return RougeScore(float(scores.mean()), scores)


class RougeL(Metric[RougeScore]):
    """ROUGE-L fed batch by batch; see `rouge_l`."""

    def compute(self) -> RougeScore:
        """Score everything seen since the last `reset`."""
        return rouge_l(self._candidates, self._references)


def _score(candidate: Words, references: Sequence[Words]) -> float:
    candidate = candidate or _NO_WORDS
    places = _places(candidate)
    precision = recall = 0.0
    for reference in references:
        reference = reference or _NO_WORDS
        common = _common_length(places, len(candidate), reference)
        precision = max(precision, common / len(candidate))
        recall = max(recall, common / len(reference))
    if not precision:
        return 0.0
    return (1 + _BETA**2) * precision * recall / (recall + _BETA**2 * precision)


def _places(words: Words) -> Mapping[str, int]:
    """For each word the set of its places, as the bits of a number."""
    places: dict[str, int] = defaultdict(int)
    for place, word in enumerate(words):
        places[word] |= 1 << place
    return places


def _common_length(places: Mapping[str, int], length: int, other: Words) -> int:
    """Length of the longest common subsequence of the words at `places` and `other`."""
    row = full = (1 << length) - 1
    for word in other:
        if word in places:
            matches = row & places[word]
            row = (row + matches) | (row - matches)
    return length - (row & full).bit_count()
