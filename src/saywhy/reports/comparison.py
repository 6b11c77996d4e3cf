"""Two sets of captions of the same images, A and B: their scores, and the words and images that changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from saywhy.audits.statistics import Bootstrap
from saywhy.data.datasets import Dataset
from saywhy.data.object_words import Mention
from saywhy.data.tokenizer import as_text
from saywhy.hallucination.chair import CaptionObjects, ImageObjects, chair
from saywhy.metrics.base import Floats, Words, as_words
from saywhy.metrics.rarity import Rarity, rarity
from saywhy.reports.score_differences import SAMPLES, ScoreDifference, add_meteor, score_differences, score_table


@dataclass(frozen=True)
class CaptionSet:
    """Captions of a split, by a model or from a file.

    Attributes:
        name: of the model or the file.
        decoding: as signatures write it; "given" for a file.
        words: the words of each image's caption, by image name.
        unreadable: one line for each image that could not be read.
    """

    name: str
    decoding: str
    words: Mapping[str, Words]
    unreadable: tuple[str, ...] = ()


@dataclass(frozen=True)
class WordChange:
    """How many captions of A and of B have a word, and in how many of these the image does not have that object.

    The last two are None for words that name no object.
    """

    word: str
    a: int
    b: int
    a_hallucinated: int | None = None
    b_hallucinated: int | None = None

    @property
    def is_object(self) -> bool:
        """Whether it is a word for an object."""
        return self.a_hallucinated is not None


@dataclass(frozen=True)
class ScoredCaption:
    """One caption, its CIDEr in percent, and the positions of object words that its image does not have."""

    words: tuple[str, ...]
    cider: float
    hallucinated: frozenset[int] = frozenset()


@dataclass(frozen=True)
class ImageChange:
    """An image with both captions and its references."""

    name: str
    a: ScoredCaption
    b: ScoredCaption
    references: tuple[str, ...]

    @property
    def difference(self) -> float:
        """CIDEr of B minus that of A."""
        return self.b.cider - self.a.cider

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        captions = {"a": as_text(self.a.words), "b": as_text(self.b.words)}
        scores = {"cider_a": self.a.cider, "cider_b": self.b.cider, "difference": self.difference}
        return {"image": self.name, **captions, **scores, "references": list(self.references)}


@dataclass(frozen=True)
class Comparison:
    """What differs between two sets of captions.

    Attributes:
        names: of A and B.
        decoding: of A and B, as signatures write it.
        data: name of the data set.
        split: of the data set.
        n: number of images.
        samples: of the bootstrap.
        objects: where the objects of the images come from, for CHAIR.
        scores: every score with its difference.
        unchanged: number of images with the same caption.
        vocabulary: number of distinct words in the captions of A and B.
        gained: words of more captions in B than in A, object words first, then by difference.
        lost: words of fewer captions in B than in A, likewise.
        better: images whose CIDEr rose, the most first.
        worse: images whose CIDEr fell, the most first.
        rarity: the training count of the rarest reference word of images whose CIDEr rose, and of those whose CIDEr
            fell; None without training captions.
        notes: one line each about what was left out.
    """

    names: tuple[str, str]
    decoding: tuple[str, str]
    data: str
    split: str
    n: int
    samples: int
    objects: str
    scores: tuple[ScoreDifference, ...]
    unchanged: int
    vocabulary: tuple[int, int]
    gained: tuple[WordChange, ...]
    lost: tuple[WordChange, ...]
    better: tuple[ImageChange, ...]
    worse: tuple[ImageChange, ...]
    rarity: Rarity | None = None
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        sides = zip("ab", self.names, self.decoding, self.vocabulary, strict=True)
        return {
            **{side: {"name": name, "decoding": decoding, "words_used": used} for side, name, decoding, used in sides},
            **{"data": self.data, "split": self.split, "n": self.n, "bootstrap_samples": self.samples},
            "objects": self.objects,
            "scores": [score.as_dict() for score in self.scores],
            "unchanged": {"count": self.unchanged, "percent": 100 * self.unchanged / self.n},
            "words_gained": [asdict(change) for change in self.gained],
            "words_lost": [asdict(change) for change in self.lost],
            "better": [change.as_dict() for change in self.better],
            "worse": [change.as_dict() for change in self.worse],
            "rarity": self.rarity.as_dict() if self.rarity else None,
            "notes": list(self.notes),
        }


def compare(
    a: CaptionSet,
    b: CaptionSet,
    data: Dataset,
    objects: ImageObjects,
    *,
    person_boxes: Sequence[bool] | None = None,
    training_counts: Mapping[str, int] | None = None,
    word_counts: Mapping[str, int] | None = None,
    with_meteor: bool = True,
    images: int = 12,
    words: int = 12,
    samples: int = SAMPLES,
) -> Comparison:
    """Compare captions of the images of `data`, a split; every image must have a caption in both sets.

    Args:
        a: captions of A.
        b: captions of B.
        data: the images and their references.
        objects: the objects of each image; see `hallucination.chair`.
        person_boxes: whether each image has a person's box; None if there are no boxes.
        training_counts: mentions of objects in the training captions, which choose the frequent words; None without.
        word_counts: how often each word is in the training captions, for the rarity; None without.
        with_meteor: whether to compute METEOR, which needs Java; without Java it becomes a note.
        images: how many images are listed of those that became better, and of those that became worse.
        words: how many object words and how many other words are listed as gained, and as lost.
        samples: of the bootstrap.
    """
    captions = [[side.words[image.name] for image in data.images] for side in (a, b)]
    references = [[as_words(caption) for caption in image.captions] for image in data.images]
    named = [chair(side, objects).per_caption for side in captions]
    notes: list[str] = []
    tables = [
        score_table(side, references, mentions, person_boxes, training_counts)
        for side, mentions in zip(captions, named, strict=True)
    ]
    if with_meteor:
        add_meteor(tables, captions, references, notes)
    scores = score_differences(tables, Bootstrap(range(len(data)), samples))
    ciders = [table["CIDEr"].counts[:, 0] for table in tables]
    changes = _image_changes(data, captions, ciders, named)
    gained, lost = _word_changes(captions, named, words)
    return Comparison(
        names=(a.name, b.name),
        decoding=(a.decoding, b.decoding),
        data=data.name,
        split=data.images[0].split,
        n=len(data),
        samples=samples,
        objects=objects.source,
        scores=scores,
        unchanged=sum(list(first) == list(second) for first, second in zip(*captions, strict=True)),
        vocabulary=(_vocabulary(captions[0]), _vocabulary(captions[1])),
        gained=gained,
        lost=lost,
        better=tuple(change for change in changes[:images] if change.difference > 0),
        worse=tuple(change for change in changes[::-1][:images] if change.difference < 0),
        rarity=None if word_counts is None else rarity(references, word_counts, *(side.tolist() for side in ciders)),
        notes=tuple(notes),
    )


def _image_changes(
    data: Dataset,
    captions: Sequence[Sequence[Words]],
    scores: Sequence[Floats],
    named: Sequence[Sequence[CaptionObjects]],
) -> list[ImageChange]:
    """All images, those whose CIDEr rose most first; equal ones in the order of the data set."""
    a, b = (
        [
            ScoredCaption(tuple(words), 100 * float(score), _hallucinated_positions(mentions))
            for words, score, mentions in zip(*side, strict=True)
        ]
        for side in zip(captions, scores, named, strict=True)
    )
    order = np.argsort(scores[0] - scores[1], kind="stable")
    return [ImageChange(data.images[i].name, a[i], b[i], data.images[i].captions) for i in order]


def _hallucinated_positions(named: CaptionObjects) -> frozenset[int]:
    """The positions of all words of hallucinated mentions; a mention's own position is that of its last word."""
    ends = [(mention.position, len(mention.word.split())) for mention in named.hallucinated]
    return frozenset(position for end, length in ends for position in range(end - length + 1, end + 1))


def _word_changes(
    captions: Sequence[Sequence[Words]], named: Sequence[Sequence[CaptionObjects]], count: int
) -> tuple[tuple[WordChange, ...], tuple[WordChange, ...]]:
    """The words gained and lost: `count` object words and `count` others of each."""
    changes = [*_object_changes(named), *_other_changes(captions, named)]
    gained = sorted(changes, key=lambda change: (not change.is_object, change.a - change.b, change.word))
    lost = sorted(changes, key=lambda change: (not change.is_object, change.b - change.a, change.word))
    return (
        _first_of_each_kind([change for change in gained if change.b > change.a], count),
        _first_of_each_kind([change for change in lost if change.b < change.a], count),
    )


def _first_of_each_kind(changes: Sequence[WordChange], count: int) -> tuple[WordChange, ...]:
    objects = [change for change in changes if change.is_object]
    return (*objects[:count], *[change for change in changes if not change.is_object][:count])


def _object_changes(named: Sequence[Sequence[CaptionObjects]]) -> list[WordChange]:
    all_mentions = [Counter(word for caption in side for word in _distinct(caption.mentioned)) for side in named]
    hallucinated = [Counter(word for caption in side for word in _distinct(caption.hallucinated)) for side in named]
    return [
        WordChange(word, *(counts[word] for counts in (*all_mentions, *hallucinated)))
        for word in dict.fromkeys([*all_mentions[0], *all_mentions[1]])
    ]


def _other_changes(captions: Sequence[Sequence[Words]], named: Sequence[Sequence[CaptionObjects]]) -> list[WordChange]:
    counts = []
    for side, side_named in zip(captions, named, strict=True):
        counter: Counter[str] = Counter()
        for words, mentions in zip(side, side_named, strict=True):
            counter.update(set(words) - {part for mention in mentions.mentioned for part in mention.word.split()})
        counts.append(counter)
    return [WordChange(word, counts[0][word], counts[1][word]) for word in dict.fromkeys([*counts[0], *counts[1]])]


def _distinct(mentions: Sequence[Mention]) -> set[str]:
    return {mention.word for mention in mentions}


def _vocabulary(captions: Sequence[Words]) -> int:
    return len({word for words in captions for word in words})
