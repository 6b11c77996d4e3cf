"""METEOR 1.5 (Denkowski and Lavie, 2014), computed by its authors' Java program.

METEOR aligns candidate and reference word by word (exact, stem, synonym, paraphrase) and combines
precision, recall and fragmentation. The metric depends on its stemmer, synonyms and paraphrase tables, so the program
itself is run. It comes with pycocoevalcap; Java comes from the system.
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


@dataclass(frozen=True)
class MeteorScore:
    """METEOR as a fraction: of the corpus, which is not the mean over captions, and of each caption."""

    meteor: float
    per_caption: Floats = field(repr=False, compare=False)  # (n,)


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
    return MeteorScore(corpus, np.array(per_caption))


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
