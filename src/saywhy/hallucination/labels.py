"""Labels of object words: a word is supported if a reference caption or a box of its image says so.

The rule is the same for all data sets. An object word is a mention of an object in `data/object_words.txt`. It is true
if a reference caption, a phrase with a box (Flickr30k Entities) or the category of a box (COCO) names the object, a
synonym, a narrower kind, or something that implies one of these; otherwise it is made up. The type of a phrase or
category counts too: one of the type "people" shows a person, whatever its words; a person is no proof of a man.
Without boxes, the references alone decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from saywhy.data.datasets import CaptionedImage
from saywhy.data.object_words import ObjectWords
from saywhy.data.phrases import Phrases
from saywhy.data.tokenizer import tokenize

References = Mapping[str, Sequence[Sequence[str]]]
"""Tokenised reference captions by image name."""


_OBJECT_OF_TYPE = {
    **{"people": "person", "animals": "animal", "clothing": "clothing"},
    **{"vehicles": "vehicle", "instruments": "instrument"},
}


def evidence_of_objects(image: CaptionedImage, phrases: Phrases | None) -> list[Sequence[str]]:
    """Tokenised texts that name what an image shows: its references, and the phrases and types of its boxes."""
    boxed = () if phrases is None else phrases.of(image.name)
    evidence: list[Sequence[str]] = [*map(tokenize, image.captions), *(phrase.words for phrase in boxed)]
    return evidence + [[_OBJECT_OF_TYPE[phrase.kind]] for phrase in boxed if phrase.kind in _OBJECT_OF_TYPE]


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
