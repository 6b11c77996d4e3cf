"""BLEU (Papineni et al., 2002) as captioning papers report it: over the corpus, for n-grams of 1 to 4 words.

With c(g) the count of n-gram g in a candidate, and r(g) the largest count of g in any one of its references,

    p_n = (Σ min(c, r) + 1e-15) / (Σ c + 1e-9)        sums over all n-grams of all candidates
    BLEU-n = BP · (p_1 · … · p_n)^(1/n)
    BP = exp(1 - r/c) if c < r else 1                 c, r: words of all candidates, of all closest references

The closest reference is the one whose length differs least from the candidate's; of two equally close ones, the
shorter. The two small constants are those of the coco-caption tools; they avoid a division by 0 for an empty
candidate. Captioning papers report BLEU with BP or without, so both are computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, repeat

import numpy as np

from saywhy.metrics.base import Floats, Ints, Metric, TextOrWords, Words, read_captions

_TINY, _SMALL = 1e-15, 1e-9
_ORDERS = 4


@dataclass(frozen=True)
class BleuScore:
    """BLEU-1 to BLEU-4 as fractions, with the counts and lengths they are computed from."""

    bleu: tuple[float, float, float, float]
    no_penalty: tuple[float, float, float, float]
    brevity_penalty: float
    candidate_length: int
    reference_length: int
    correct: tuple[int, ...]  # matched n-grams, Σ min(c, r), for n = 1 ... 4
    guessed: tuple[int, ...]  # all n-grams of the candidates
    per_caption: Floats = field(repr=False, compare=False)  # (n, 4) BLEU of each candidate alone
    counts: Ints = field(repr=False, compare=False)  # (n, 10) what `bleu_of_counts` needs of each candidate


def bleu(candidates: Sequence[TextOrWords], references: Sequence[Sequence[TextOrWords]]) -> BleuScore:
    """Score candidates against their references.

    >>> score = bleu(["A dog runs on grass."], [["A dog runs on the grass.", "A brown dog is runner."]])
    >>> [round(value, 3) for value in score.bleu]
    [1.0, 0.866, 0.794, 0.707]
    """
    pairs = list(zip(*read_captions(candidates, references), strict=True))
    length = np.array([len(candidate) for candidate, _ in pairs])
    closest = np.array([_closest_length(len(candidate), group) for candidate, group in pairs])
    correct = np.array([_correct(candidate, group) for candidate, group in pairs])  # (n, 4)
    guessed = np.maximum(0, length[:, None] - np.arange(_ORDERS))  # (n, 4)
    sums, guesses, words, target = correct.sum(0), guessed.sum(0), int(length.sum()), int(closest.sum())
    plain = _geometric_means(sums, guesses)
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
        counts=np.column_stack([correct, guessed, length, closest]),
    )


def bleu_of_counts(counts: Floats) -> Floats:
    """BLEU-1 to BLEU-4 (…, 4) from the counts of candidates, or from their sums over any set of captions.

    The last axis of counts (…, 10) has the matched n-grams and all n-grams for n = 1 ... 4, the words of the candidates
    and those of the closest references.

    >>> score = bleu(["A dog.", "A cat runs."], [["A dog runs."], ["The cat runs."]])
    >>> tuple(bleu_of_counts(score.counts.sum(0)).tolist()) == score.bleu
    True
    """
    correct, guessed, length, closest = np.split(counts, [_ORDERS, 2 * _ORDERS, 2 * _ORDERS + 1], axis=-1)
    return _geometric_means(correct, guessed) * _penalty(length, closest)


class Bleu(Metric[BleuScore]):
    """BLEU, updated batch by batch; see `bleu`."""

    def compute(self) -> BleuScore:
        """The score of all captions since the last `reset`."""
        return bleu(self._candidates, self._references)


def _correct(candidate: Words, references: Sequence[Words]) -> list[int]:
    """For n = 1 ... 4, how many of the candidate's n-grams are matched: Σ min(c, r).

    Each distinct word of the candidate becomes one character, all other words \\0, so that an n-gram is a substring,
    which `in` finds fast. An n-gram is searched only where its first n - 1 words matched.
    """
    letters = dict(zip(dict.fromkeys(candidate), map(chr, count(2)), strict=False))
    texts = ["".join(map(letters.get, reference, repeat("\0"))) for reference in references]
    joined = "\0".join(texts)
    text = "".join(map(letters.__getitem__, candidate)) + "\1"  # n-grams that would pass the end match nothing
    repeated = [letter for letter in letters.values() if text.count(letter) > 1]
    starts: Iterable[int] = range(len(candidate))
    correct = []
    for n in range(1, _ORDERS + 1):
        starts = [start for start in starts if text[start : start + n] in joined]
        # Only an n-gram whose first word is repeated can be repeated, and so exceed r.
        grams = [text[start : start + n] for start in starts if text[start] in repeated] if repeated else []
        correct.append(len(starts) - _excess(grams, texts))
    return correct


def _excess(grams: list[str], texts: list[str]) -> int:
    """Σ max(0, c - r) over the distinct n-grams of `grams`."""
    distinct = set(grams)
    if len(distinct) == len(grams):  # each occurs once, and once in some text
        return 0
    counts = [(gram, grams.count(gram)) for gram in distinct]
    return sum(max(0, c - max([_occurrences(gram, text) for text in texts])) for gram, c in counts if c > 1)


def _occurrences(gram: str, text: str) -> int:
    if gram[0] not in gram[1:]:
        return text.count(gram)
    return sum(text.startswith(gram, start) for start in range(len(text)))  # occurrences may overlap


def _closest_length(length: int, references: Sequence[Words]) -> int:
    return min((abs(len(reference) - length), len(reference)) for reference in references)[1]


def _geometric_means(correct: Ints | Floats, guessed: Ints | Floats) -> Floats:
    """Geometric means of the first 1, 2, 3, 4 precisions, from counts (…, 4)."""
    precision = (correct + _TINY) / (guessed + _SMALL)
    return np.cumprod(precision, -1) ** (1 / np.arange(1, _ORDERS + 1))


def _penalty(candidate: Ints | Floats, reference: Ints | Floats) -> Floats:
    ratio = (candidate + _TINY) / (reference + _SMALL)
    return np.where(ratio < 1, np.exp(1 - 1 / np.minimum(ratio, 1)), 1.0)


def _four(values: Floats) -> tuple[float, float, float, float]:
    bleu_1, bleu_2, bleu_3, bleu_4 = (float(value) for value in values)
    return bleu_1, bleu_2, bleu_3, bleu_4
