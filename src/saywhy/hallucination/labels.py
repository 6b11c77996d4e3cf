"""Which object words are true: attested by a reference of their image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from saywhy.data.object_words import ObjectWords

References = Mapping[str, Sequence[Sequence[str]]]
"""Tokenised reference captions by image name."""


def is_supported(
    objects: ObjectWords, references: References, images: Sequence[str], lemmas: Sequence[str] | np.ndarray
) -> np.ndarray:
    """Of each object word, whether some reference of its image has it, its plural, a synonym or a narrower word."""
    found = [objects.is_attested(str(lemma), references[name]) for name, lemma in zip(images, lemmas, strict=True)]
    return np.array(found, dtype=bool)


def few_references(references: References) -> list[str]:
    """A line to be told where most images have one reference."""
    if float(np.median([len(each) for each in references.values()])) > 1:
        return []
    return ["one reference an image: what its author left out counts as made up, so true words are among them"]
