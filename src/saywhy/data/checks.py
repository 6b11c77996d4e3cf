"""Check a data set before training: images that are missing, unreadable, unusual or in two splits."""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from saywhy.cache import content_key
from saywhy.data.datasets import ANY_SPLIT, SPLITS, CaptionedImage, Dataset
from saywhy.data.images import Header, image_header, open_image
from saywhy.data.tokenizer import MARKERS, Vocabulary, tokenize
from saywhy.errors import UnreadableImage

SMALL_SIDE = 64
"""Images with a shorter side are reported as odd: they have too little detail."""

LONG_RATIO = 4.0
"""Images with a larger aspect ratio are reported as odd: a centre crop loses most of them."""

Progress = Callable[[int, int], None]
"""Called with the number of images done and the number of all images."""


@dataclass(frozen=True)
class Distribution:
    """Statistics of some integers."""

    min: int
    mean: float
    max: int
    histogram: dict[int, int]

    @classmethod
    def of(cls, numbers: Iterable[int]) -> Distribution:
        """The statistics of `numbers`.

        >>> Distribution.of([5, 5, 2])
        Distribution(min=2, mean=4.0, max=5, histogram={2: 1, 5: 2})
        """
        counts = dict(sorted(Counter(numbers).items()))
        total = sum(counts.values())
        mean = sum(number * count for number, count in counts.items()) / total if total else 0.0
        return cls(min(counts, default=0), mean, max(counts, default=0), counts)


@dataclass(frozen=True)
class ImageProblem:
    """The name of an image, and what is wrong with it."""

    name: str
    reason: str


@dataclass(frozen=True)
class Coverage:
    """How much of a split is in the training vocabulary.

    Attributes:
        tokens: share of the words that are in the vocabulary.
        captions: share of the captions of which every word is.
    """

    tokens: float
    captions: float


@dataclass(frozen=True)
class Report:
    """The result of `check`.

    Attributes:
        caption_lengths: in words as the metrics count them, without punctuation.
        vocabulary: number of words that occur at least `vocabulary_min_count` times in train, without markers.
        missing: images without a file.
        odd: readable images that are very small or very long.
        modes: images per Pillow colour mode, before conversion to RGB.
        sizes: width and height of the smallest and the largest image, by area.
        shared: groups of identical images in different splits, as "split/name".
        duplicates: groups of identical images within one split.
        opened: whether images were opened; if not, only missing files and shared names are found.
        notes: of the data set's reader.
    """

    name: str
    root: str
    images: int
    captions: int
    splits: dict[str, int]
    captions_per_image: Distribution
    caption_lengths: Distribution
    vocabulary: int
    vocabulary_min_count: int
    coverage: dict[str, Coverage]
    missing: tuple[str, ...]
    unreadable: tuple[ImageProblem, ...]
    odd: tuple[ImageProblem, ...]
    modes: dict[str, int]
    sizes: dict[str, tuple[int, int]]
    shared: tuple[tuple[str, ...], ...]
    duplicates: tuple[tuple[str, ...], ...]
    opened: bool
    notes: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    @property
    def problems(self) -> list[str]:
        """One line per kind of problem; odd images and duplicates within a split are not problems."""
        unreadable = [problem.name for problem in self.unreadable]
        shared = [" = ".join(group) for group in self.shared]
        missing = _counted("images missing", self.missing)
        if 2 * len(self.missing) > self.images:
            missing += "; if they are in another folder, name it with --images DIR"
        lines = [
            missing,
            _counted("images that cannot be read", unreadable),
            _counted("images that are in two splits", shared),
            "" if {"train", ANY_SPLIT} & self.splits.keys() else "no images to train on: split train is empty",
        ]
        return [line for line in lines if line]

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain dictionaries and lists, for JSON."""
        return {**dataclasses.asdict(self), "ok": self.ok, "problems": self.problems}


def check(
    dataset: Dataset,
    *,
    vocabulary_min_count: int = 5,
    open_all: bool = True,
    progress: Progress | None = None,
) -> Report:
    """Check a data set's captions and, with `open_all`, decode and compare all its images."""
    tokens = [(image.split, tokenize(caption)) for image in dataset.images for caption in image.captions]
    vocabulary, coverage = _vocabulary(tokens, vocabulary_min_count)
    inspected = list(_inspect_all(dataset.images, open_all, progress or (lambda done, total: None)))
    headers = [(item.image.name, item.header) for item in inspected if item.header]
    shared, duplicates = _identical(inspected)
    return Report(
        name=dataset.name,
        root=str(dataset.root),
        images=len(dataset.images),
        captions=len(tokens),
        splits=dataset.splits,
        captions_per_image=Distribution.of(len(image.captions) for image in dataset.images),
        caption_lengths=Distribution.of(len(caption) for _, caption in tokens),
        vocabulary=len(vocabulary) - len(MARKERS),
        vocabulary_min_count=vocabulary_min_count,
        coverage=coverage,
        missing=tuple(item.image.name for item in inspected if item.missing),
        unreadable=tuple(ImageProblem(item.image.name, item.error) for item in inspected if item.error),
        odd=tuple(ImageProblem(name, reason) for name, header in headers if (reason := _oddity(header))),
        modes=dict(Counter(header.mode for _, header in headers).most_common()),
        sizes=_extreme_sizes([(header.width, header.height) for _, header in headers]),
        shared=shared,
        duplicates=duplicates,
        opened=open_all,
        notes=dataset.notes,
    )


@dataclass(frozen=True)
class _Inspected:
    """The result for one image, without its pixels."""

    image: CaptionedImage
    missing: bool = False
    error: str = ""
    header: Header | None = None
    content: str = ""


def _inspect_all(images: Sequence[CaptionedImage], open_all: bool, progress: Progress) -> Iterator[_Inspected]:
    inspect = _inspect if open_all else _inspect_path
    with ThreadPoolExecutor(max_workers=min(4, os.cpu_count() or 1)) as pool:  # decoders release the GIL
        step = 64  # few at a time, so that Ctrl-C does not wait for all
        for start in range(0, len(images), step):
            yield from pool.map(inspect, images[start : start + step])
            progress(min(start + step, len(images)), len(images))


def _inspect_path(image: CaptionedImage) -> _Inspected:
    return _Inspected(image, missing=not image.path.is_file())


def _inspect(image: CaptionedImage) -> _Inspected:
    if not image.path.exists():
        return _Inspected(image, missing=True)
    try:
        header = image_header(image.path)
        open_image(image.path)
        return _Inspected(image, header=header, content=content_key(image.path))
    except UnreadableImage as error:
        return _Inspected(image, error=str(error))


def _vocabulary(captions: Iterable[tuple[str, list[str]]], min_count: int) -> tuple[Vocabulary, dict[str, Coverage]]:
    by_split: dict[str, list[list[str]]] = defaultdict(list)
    for split, tokens in captions:
        by_split[split].append(tokens)
    vocabulary = Vocabulary.build(by_split["train"] or by_split[ANY_SPLIT], min_count=min_count)
    coverage = {split: _coverage(vocabulary, by_split[split]) for split in (*SPLITS, ANY_SPLIT) if by_split[split]}
    return vocabulary, coverage


def _coverage(vocabulary: Vocabulary, captions: list[list[str]]) -> Coverage:
    known = [[word in vocabulary for word in caption] for caption in captions]
    tokens = sum(map(len, known))
    return Coverage(sum(map(sum, known)) / max(1, tokens), sum(map(all, known)) / len(known))


def _oddity(header: Header) -> str:
    short, long = sorted((header.width, header.height))
    if short < SMALL_SIDE:
        return f"small: {header.width}×{header.height}"
    return f"long: {header.width}×{header.height}" if long > LONG_RATIO * short else ""


def _extreme_sizes(sizes: list[tuple[int, int]]) -> dict[str, tuple[int, int]]:
    if not sizes:
        return {}
    by_area = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    return {"smallest": by_area[0], "largest": by_area[-1]}


def _identical(inspected: Sequence[_Inspected]) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    """Groups of images with the same contents or name: those in several splits, and those within one."""
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for item in inspected:
        label = f"{item.image.split or 'none'}/{item.image.name}"
        groups[item.content or f"name {item.image.name}"][label] = item.image.split
    identical = [group for group in groups.values() if len(group) > 1]
    shared = tuple(tuple(group) for group in identical if len(set(group.values()) - {""}) > 1)
    duplicates = tuple(tuple(group) for group in identical if len(set(group.values()) - {""}) <= 1)
    return shared, duplicates


def _counted(problem: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    examples = ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
    return f"{problem}: {len(names)} ({examples})"
