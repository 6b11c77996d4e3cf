"""METEOR 1.5 (Denkowski and Lavie, 2014), computed by its authors' Java program.

METEOR aligns candidate and reference word by word (exact, stem, synonym, paraphrase) and combines
precision, recall and fragmentation. The metric depends on its stemmer, synonyms and paraphrase tables, so the program
itself is run. It comes with pycocoevalcap; Java comes from the system.

The program counts, for each caption and its best reference, content words and function words, the matches of each kind,
and the chunks (runs of matches in the same order). The score follows from the sums of these counts over all captions:

    P = Σ_i w_i (δ m_i(content) + (1 - δ) m_i(function)) / (δ content + (1 - δ) function)      in the candidate
    R = the same in the reference
    F = P R / (α P + (1 - α) R)
    METEOR = F · (1 - γ (chunks / m)^β)         m: matched words, the mean of candidate and reference

with α = 0.85, β = 0.2, γ = 0.6, δ = 0.75, and w = 1, 0.6, 0.8, 0.6 for exact, stem, synonym and paraphrase matches, its
parameters for English. `meteor_of_counts` computes this, so that a bootstrap does not run the program again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from saywhy.metrics.base import Floats, Metric, MetricUnavailable, TextOrWords, Words, read_captions
from saywhy.metrics.java_process import JavaProcess, find_jar, java_command

METEOR_VERSION = "1.5"
_JAR = f"meteor/meteor-{METEOR_VERSION}.jar"
_OPTIONS = ["-", "-", "-stdio", "-l", "en", "-norm"]
_ALPHA, _BETA, _GAMMA, _DELTA = 0.85, 0.2, 0.6, 0.75
_WEIGHTS = np.array([1.0, 0.6, 0.8, 0.6])
_COUNTS = 4 + 4 * len(_WEIGHTS) + 3


@dataclass(frozen=True)
class MeteorScore:
    """METEOR as a fraction: of the corpus, which is not the mean over captions, and of each caption."""

    meteor: float
    per_caption: Floats = field(repr=False, compare=False)  # (n,)
    counts: Floats | None = field(default=None, repr=False, compare=False)  # (n, 23) for `meteor_of_counts`


def meteor(
    candidates: Sequence[TextOrWords], references: Sequence[Sequence[TextOrWords]], timeout: float = 120
) -> MeteorScore:
    """Score candidates against their references.

    Raises `MetricUnavailable`, which names what to install, if Java or the program is missing, and also if Java gives
    no answer for `timeout` seconds.
    """
    requests = [_request(words, group) for words, group in zip(*read_captions(candidates, references), strict=True)]
    jar = find_jar("METEOR", _JAR)
    command = [*java_command("METEOR"), "-Xmx2G", "-jar", str(jar), *_OPTIONS]
    with JavaProcess("METEOR", command, jar.parent, timeout) as java:
        statistics = java.send(requests, len(requests))
        answers = java.send([" ||| ".join(["EVAL", *statistics])], len(requests) + 1)
    try:
        *per_caption, corpus = map(float, answers)
    except ValueError:
        raise MetricUnavailable(f"METEOR: Java answered {answers[-1]!r} instead of a number") from None
    return MeteorScore(corpus, np.array(per_caption), _parse_counts(statistics))


def meteor_of_counts(counts: Floats) -> Floats:
    """METEOR (…) from the counts of captions, or from their sums over any set of captions, (…, 23).

    The last axis has pairs of a number in the candidate and one in the reference: words, function words and, for each
    kind of match, matched content words and matched function words; then the chunks; then the pair of matched words.
    """
    lengths, function_words = counts[..., 0:2], counts[..., 2:4]
    matches = counts[..., 4:20].reshape(*counts.shape[:-1], len(_WEIGHTS), 2, 2)  # kind, content or function, side
    chunks, matched = counts[..., 20], counts[..., 21:23]
    weighted = np.einsum("...ijk,i,j->...k", matches, _WEIGHTS, [_DELTA, 1 - _DELTA])
    words = _DELTA * (lengths - function_words) + (1 - _DELTA) * function_words
    precision, recall = np.moveaxis(_ratio(weighted, words), -1, 0)
    mean = _ratio(precision * recall, _ALPHA * precision + (1 - _ALPHA) * recall)
    fragmentation = _ratio(chunks, matched.mean(axis=-1))
    return mean * (1 - _GAMMA * fragmentation**_BETA)


class Meteor(Metric[MeteorScore]):
    """METEOR, updated batch by batch, with one Java process for all batches; see `meteor`."""

    def compute(self) -> MeteorScore:
        """The score of all captions since the last `reset`."""
        return meteor(self._candidates, self._references)


def _request(candidate: Words, references: Sequence[Words]) -> str:
    return " ||| ".join(["SCORE", *map(_line, references), _line(candidate)])


def _line(words: Words) -> str:
    """Words as one line, without the separator of the protocol."""
    return " ".join(" ".join(words).replace("|||", "").split())


def _parse_counts(lines: Sequence[str]) -> Floats | None:
    """The counts of every caption, (n, 23); None where the program printed something else."""
    rows = [line.split() for line in lines]
    try:
        counts = np.array(rows, float).reshape(len(rows), _COUNTS)
    except ValueError:
        return None
    complete = (counts[:, 21:23] == counts[:, 0:2]).all(axis=1)
    counts[complete & (counts[:, 20] == 1), 20] = 0  # the program counts no chunk where all words match in order
    return counts


def _ratio(numerator: Floats, denominator: Floats) -> Floats:
    """numerator / denominator, 0 where the denominator is 0."""
    return np.divide(numerator, denominator, out=np.zeros(np.shape(numerator)), where=denominator != 0)
