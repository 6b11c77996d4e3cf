"""Does a caption name the objects of its image, and does it invent persons?

    recall            = images whose caption names the category / images of which at least 3 references name it
    invented persons  = captions that name a person / images without one

Categories are COCO's; `data/coco_objects.py` says which words name them. An image is without a person if no reference
names one and, where there are boxes, none is a person's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saywhy.data.coco_objects import PERSON, named_categories
from saywhy.metrics.base import TextOrWords, read_captions

AGREEMENT = 3
"""References that must name a category for its recall to be measured."""


@dataclass(frozen=True)
class Share:
    """A number of images out of others."""

    count: int
    of: int

    @property
    def percent(self) -> float | None:
        """The share in percent; None if there is no image."""
        return 100 * self.count / self.of if self.of else None

    def as_dict(self) -> dict[str, Any]:
        """The share in percent and its counts, ready for JSON."""
        return {"percent": self.percent, "count": self.count, "of": self.of}


@dataclass(frozen=True)
class ObjectScore:
    """Recall of object words, and invented persons.

    Attributes:
        recall: over all pairs of an image and a category.
        by_category: the same for each category that is measured, the most frequent first.
        invented_persons: captions that name a person, of the images without one.
        boxes: whether boxes, too, say which images have no person.
    """

    recall: Share
    by_category: Mapping[str, Share]
    invented_persons: Share
    boxes: bool

    def as_dict(self) -> dict[str, Any]:
        """The numbers, ready for JSON."""
        return {
            "recall": self.recall.as_dict(),
            "invented_persons": {**self.invented_persons.as_dict(), "boxes": self.boxes},
            "by_category": {name: share.as_dict() for name, share in self.by_category.items()},
        }


def object_score(
    candidates: Sequence[TextOrWords],
    references: Sequence[Sequence[TextOrWords]],
    person_boxes: Sequence[bool] | None = None,
) -> ObjectScore:
    """Score captions by the object words of their references.

    Args:
        candidates: one caption per image.
        references: the captions by people of each image.
        person_boxes: whether each image has a person's box; None if there are no boxes.

    >>> score = object_score(["a man on a bed", "a dog"], [["a cat"] * 3, ["a puppy", "a dog", "two dogs"]])
    >>> score.recall, score.by_category["cat"].percent, score.invented_persons
    (Share(count=1, of=2), 0.0, Share(count=1, of=2))
    """
    words, groups = read_captions(candidates, references)
    named = [named_categories(caption) for caption in words]
    reference_counts = [Counter(name for caption in group for name in named_categories(caption)) for group in groups]
    hits: dict[str, list[bool]] = defaultdict(list)
    for names, counts in zip(named, reference_counts, strict=True):
        for category, count in counts.items():
            if count >= AGREEMENT:
                hits[category].append(category in names)
    boxes = [False] * len(words) if person_boxes is None else person_boxes
    without_person = [
        PERSON in names
        for names, counts, box in zip(named, reference_counts, boxes, strict=True)
        if PERSON not in counts and not box
    ]
    return ObjectScore(
        recall=_share([hit for category_hits in hits.values() for hit in category_hits]),
        by_category={name: _share(hits[name]) for name in sorted(hits, key=lambda name: (-len(hits[name]), name))},
        invented_persons=_share(without_person),
        boxes=person_boxes is not None,
    )


def _share(outcomes: Sequence[bool]) -> Share:
    return Share(sum(outcomes), len(outcomes))
