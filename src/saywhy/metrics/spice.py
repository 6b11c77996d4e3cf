"""SPICE (Anderson et al., 2016), computed by its authors' Java program.

SPICE parses captions into scene graphs and compares their objects, attributes and relations by F-score. The
program comes with pycocoevalcap. Its parser, Stanford CoreNLP 3.6.0, must be downloaded and put into its lib folder.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from saywhy.metrics.base import Floats, Metric, MetricUnavailable, TextOrWords, read_captions
from saywhy.metrics.java_process import find_jar, java_command

SPICE_VERSION = "1.0"
_JAR = f"spice/spice-{SPICE_VERSION}.jar"
_PARSER = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")


@dataclass(frozen=True)
class SpiceScore:
    """SPICE as a fraction: the mean, and the score of each caption."""

    spice: float
    per_caption: Floats = field(repr=False, compare=False)  # (n,)


def spice(candidates: Sequence[TextOrWords], references: Sequence[Sequence[TextOrWords]]) -> SpiceScore:
    """Score candidates against their references.

    Raises `MetricUnavailable`, which names what to install, if Java, the program or its parser is missing.
    """
    pairs = zip(*read_captions(candidates, references), strict=True)
    items = [
        {"image_id": number, "test": " ".join(words), "refs": [" ".join(reference) for reference in group]}
        for number, (words, group) in enumerate(pairs)
    ]
    jar = _find_program()
    with tempfile.TemporaryDirectory() as folder:
        answers = _run(jar, items, Path(folder))
    scores = {answer["image_id"]: answer["scores"]["All"]["f"] for answer in answers}
    per_caption = np.array([scores[number] for number in range(len(items))], dtype=float)
    return SpiceScore(float(per_caption.mean()), per_caption)


class Spice(Metric[SpiceScore]):
    """SPICE, updated batch by batch; see `spice`."""

    def compute(self) -> SpiceScore:
        """The score of all captions since the last `reset`."""
        return spice(self._candidates, self._references)


def _find_program() -> Path:
    """The SPICE jar, if its parser is installed too."""
    jar = find_jar("SPICE", _JAR)
    library = jar.parent / "lib"
    missing = [name for name in _PARSER if not (library / name).is_file()]
    if missing:
        raise MetricUnavailable(
            f"SPICE needs {' and '.join(missing)}: copy them from stanford-corenlp-full-2015-12-09.zip to {library}"
        )
    return jar


def _run(jar: Path, items: list[dict], folder: Path) -> list[dict]:
    captions, results = folder / "captions.json", folder / "results.json"
    captions.write_text(json.dumps(items), encoding="utf-8")
    command = [
        *java_command("SPICE"),
        "-Xmx8G",
        "-jar",
        str(jar),
        str(captions),
        "-out",
        str(results),
        "-silent",
    ]
    process = subprocess.run(command, cwd=jar.parent, capture_output=True, text=True, check=False)
    if process.returncode or not results.is_file():
        reason = next((line for line in process.stderr.splitlines() if line.strip()), "no error message")
        raise MetricUnavailable(f"SPICE: Java ended with code {process.returncode}: {reason.strip()}")
    return json.loads(results.read_text(encoding="utf-8"))
