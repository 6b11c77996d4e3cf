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

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from saywhy.metrics.base import Floats, Ints, Metric, TextOrWords, read_captions
from saywhy.metrics.ngrams import Corpus, run_starts, sort_by_key

_TINY, _SMALL = 1e-15, 1e-9
_ORDERS = 4
_HASH_BITS = 18


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
    corpus = Corpus(*read_captions(candidates, references))
    length = corpus.length[corpus.candidate]
    closest = _closest_lengths(corpus)
    correct = _correct(corpus)
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


def _correct(corpus: Corpus) -> Ints:
    """Of each candidate, how many n-grams are matched, Σ min(c, r), for n = 1 ... 4: (n, 4).

    An n-gram is searched only where its first n - 1 words matched; all others are left out at once.
    """
    words = int(corpus.word.max(initial=0)) + 1
    image = corpus.image[corpus.caption]
    position = _maybe_in_candidate(corpus, image * words + corpus.word)
    prefix = image[position]  # the number of each matched prefix in its image
    correct = np.zeros((corpus.images, _ORDERS), np.int64)
    for n in range(1, _ORDERS + 1):
        key, position = sort_by_key(prefix * words + corpus.word[position + n - 1], position)
        matched, gram = _matched(corpus, key, position)
        correct[:, n - 1] = np.bincount(image[position[run_starts(gram)]], matched, corpus.images)
        kept = (matched > 0)[gram] & (corpus.remaining[position] > n)
        prefix, position = gram[kept], position[kept]
    return correct


def _maybe_in_candidate(corpus: Corpus, key: Ints) -> Ints:
    """The positions of all words that the candidate of their image has, found by a hash of `key`, and a few others."""
    slot = (key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - _HASH_BITS)
    table = np.zeros(1 << _HASH_BITS, bool)
    table[slot[corpus.is_candidate[corpus.caption]]] = True
    return np.flatnonzero(table[slot])


def _matched(corpus: Corpus, key: Ints, position: Ints) -> tuple[Ints, Ints]:
    """Of each n-gram of an image, min(c, r); and the n-gram's number at each position, 0, 1, 2 ... in sorted order."""
    caption = corpus.caption[position]
    first = run_starts(key, caption)  # of an n-gram in a caption
    sizes = np.diff(first, append=len(key))
    is_candidate = corpus.is_candidate[caption[first]]
    grams = run_starts(key[first])  # of an n-gram in an image; its candidate comes first
    if not len(grams):
        return sizes, key
    c = np.where(is_candidate[grams], sizes[grams], 0)
    r = np.maximum.reduceat(np.where(is_candidate, 0, sizes), grams)
    return np.minimum(c, r), np.repeat(np.arange(len(grams)), np.diff(first[grams], append=len(key)))


def _closest_lengths(corpus: Corpus) -> Ints:
    """Of each candidate, the length of the closest reference, the shorter one of two, (n,)."""
    difference = np.abs(corpus.length - corpus.length[corpus.candidate][corpus.image])
    order = np.lexsort((corpus.length, difference, corpus.is_candidate, corpus.image))  # the candidate comes last
    return corpus.length[order[corpus.candidate]]


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
