"""CHAIR, the share of hallucinated objects (Rohrbach et al. 2018, https://arxiv.org/abs/1809.02156).

    CHAIR-s = captions that name at least one object their image does not have / captions
    CHAIR-i = mentions of objects that the image does not have / mentions of objects

A mention is a word or a name of several words ("hot dog"), and counts as often as the caption repeats it. What an image
has follows from its data set:

COCO        The categories of its boxes and those that a reference names, of COCO's 80 (`data/coco_objects.txt`).
            Where a box says only "animal", the references decide; if they name none of the ten animals either, the kind
            is unknown and no animal word is counted as hallucinated.
Entities    For Flickr30k and Flickr8k: the objects of `data/object_words.txt` that a reference or a phrase with a box
            supports, as a synonym, a narrower kind or an implied object. No detector is needed. The types of phrases
            count too: a phrase of the type "people" shows a person, whatever its words.
references  Without boxes, if chosen explicitly: COCO's categories that a reference names. An object that all references
            omit counts as hallucinated, so values are higher, and not comparable with the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from saywhy.data.coco_objects import COCO_ANIMALS, coco_categories, coco_mentions, named_categories
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.object_words import Mention, ObjectWords
from saywhy.data.phrases import Phrases, find_phrases
from saywhy.data.tokenizer import tokenize
from saywhy.errors import UserError
from saywhy.hallucination.labels import evidence_of_objects
from saywhy.metrics.base import TextOrWords, as_words
from saywhy.metrics.objects import Share

ANY_ANIMAL = "animal"
"""The name of a box whose kind of animal is not known."""
COCO, ENTITIES, REFERENCES = "COCO boxes and references", "Entities phrases and references", "references only"
FindMentions = Callable[[Sequence[str]], Sequence[Mention]]


@dataclass(frozen=True)
class ImageObjects:
    """The objects that each image has, and how object words are found in captions.

    Attributes:
        sets: one set of names per image.
        source: where the objects come from.
        mentions: finds the object words of a tokenised caption; the lemmas of mentions are names as in `sets`.
    """

    sets: tuple[frozenset[str], ...]
    source: str = REFERENCES
    mentions: FindMentions = coco_mentions

    def __len__(self) -> int:
        return len(self.sets)

    def select(self, indices: Iterable[int]) -> ImageObjects:
        """The objects of some of the images."""
        return replace(self, sets=tuple(self.sets[index] for index in indices))


@dataclass(frozen=True)
class CaptionObjects:
    """The objects that one caption names, with repetition, and those of them that its image does not have."""

    mentioned: tuple[Mention, ...]
    hallucinated: tuple[Mention, ...]


@dataclass(frozen=True)
class ChairScore:
    """CHAIR of a set of captions.

    Attributes:
        sentence: CHAIR-s, 0 to 1.
        instance: CHAIR-i, 0 to 1; NaN if no caption names an object.
        per_caption: what each caption names, for intervals and comparisons.
        source: where the objects of the images come from.
    """

    sentence: float
    instance: float
    per_caption: tuple[CaptionObjects, ...]
    source: str

    def as_dict(self) -> dict[str, Any]:
        """CHAIR-s and CHAIR-i in percent with their counts, ready for JSON."""
        return {
            "sentence": self.sentences.as_dict(),
            "instance": self.instances.as_dict(),
            "objects": self.source,
        }

    @property
    def sentences(self) -> Share:
        """Captions with a hallucinated object, of all captions."""
        return Share(sum(bool(caption.hallucinated) for caption in self.per_caption), len(self.per_caption))

    @property
    def instances(self) -> Share:
        """Hallucinated mentions, of all mentions."""
        return Share(
            sum(len(caption.hallucinated) for caption in self.per_caption),
            sum(len(caption.mentioned) for caption in self.per_caption),
        )


def chair(candidates: Sequence[TextOrWords], objects: ImageObjects) -> ChairScore:
    """CHAIR of one caption per image.

    >>> objects = ImageObjects((frozenset(["dog", "hot dog"]), frozenset(["dining table"])))
    >>> score = chair(["a dog and two cats eat hot dogs", "a table"], objects)
    >>> score.sentence, score.instance, [mention.word for mention in score.per_caption[0].hallucinated]
    (0.5, 0.25, ['cats'])
    """
    if len(candidates) != len(objects):
        raise UserError(f"{len(candidates)} captions but objects of {len(objects)} images: give one caption per image")
    if not candidates:
        raise UserError("no captions to score: give at least one")
    per_caption = tuple(
        _caption_objects(objects.mentions(as_words(caption)), names)
        for caption, names in zip(candidates, objects.sets, strict=True)
    )
    score = ChairScore(0.0, math.nan, per_caption, objects.source)
    return ChairScore(_ratio(score.sentences), _ratio(score.instances), per_caption, objects.source)


def _caption_objects(mentions: Sequence[Mention], names: frozenset[str]) -> CaptionObjects:
    return CaptionObjects(tuple(mentions), tuple(mention for mention in mentions if mention.lemma not in names))


def _ratio(share: Share) -> float:
    return share.count / share.of if share.of else math.nan


def image_objects(data: Dataset, *, phrases: Phrases | None = None, references_only: bool = False) -> ImageObjects:
    """The objects of each image of a data set or split.

    Args:
        data: the images and their references.
        phrases: boxes already read; by default those in the data set's folder.
        references_only: whether to do without boxes. Without it, a data set without boxes raises a `UserError`.
    """
    if references_only:
        return ImageObjects(tuple(_named_by_references(image) for image in data.images))
    phrases = phrases or find_phrases(data.root)
    if phrases is None:
        raise UserError(
            f"{data.root}: no boxes, which CHAIR needs; put COCO's instances_*.json or the boxes.jsonl.gz of "
            "Flickr30k Entities into this folder"
        )
    if missing := [image.name for image in data.images if image.name not in phrases]:
        raise UserError(
            f"{phrases.path}: does not list {len(missing)} of {len(data)} images, such as {missing[0]}; "
            "CHAIR needs the boxes of all: add the file that lists them"
        )
    if phrases.are_coco:
        return ImageObjects(tuple(_coco_objects(image, phrases) for image in data.images), COCO)
    table = ObjectWords.read()
    sets = tuple(table.supported(evidence_of_objects(image, phrases)) for image in data.images)
    return ImageObjects(sets, ENTITIES, table.mentions)


def _named_by_references(image: CaptionedImage) -> frozenset[str]:
    return frozenset().union(*(named_categories(tokenize(caption)) for caption in image.captions))


def _coco_objects(image: CaptionedImage, phrases: Phrases) -> frozenset[str]:
    """The categories of boxes and references."""
    boxes = {" ".join(phrase.words) for phrase in phrases.of(image.name)}
    named = _named_by_references(image)
    unknown_animal = ANY_ANIMAL in boxes and named.isdisjoint(COCO_ANIMALS)
    return named | boxes.intersection(coco_categories()) | (COCO_ANIMALS if unknown_animal else frozenset())
