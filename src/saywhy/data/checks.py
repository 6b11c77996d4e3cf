"""Look a data set over before days are spent on it: what is missing, broken, odd or in two splits."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from saywhy.cache import content_key
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.images import Header, image_header, open_image
from saywhy.data.splits import SPLITS
from saywhy.data.tokenizer import tokenize
from saywhy.data.vocabulary import MARKERS, Vocabulary
from saywhy.errors import UnreadableImage

SMALL_SIDE = 64
"""A shorter side than this is called odd: little is left to see at an encoder's resolution."""

LONG_RATIO = 4.0
"""Sides further apart than this are called odd: a centre crop would lose most of the image."""

Progress = Callable[[int, int], None]
"""Told how many images are done, and of how many."""


@dataclass(frozen=True)
class Spread:
    """How numbers are spread."""

    min: int
    mean: float
    max: int
    histogram: dict[int, int]

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Spread:
        """Count numbers.

        >>> Spread.of([5, 5, 2])
        Spread(min=2, mean=4.0, max=5, histogram={2: 1, 5: 2})
        """
        counts = dict(sorted(Counter(numbers).items()))
        total = sum(counts.values())
        mean = sum(number * count for number, count in counts.items()) / total if total else 0.0
        return cls(min(counts, default=0), mean, max(counts, default=0), counts)


@dataclass(frozen=True)
class Fault:
    """An image and what is wrong or odd about it."""

    name: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """How much of a split the training vocabulary can say."""

    tokens: float
    """Share of words that are in the vocabulary."""
    captions: float
    """Share of captions without a word outside it."""


@dataclass(frozen=True)
class Report:
    """What `check` found."""

    name: str
    root: str
    images: int
    captions: int
    splits: dict[str, int]
    captions_per_image: Spread
    caption_lengths: Spread
    """In words, as the metrics count them: without punctuation."""
    vocabulary: int
    """Words that occur `vocabulary_min_count` times in train, the markers not counted."""
    vocabulary_min_count: int
    coverage: dict[str, Coverage]
    missing: tuple[str, ...]
    unreadable: tuple[Fault, ...]
    odd: tuple[Fault, ...]
    """Readable, but very small or very long."""
    modes: dict[str, int]
    """Pillow's colour modes before conversion to RGB."""
    sizes: dict[str, tuple[int, int]]
    """Width and height of the smallest and the largest image, by area."""
    shared: tuple[tuple[str, ...], ...]
    """Groups of identical images that reach over two splits, as "split/name"."""
    duplicates: tuple[tuple[str, ...], ...]
    """Groups of identical images within one split."""
    opened: bool
    """Whether images were opened; if not, only missing ones and shared names are found."""
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Say whether there is nothing to mend."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """One line for each kind of thing to mend; oddities and duplicates within a split are none."""
        unreadable = [fault.name for fault in self.unreadable]
        shared = [" = ".join(group) for group in self.shared]
        lines = [
            _counted("images missing", self.missing),
            _counted("images that cannot be read", unreadable),
            _counted("images that are in two splits", shared),
            "" if self.splits.get("train") else "no images to train on: split train is empty",
        ]
        return [line for line in lines if line]

    def as_dict(self) -> dict[str, Any]:
        """Give everything as plain dictionaries and lists, ready for JSON."""
        return {**dataclasses.asdict(self), "ok": self.ok, "problems": self.problems}


def check(
    dataset: Dataset,
    *,
    vocabulary_min_count: int = 5,
    open_all: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Look over a data set's captions and, with `open_all`, decode and compare every image."""
    words = [(image.split, tokenize(caption)) for image in dataset.images for caption in image.captions]
    vocabulary, coverage = _vocabulary(words, vocabulary_min_count)
    looks = list(_look_at_all(dataset.images, open_all, progress or (lambda done, total: None)))
    seen = [look for look in looks if look.header]
    shared, duplicates = _identical(looks)
    return Report(
        name=dataset.name,
        root=str(dataset.root),
        images=len(dataset.images),
        captions=len(words),
        splits=dataset.splits,
        captions_per_image=Spread.of(len(image.captions) for image in dataset.images),
        caption_lengths=Spread.of(len(caption) for _, caption in words),
        vocabulary=len(vocabulary) - len(MARKERS),
        vocabulary_min_count=vocabulary_min_count,
        coverage=coverage,
        missing=tuple(look.image.name for look in looks if look.missing),
        unreadable=tuple(Fault(look.image.name, look.fault) for look in looks if look.fault),
        odd=tuple(Fault(look.image.name, reason) for look in seen if (reason := _oddity(look.header))),
        modes=dict(Counter(look.header.mode for look in seen if look.header).most_common()),
        sizes=_sizes([(look.header.width, look.header.height) for look in seen if look.header]),
        shared=shared,
        duplicates=duplicates,
        opened=open_all,
        notes=dataset.notes,
    )


@dataclass(frozen=True)
class _Look:
    """One image looked at; never holds its pixels."""

    image: CaptionedImage
    missing: bool = False
    fault: str = ""
    header: Header | None = None
    content: str = ""


def _look_at_all(images: Sequence[CaptionedImage], open_all: bool, progress: Progress) -> Iterator[_Look]:
    look = _look if open_all else _glimpse
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:  # decoders release the GIL
        step = 64  # a few at a time, so that a stop by Ctrl-C need not wait for all
        for start in range(0, len(images), step):
            yield from pool.map(look, images[start : start + step])
            progress(min(start + step, len(images)), len(images))


def _glimpse(image: CaptionedImage) -> _Look:
    return _Look(image, missing=not image.path.is_file())


def _look(image: CaptionedImage) -> _Look:
    if not image.path.exists():
        return _Look(image, missing=True)
    try:
        header = image_header(image.path)
        open_image(image.path)
        return _Look(image, header=header, content=content_key(image.path))
    except UnreadableImage as error:
        return _Look(image, fault=str(error))


def _vocabulary(words: Iterable[tuple[str, list[str]]], min_count: int) -> tuple[Vocabulary, dict[str, Coverage]]:
    by_split: dict[str, list[list[str]]] = defaultdict(list)
    for split, caption in words:
        by_split[split].append(caption)
    vocabulary = Vocabulary.build(by_split["train"], min_count=min_count)
    covered = {split: _coverage(vocabulary, by_split[split]) for split in SPLITS if by_split[split]}
    return vocabulary, covered


def _coverage(vocabulary: Vocabulary, captions: list[list[str]]) -> Coverage:
    known = [[word in vocabulary for word in caption] for caption in captions]
    tokens = sum(map(len, known))
    return Coverage(sum(map(sum, known)) / max(1, tokens), sum(map(all, known)) / len(known))


def _oddity(header: Header | None) -> str:
    if header is None:
        return ""
    short, long = sorted((header.width, header.height))
    if short < SMALL_SIDE:
        return f"small: {header.width}×{header.height}"
    return f"long: {header.width}×{header.height}" if long > LONG_RATIO * short else ""


def _sizes(sizes: list[tuple[int, int]]) -> dict[str, tuple[int, int]]:
    if not sizes:
        return {}
    by_area = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    return {"smallest": by_area[0], "largest": by_area[-1]}


def _identical(looks: Sequence[_Look]) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    """Group images with the same contents or name: those that reach over splits, those that do not."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for look in looks:
        labelled = f"{look.image.split or 'none'}/{look.image.name}"
        groups[look.content or f"name {look.image.name}"][labelled] = look.image.split
    alike = [group for group in groups.values() if len(group) > 1]
    shared = tuple(tuple(group) for group in alike if len(set(group.values()) - {""}) > 1)
    duplicates = tuple(tuple(group) for group in alike if len(set(group.values()) - {""}) <= 1)
    return shared, duplicates


def _counted(what: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    shown = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{what}: {len(names)} ({shown})"
