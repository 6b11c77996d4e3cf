"""BLEU (Papineni et al., 2002), as captioning reports it: over the corpus, from 1 to 4 words.

With c(g) how often n-gram g stands in a candidate, and r(g) the most it stands in any one of its references,

    p_n = (Σ min(c, r) + 1e-15) / (Σ c + 1e-9)        sums over all n-grams of all candidates
    BLEU-n = BP · (p_1 · … · p_n)^(1/n)
    BP = exp(1 - r/c) if c < r else 1                 c, r: words of all candidates, of all closest references

The closest reference is the one whose length differs least from the candidate's, the shorter one of two. The
two small constants are those of the coco-caption tools; they keep an empty candidate from dividing by 0.
Captioning papers have reported BLEU both with BP and without, so both are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat

import numpy as np

from saywhy.metrics.base import CaptionLike, Floats, Ints, Metric, Words, read

_TINY, _SMALL = 1e-15, 1e-9
_ORDERS = 4


@dataclass(frozen=True)
class BleuScore:
    """BLEU-1 to BLEU-4 as fractions, and what they are made of."""

    bleu: tuple[float, float, float, float]
    no_penalty: tuple[float, float, float, float]
    brevity_penalty: float
    candidate_length: int
    reference_length: int
    correct: tuple[int, ...]  # n-grams that a reference has too, for n = 1 ... 4
    guessed: tuple[int, ...]  # n-grams in all
    per_caption: Floats = field(repr=False, compare=False)  # (n, 4) BLEU of each candidate alone


def bleu(candidates: Sequence[CaptionLike], references: Sequence[Sequence[CaptionLike]]) -> BleuScore:
    """Score candidates against their references.

    >>> score = bleu(["A dog runs on grass."], [["A dog runs on the grass.", "A brown dog is runner."]])
    >>> [round(value, 3) for value in score.bleu]
    [1.0, 0.866, 0.794, 0.707]
    """
    pairs = list(zip(*read(candidates, references), strict=True))
    length = np.array([len(candidate) for candidate, _ in pairs])
    closest = np.array([_closest_length(len(candidate), group) for candidate, group in pairs])
    correct = np.array([_correct(candidate, group) for candidate, group in pairs])  # (n, 4)
    guessed = np.maximum(0, length[:, None] - np.arange(_ORDERS))  # (n, 4)
    sums, guesses, words, target = correct.sum(0), guessed.sum(0), int(length.sum()), int(closest.sum())
    plain = _geometric_means(sums[None], guesses[None])[0]
    penalty = float(_penalty(np.array(words), np.array(target)))
    return BleuScore(
        bleu=_four(plain * penalty),
        no_penalty=_four(plain),
        brevity_penalty=penalty,
        candidate_length=words,
        reference_length=target,
        correct=tuple(sums.tolist()),
        guessed=tuple(guesses.tolist()),
        per_caption=_geometric_means(correct, guessed) * _penalty(length, closest)[:, None],
    )


class Bleu(Metric[BleuScore]):
    """BLEU fed batch by batch; see `bleu`."""

    def compute(self) -> BleuScore:
        """Score everything seen since the last `reset`."""
        return bleu(self._candidates, self._references)


def _correct(candidate: Words, references: Sequence[Words]) -> list[int]:
    """For n = 1 ... 4, how many of the candidate's n-grams the references allow: Σ min(c, r).

    Each word of the candidate becomes one character, any other \\0, so that an n-gram is a piece of text, and
    finding it is left to `in`. An n-gram is only looked for where its first n - 1 words were found.
    """
    letters = dict(zip(dict.fromkeys(candidate), map(chr, count(2)), strict=False))
    texts = ["".join(map(letters.get, reference, repeat("\0"))) for reference in references]
    anywhere = "\0".join(texts)
    text = "".join(map(letters.__getitem__, candidate)) + "\1"  # what reaches over the end is found nowhere
    repeated = [letter for letter in letters.values() if text.count(letter) > 1]
    starts: Iterable[int] = range(len(candidate))
    correct = []
    for n in range(1, _ORDERS + 1):
        starts = [start for start in starts if text[start : start + n] in anywhere]
        # Only an n-gram whose first word is repeated can be repeated, and so be too many.
        grams = [text[start : start + n] for start in starts if text[start] in repeated] if repeated else []
        correct.append(len(starts) - _too_many(grams, texts))
    return correct


def _too_many(grams: list[str], texts: list[str]) -> int:
    """How many of the n-grams are left over if none may occur oftener than in any one text."""
    distinct = set(grams)
    if len(distinct) == len(grams):  # each is found somewhere, and once is enough
        return 0
    often = [(gram, grams.count(gram)) for gram in distinct]
    return sum(max(0, times - max([_occurrences(gram, text) for text in texts])) for gram, times in often if times > 1)


def _occurrences(gram: str, text: str) -> int:
    if gram[0] not in gram[1:]:
        return text.count(gram)
    return sum(text.startswith(gram, start) for start in range(len(text)))  # it may overlap itself


def _closest_length(length: int, references: Sequence[Words]) -> int:
    return min((abs(len(reference) - length), len(reference)) for reference in references)[1]


def _geometric_means(correct: Ints, guessed: Ints) -> Floats:
    """(rows, 4) counts to the geometric means of the first 1, 2, 3, 4 precisions."""
    precision = (correct + _TINY) / (guessed + _SMALL)
    return np.cumprod(precision, 1) ** (1 / np.arange(1, _ORDERS + 1))


def _penalty(candidate: Ints, reference: Ints) -> Floats:
    ratio = (candidate + _TINY) / (reference + _SMALL)
    return np.where(ratio < 1, np.exp(1 - 1 / np.minimum(ratio, 1)), 1.0)


def _four(values: Floats) -> tuple[float, float, float, float]:
    one, two, three, four = (float(value) for value in values)
    return one, two, three, four
