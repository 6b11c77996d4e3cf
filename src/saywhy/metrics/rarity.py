"""Do images with rare words get better or worse? (Sun et al. 2021, equation 33 and Table V)

    c(S) = min over the words w of caption S that are no stop words of count(w)

count(w) is how often w is in the training captions: 0 for a word that is not. c of an image is the smallest c of its
references: the count of its rarest reference word. Its mean over the images whose score rose from one model to another
is compared with the mean over those whose score fell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from saywhy.data.stop_words import STOP_WORDS
from saywhy.errors import UserError
from saywhy.metrics.base import TextOrWords, as_words


@dataclass(frozen=True)
class Rarity:
    """The mean count of the rarest reference word, by how the score of an image changed.

    Attributes:
        improved: the mean over images whose score rose; None if there is none.
        degraded: the mean over images whose score fell; None if there is none.
        improved_images: images whose score rose.
        degraded_images: images whose score fell.
        unchanged_images: images with the same score, which are in neither mean.
    """

    improved: float | None
    degraded: float | None
    improved_images: int
    degraded_images: int
    unchanged_images: int

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "improved": {"mean_count": self.improved, "images": self.improved_images},
            "degraded": {"mean_count": self.degraded, "images": self.degraded_images},
            "unchanged": {"images": self.unchanged_images},
        }


def rarity(
    references: Sequence[Sequence[TextOrWords]],
    counts: Mapping[str, int],
    before: Sequence[float],
    after: Sequence[float],
) -> Rarity:
    """Compare images that got better with images that got worse.

    Args:
        references: the captions by people of each image.
        counts: how often each word is in the training captions, as `count_words` counts.
        before: the score of each image by the first model, such as its CIDEr.
        after: the same by the second model.

    >>> counts = {"dog": 50, "zebra": 3, "runs": 9}
    >>> rarity([["a dog runs"], ["a zebra"], ["a dog"]], counts, before=[0.5, 0.5, 0.5], after=[0.4, 0.9, 0.5])
    Rarity(improved=3.0, degraded=9.0, improved_images=1, degraded_images=1, unchanged_images=1)
    """
    if not len(references) == len(before) == len(after):
        raise UserError(
            f"rarity: references of {len(references)} images, but {len(before)} and {len(after)} scores; "
            "give one score of each model per image"
        )
    improved: list[int] = []
    degraded: list[int] = []
    for group, first, second in zip(references, before, after, strict=True):
        count = rarest_count(group, counts)
        if count is not None and first != second:
            (improved if second > first else degraded).append(count)
    return Rarity(
        improved=fmean(improved) if improved else None,
        degraded=fmean(degraded) if degraded else None,
        improved_images=len(improved),
        degraded_images=len(degraded),
        unchanged_images=sum(bool(first == second) for first, second in zip(before, after, strict=True)),
    )


def rarest_count(references: Iterable[TextOrWords], counts: Mapping[str, int]) -> int | None:
    """c of an image: the count of the rarest word of its references; None if all their words are stop words."""
    words = {word for caption in references for word in as_words(caption)} - STOP_WORDS
    return min((counts.get(word, 0) for word in words), default=None)


def count_words(captions: Iterable[TextOrWords]) -> Counter[str]:
    """How often each word is in these captions."""
    return Counter(word for caption in captions for word in as_words(caption))
