"""METEOR 1.5 (Denkowski and Lavie, 2014), by its authors' own program.

METEOR aligns candidate and reference word by word (exact, stem, synonym, paraphrase) and weighs precision,
recall and fragmentation. Its stemmer, synonyms and paraphrase tables are the metric, so it is run and not
rewritten. The program comes with pycocoevalcap, the Java to run it from the system.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from saywhy.metrics.base import CaptionLike, Floats, Metric, MetricUnavailable, Words, read
from saywhy.metrics.java_process import Conversation, java_command, program

METEOR_VERSION = "1.5"
_JAR = f"meteor/meteor-{METEOR_VERSION}.jar"
_OPTIONS = ["-", "-", "-stdio", "-l", "en", "-norm"]


@dataclass(frozen=True)
class MeteorScore:
    """METEOR as a fraction: of the corpus (not the mean of its captions'), and each caption's own."""

    meteor: float
    per_caption: Floats = field(repr=False, compare=False)  # (n,)


def meteor(
    candidates: Sequence[CaptionLike], references: Sequence[Sequence[CaptionLike]], silence: float = 120
) -> MeteorScore:
    """Score candidates against their references; Java is given up after `silence` seconds without an answer.

    Raises `MetricUnavailable`, saying what to install, where Java or the program is missing.
    """
    questions = [_question(words, group) for words, group in zip(*read(candidates, references), strict=True)]
    jar = program("METEOR", _JAR)
    command = [*java_command("METEOR"), "-Xmx2G", "-jar", str(jar), *_OPTIONS]
    with Conversation("METEOR", command, jar.parent, silence) as java:
        statistics = java.ask(questions, len(questions))
        answers = java.ask([" ||| ".join(["EVAL", *statistics])], len(questions) + 1)
    try:
        *each, whole = map(float, answers)
    except ValueError:
        raise MetricUnavailable(f"METEOR: Java gave no number but {answers[-1]!r}") from None
    return MeteorScore(whole, np.array(each))


class Meteor(Metric[MeteorScore]):
    """METEOR fed batch by batch, with one Java process for all of it; see `meteor`."""

    def compute(self) -> MeteorScore:
        """Score everything seen since the last `reset`."""
        return meteor(self._candidates, self._references)


def _question(candidate: Words, references: Sequence[Words]) -> str:
    return " ||| ".join(["SCORE", *map(_line, references), _line(candidate)])


def _line(words: Words) -> str:
    """Words as one line without the protocol's separator, which is no word of any caption."""
    return " ".join(" ".join(words).replace("|||", "").split())
