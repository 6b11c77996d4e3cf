"""SPICE (Anderson et al., 2016), by its authors' own program.

SPICE parses captions into scene graphs and compares their objects, attributes and relations by F-score. The
program comes with pycocoevalcap; the parser it needs, Stanford CoreNLP 3.6.0, does not, and must lie beside.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from saywhy.metrics.base import CaptionLike, Floats, Metric, MetricUnavailable, read
from saywhy.metrics.java_process import java_command, program

SPICE_VERSION = "1.0"
_JAR = f"spice/spice-{SPICE_VERSION}.jar"
_PARSER = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")


@dataclass(frozen=True)
class SpiceScore:
    """SPICE as a fraction: the mean, and each caption's own."""

    spice: float
    per_caption: Floats = field(repr=False, compare=False)  # (n,)


def spice(candidates: Sequence[CaptionLike], references: Sequence[Sequence[CaptionLike]]) -> SpiceScore:
    """Score candidates against their references.

    Raises `MetricUnavailable`, saying what belongs where, if Java, the program or its parser is missing.
    """
    pairs = zip(*read(candidates, references), strict=True)
    items = [
        {"image_id": number, "test": " ".join(words), "refs": [" ".join(reference) for reference in group]}
        for number, (words, group) in enumerate(pairs)
    ]
    jar = _complete_program()
    with tempfile.TemporaryDirectory() as folder:
        answers = _run(jar, items, Path(folder))
    scores = {answer["image_id"]: answer["scores"]["All"]["f"] for answer in answers}
    each = np.array([scores[number] for number in range(len(items))], dtype=float)
    return SpiceScore(float(each.mean()), each)


class Spice(Metric[SpiceScore]):
    """SPICE fed batch by batch; see `spice`."""

    def compute(self) -> SpiceScore:
        """Score everything seen since the last `reset`."""
        return spice(self._candidates, self._references)


def _complete_program() -> Path:
    jar = program("SPICE", _JAR)
    library = jar.parent / "lib"
    missing = [name for name in _PARSER if not (library / name).is_file()]
    if missing:
        raise MetricUnavailable(
            f"SPICE needs {' and '.join(missing)}, from stanford-corenlp-full-2015-12-09.zip, in {library}"
        )
    return jar


def _run(jar: Path, items: list[dict], folder: Path) -> list[dict]:
    asked, answered = folder / "asked.json", folder / "answered.json"
    asked.write_text(json.dumps(items), encoding="utf-8")
    command = [
        *java_command("SPICE"),
        "-Xmx8G",
        "-jar",
        str(jar),
        str(asked),
        "-out",
        str(answered),
        "-silent",
    ]
    done = subprocess.run(command, cwd=jar.parent, capture_output=True, text=True, check=False)
    if done.returncode or not answered.is_file():
        reason = next((line for line in done.stderr.splitlines() if line.strip()), "it gave no reason")
        raise MetricUnavailable(f"SPICE: Java ended with code {done.returncode}: {reason.strip()}")
    return json.loads(answered.read_text(encoding="utf-8"))
