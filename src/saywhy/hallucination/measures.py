"""All measures of hallucination of a set of captions: CHAIR, precision and recall of frequent words, bad endings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saywhy.data.datasets import Dataset
from saywhy.hallucination.chair import ChairScore, ImageObjects, chair
from saywhy.metrics.base import TextOrWords
from saywhy.metrics.endings import bad_endings
from saywhy.metrics.objects import Share
from saywhy.metrics.word_precision import WordPrecision, count_objects, word_precision


@dataclass(frozen=True)
class HallucinationScore:
    """The measures of a set of captions.

    Attributes:
        chair: CHAIR-s and CHAIR-i.
        frequent_words: precision and recall of frequent object words; None without training captions.
        bad_endings: captions that end in the middle of a phrase.
        reference_bad_endings: the same of the references.
    """

    chair: ChairScore
    frequent_words: WordPrecision | None
    bad_endings: Share
    reference_bad_endings: Share

    def as_dict(self) -> dict[str, Any]:
        """Percent and counts, ready for JSON."""
        return {
            "chair": self.chair.as_dict(),
            "frequent_words": self.frequent_words.as_dict() if self.frequent_words else None,
            "bad_endings": self.bad_endings.as_dict(),
            "reference_bad_endings": self.reference_bad_endings.as_dict(),
        }


def measure_hallucination(
    candidates: Sequence[TextOrWords],
    references: Sequence[Sequence[TextOrWords]],
    objects: ImageObjects,
    training_counts: Mapping[str, int] | None,
) -> HallucinationScore:
    """Score one caption per image.

    Args:
        candidates: the captions.
        references: the captions by people of each image.
        objects: what each image has.
        training_counts: mentions of objects in the training captions; None if these are not known.
    """
    return HallucinationScore(
        chair=chair(candidates, objects),
        frequent_words=None if training_counts is None else word_precision(candidates, references, training_counts),
        bad_endings=bad_endings(candidates),
        reference_bad_endings=bad_endings([caption for group in references for caption in group]),
    )


def training_counts(data: Dataset) -> Mapping[str, int] | None:
    """Mentions of objects in the captions of a data set's train split; None if it has no such split."""
    captions = [caption for image in data.images if image.split == "train" for caption in image.captions]
    return count_objects(captions) if captions else None
