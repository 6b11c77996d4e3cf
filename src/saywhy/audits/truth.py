"""Which object words are true: attested by a reference of their picture."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from saywhy.audits.bench import Bench


def is_true(bench: Bench, pictures: Sequence[str], lemmas: Sequence[str] | np.ndarray) -> np.ndarray:
    """Of each object word, whether some reference of its picture has it, its plural, a synonym or a narrower word."""
    said = bench.references
    found = [bench.objects.is_attested(str(lemma), said[name]) for name, lemma in zip(pictures, lemmas, strict=True)]
    return np.array(found, dtype=bool)


def few_references(bench: Bench) -> list[str]:
    """A line to be told where most pictures have one reference."""
    if float(np.median([len(each) for each in bench.references.values()])) > 1:
        return []
    return ["one reference a picture: what its author left out counts as made up, so true words are among them"]
