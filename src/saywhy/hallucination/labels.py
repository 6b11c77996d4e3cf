"""Labels of object words: a word is supported if a reference caption of its image mentions the object."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from saywhy.data.object_words import ObjectWords

References = Mapping[str, Sequence[Sequence[str]]]
"""Tokenised reference captions by image name."""


def is_supported(
    objects: ObjectWords, references: References, images: Sequence[str], lemmas: Sequence[str] | np.ndarray
) -> np.ndarray:
    """Whether a reference of its image has each object word, its plural, a synonym or a narrower word, (N,)."""
    pairs = zip(images, lemmas, strict=True)
    return np.array([objects.is_supported(str(lemma), references[image]) for image, lemma in pairs], dtype=bool)


def few_references(references: References) -> list[str]:
    """A warning where most images have one reference, else nothing."""
    if float(np.median([len(captions) for captions in references.values()])) > 1:
        return []
    return ["one reference per image: objects its author omitted count as made up, although the image shows them"]
