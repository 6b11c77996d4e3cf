"""Check data before training: images that are missing, unreadable, unusual or in two splits.

`check` opens every image of a data set and reports all it finds. The other functions look at names and files only,
and raise a `UserError` before a training run begins.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from saywhy.cache import content_key
from saywhy.data.datasets import ANY_SPLIT, SPLITS, CaptionedImage, Dataset
from saywhy.data.images import Header, image_header, open_image
from saywhy.data.tokenizer import MARKERS, Vocabulary, tokenize
from saywhy.data.worker_pool import Progress, map_in_workers
from saywhy.errors import UnreadableImage, UserError

SMALL_SIDE = 64
"""Images with a shorter side are reported as odd: they have too little detail."""

LONG_RATIO = 4.0
"""Images with a larger aspect ratio are reported as odd: a centre crop loses most of them."""

MAX_MISSING = 0.01
"""Largest share of a split's images that may be missing in training."""


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
    workers: int | None = None,
    progress: Progress | None = None,
) -> Report:
    """Check a data set's captions and, with `open_all`, decode and compare all its images in worker processes."""
    vocabulary = _vocabulary(dataset, vocabulary_min_count)
    lengths, coverage = _caption_statistics(dataset, vocabulary)
    if open_all:
        inspected = list(map_in_workers(_inspect, dataset.images, workers, progress))
    else:
        inspected = [_inspect_path(image) for image in dataset.images]
    headers = [(item.image.name, item.header) for item in inspected if item.header]
    shared, duplicates = _identical(inspected)
    return Report(
        name=dataset.name,
        root=str(dataset.root),
        images=len(dataset.images),
        captions=sum(lengths.values()),
        splits=dataset.splits,
        captions_per_image=Distribution.of(len(image.captions) for image in dataset.images),
        caption_lengths=Distribution.of(lengths.elements()),
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


def _vocabulary(dataset: Dataset, min_count: int) -> Vocabulary:
    """The words of train; of all images if no split is named."""
    split = "train" if "train" in dataset.splits else ANY_SPLIT
    captions = (caption for image in dataset.images if image.split == split for caption in image.captions)
    return Vocabulary.build(map(tokenize, captions), min_count=min_count)


def _caption_statistics(dataset: Dataset, vocabulary: Vocabulary) -> tuple[Counter[int], dict[str, Coverage]]:
    """Captions per length in words, and coverage per split; tokenises again instead of keeping all words."""
    lengths: Counter[int] = Counter()
    tokens: Counter[str] = Counter()
    known_tokens: Counter[str] = Counter()
    captions: Counter[str] = Counter()
    known_captions: Counter[str] = Counter()
    for image in dataset.images:
        for caption in image.captions:
            words = tokenize(caption)
            known = sum(word in vocabulary for word in words)
            lengths[len(words)] += 1
            tokens[image.split] += len(words)
            known_tokens[image.split] += known
            captions[image.split] += 1
            known_captions[image.split] += known == len(words)
    splits = [split for split in (*SPLITS, ANY_SPLIT) if captions[split]]
    return lengths, {
        split: Coverage(known_tokens[split] / max(1, tokens[split]), known_captions[split] / captions[split])
        for split in splits
    }


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


def require_different_data(datasets: Sequence[Dataset]) -> None:
    """Raise a `UserError` if a data set is given twice: the same folder, with some of the same images."""
    paths_of: dict[str, set[str]] = {}
    for dataset in datasets:
        root = os.path.realpath(dataset.root)
        paths = {os.path.abspath(image.path) for image in dataset.images}
        if paths & paths_of.get(root, set()):
            raise UserError(f"{dataset.root}: this data set is given twice; name it once")
        paths_of[root] = paths_of.get(root, set()) | paths


def require_separate_splits(datasets: Sequence[Dataset]) -> None:
    """Raise a `UserError` if an image of train is also in dev or test, of the same data set or of another.

    Found are the same name in one data set, the same file, also through links, and copies that kept their name.
    Copies under other names are found by `check`, and changed ones by `saywhy data overlap`.
    """
    records = [(number, image) for number, dataset in enumerate(datasets) for image in dataset.images]
    evaluation: dict[tuple, list[tuple[int, CaptionedImage]]] = defaultdict(list)
    for number, image in records:
        if image.split in ("dev", "test"):
            for key in _image_keys(image, number):
                evaluation[key].append((number, image))
    shared = []
    for number, image in records:
        if image.split == "train" and (same := _same_image(image, _image_keys(image, number), evaluation)):
            shared.append((image, datasets[number].name, same[1], datasets[same[0]].name))
    if shared:
        image, name, other, other_name = shared[0]
        more = f", and {len(shared) - 1} more" if len(shared) > 1 else ""
        raise UserError(
            f"train shares images with dev or test: {image.name} of {name} is in train, and it is {other.name} in "
            f"{other.split} of {other_name}{more}; correct the splits, or leave such images out with --exclude FILE"
        )


def require_images(split: Dataset) -> None:
    """Raise a `UserError` if more than 1 % of the images of a split, and more than one, do not exist."""
    missing = [image for image in split.images if not os.path.isfile(image.path)]
    if not missing:
        return
    first = missing[0]
    if len(missing) == len(split):
        raise UserError(f"none of the {len(split)} images of {first.split} exists, such as {first.path}")
    if len(missing) <= max(1, MAX_MISSING * len(split)):
        return
    raise UserError(
        f"{len(missing)} of the {len(split)} images of {first.split} do not exist, such as {first.path}; "
        "complete the image folder, or name another with --images DIR"
    )


def _image_keys(image: CaptionedImage, dataset: int) -> list[tuple]:
    """Keys that two records of one image share; two copies, and perhaps two other images, share the last."""
    keys: list[tuple] = [("name", dataset, image.name)]
    try:
        status = os.stat(image.path)
    except OSError:
        return keys
    return [*keys, ("file", status.st_dev, status.st_ino), ("copy", image.path.name, status.st_size)]


def _same_image(
    image: CaptionedImage, keys: list[tuple], records: dict[tuple, list[tuple[int, CaptionedImage]]]
) -> tuple[int, CaptionedImage] | None:
    for key in keys:
        for number, other in records.get(key, ()):
            if key[0] != "copy" or content_key(image.path) == content_key(other.path):
                return number, other
    return None
