"""Scores of the objects that captions name, for `saywhy evaluate --objects` and `--hallucination`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saywhy.cli.common import output_console, plain_table

if TYPE_CHECKING:
    from saywhy.data.datasets import CaptionedImage, Dataset
    from saywhy.hallucination.chair import ImageObjects
    from saywhy.hallucination.measures import HallucinationScore
    from saywhy.metrics.base import TextOrWords
    from saywhy.metrics.objects import ObjectScore, Share

    Captions = Sequence[TextOrWords]

NO_TRAINING_CAPTIONS = (
    "mAP left out: {root} has no train split, from whose captions the frequent words are chosen; "
    "give the data set with its train split"
)


@dataclass(frozen=True)
class ObjectScores:
    """The scores that were requested; None for others."""

    objects: ObjectScore | None = None
    hallucination: HallucinationScore | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The fields of JSON and results files."""
        scores = {"objects": self.objects, "hallucination": self.hallucination}
        return {name: score.as_dict() for name, score in scores.items() if score}

    def show(self) -> None:
        """Print a table for each score."""
        if self.objects:
            _show_objects(self.objects)
        if self.hallucination:
            _show_hallucination(self.hallucination)


@dataclass(frozen=True)
class ObjectScorer:
    """What is known of the images before they are captioned, so that a mistake in the boxes is found early.

    Attributes:
        data: the images that are captioned.
        measure_objects: whether `--objects` was given.
        with_person_box: names of the images with a person's box; None if the data set has no boxes.
        image_objects: the objects of each image, if `--hallucination` was given.
        training_counts: mentions of objects in the training captions; None if there are none.
    """

    data: Dataset
    measure_objects: bool
    with_person_box: frozenset[str] | None = None
    image_objects: ImageObjects | None = None
    training_counts: Mapping[str, int] | None = None

    @classmethod
    def read(cls, data: Dataset, images: Dataset, objects: bool, hallucination: bool) -> ObjectScorer:
        """Read the boxes of the split `images` and, for hallucination, the training captions of its `data` set."""
        if not (objects or hallucination):
            return cls(images, False)
        from saywhy.data.phrases import find_phrases
        from saywhy.hallucination.chair import image_objects
        from saywhy.hallucination.measures import training_counts

        phrases = find_phrases(images.root)
        people = None if phrases is None else frozenset(
            image.name for image in images.images if any(phrase.kind == "people" for phrase in phrases.of(image.name))
        )  # fmt: skip
        if not hallucination:
            return cls(images, objects, people)
        return cls(images, objects, people, image_objects(images, phrases=phrases), training_counts(data))

    def score(self, words: Mapping[str, Sequence[str]]) -> ObjectScores:
        """Score the captions, which are those of the images that could be read."""
        chosen = [index for index, image in enumerate(self.data.images) if image.name in words]
        images = [self.data.images[index] for index in chosen]
        candidates, references = [words[image.name] for image in images], [image.captions for image in images]
        return ObjectScores(
            objects=self._objects(candidates, references, images) if self.measure_objects else None,
            hallucination=self._hallucination(candidates, references, chosen),
            notes=self._notes(),
        )

    def _objects(
        self, candidates: Captions, references: Sequence[Captions], images: Sequence[CaptionedImage]
    ) -> ObjectScore:
        from saywhy.metrics.objects import object_score

        boxes = self.with_person_box
        return object_score(
            candidates, references, None if boxes is None else [image.name in boxes for image in images]
        )

    def _hallucination(
        self, candidates: Captions, references: Sequence[Captions], chosen: Sequence[int]
    ) -> HallucinationScore | None:
        if self.image_objects is None:
            return None
        from saywhy.hallucination.measures import measure_hallucination

        return measure_hallucination(candidates, references, self.image_objects.select(chosen), self.training_counts)

    def _notes(self) -> tuple[str, ...]:
        if self.image_objects is None or self.training_counts is not None:
            return ()
        return (NO_TRAINING_CAPTIONS.format(root=self.data.root),)


def _show_objects(objects: ObjectScore) -> None:
    rows = [("object words", objects.recall), ("invented persons", objects.invented_persons)]
    _show_shares([*rows, *objects.by_category.items()])


def _show_hallucination(score: HallucinationScore) -> None:
    _show_shares(
        [
            ("CHAIR-s", score.chair.sentences),
            ("CHAIR-i", score.chair.instances),
            ("bad endings", score.bad_endings),
            ("of references", score.reference_bad_endings),
        ],
        ("count", "of"),
    )
    if score.frequent_words is None:
        return
    percent = score.frequent_words.as_dict()
    mean = ("mean (mAP)", *(_decimal(percent[name]) for name in ("map", "recall", "f1")), "", "")
    rows = [
        (
            *(word["word"], _decimal(word["precision"]), _decimal(word["recall"]), _decimal(word["f1"])),
            *(f"{word['in_training']:,}", f"{word['in_captions']:,}"),
        )
        for word in percent["words"]
    ]
    head = ("frequent words", "precision", "recall", "F1", "in training", "in captions")
    output_console().print(plain_table(head, [mean, *rows]))


def _show_shares(rows: Sequence[tuple[str, Share]], units: tuple[str, str] = ("captions", "images")) -> None:
    cells = [(name, _decimal(share.percent), str(share.count), str(share.of)) for name, share in rows]
    output_console().print(plain_table(("", "percent", *units), cells))


def _decimal(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
