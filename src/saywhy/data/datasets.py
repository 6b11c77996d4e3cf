"""Captioned images and their splits, in any of the known file layouts.

A reader is one file in `readers/`: a small class that recognises a layout and reads it.

>>> sorted(readers)
['coco', 'flickr8k', 'folder', 'karpathy']
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from saywhy.errors import UserError
from saywhy.registry import Registry

SPLITS = ("train", "dev", "test")
ANY_SPLIT = "any"
"""The split of images whose files do not name one: they serve every split that is asked for."""

_SPLIT_NAMES = {
    **{name: name for name in SPLITS},
    "training": "train",
    "restval": "train",  # Karpathy's name for validation images that are trained on
    "val": "dev",
    "valid": "dev",
    "validation": "dev",
    "": "",
}


@dataclass(frozen=True)
class CaptionedImage:
    """An image and its captions.

    Attributes:
        name: as the data set writes it; unique within the data set.
        path: its file.
        captions: written by people, as the data set has them.
        split: "train", "dev" or "test", "any", or "" for an image in no split.
    """

    name: str
    path: Path
    captions: tuple[str, ...]
    split: str


@dataclass(frozen=True)
class Dataset:
    """Captioned images, with the reader's notes on irregularities."""

    name: str
    root: Path
    images: tuple[CaptionedImage, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def splits(self) -> dict[str, int]:
        """Images per split; images in no split are counted under ""."""
        counts = Counter(image.split for image in self.images)
        return {name: counts[name] for name in (*SPLITS, ANY_SPLIT, "") if counts[name]}

    def split(self, name: str) -> Dataset:
        """The images of one split; a `UserError` if there are none."""
        images = tuple(replace(image, split=name) for image in self.images if image.split in (name, ANY_SPLIT))
        if not images:
            known = ", ".join(f"{split} ({count})" for split, count in self.splits.items() if split) or "none"
            raise UserError(f"{self.root}: no images in split {name!r}; it has these splits: {known}")
        return replace(self, images=images)

    def evenly_spaced(self, count: int | None) -> Dataset:
        """`count` of the images, evenly spaced; all if there are no more, or for None."""
        if count is None or count >= len(self):
            return self
        return replace(self, images=tuple(self.images[index * len(self) // count] for index in range(count)))

    def train_and_dev(self) -> tuple[Dataset, Dataset]:
        """The two splits that training needs; a `UserError` if they would be the same images."""
        if ANY_SPLIT in self.splits:
            raise UserError(
                f"{self.root}: its captions file names no split, and train and dev must not share images; "
                'give every image a "split", or use one file per split, such as captions_train.json'
            )
        return self.split("train"), self.split("dev")

    def without(self, names: Collection[str]) -> Dataset:
        """The data set with these images left out of train; a `UserError` if it has no image of such a name."""
        if unknown := set(names) - {image.name for image in self.images}:
            example = f"{min(unknown)!r}" + (f" and {len(unknown) - 1} others" if len(unknown) > 1 else "")
            raise UserError(f"{self.root}: it has no image {example}; check the list of images to leave out")
        omitted = set(names)
        images = tuple(image for image in self.images if image.split != "train" or image.name not in omitted)
        return replace(self, images=images)


def digest(*datasets: Dataset) -> str:
    """A hash of the images' names and captions, in their order and splits."""
    rows = [[image.split, image.name, *image.captions] for dataset in datasets for image in dataset.images]
    return hashlib.blake2b(json.dumps(rows).encode(), digest_size=16).hexdigest()


def split_name(name: str) -> str:
    """Our name for a split, from the names that data sets use; "" for an image in no split.

    >>> split_name("val"), split_name("Train"), split_name("restval")
    ('dev', 'train', 'train')
    """
    try:
        return _SPLIT_NAMES[name.strip().lower()]
    except KeyError:
        raise UserError(f"unknown split {name!r}; known: {', '.join(filter(None, _SPLIT_NAMES))}") from None


def stable_split(name: str, dev: float = 0.1, test: float = 0.1) -> str:
    """Choose a split from a hash of the image's name.

    The same name gives the same split on every machine and in every order, and new images do not move old ones.

    >>> [stable_split(f"{number}.jpg") for number in (10, 11, 30)]
    ['train', 'test', 'dev']
    """
    digest = hashlib.blake2b(name.replace("\\", "/").encode("utf-8", "surrogateescape"), digest_size=8).digest()
    position = int.from_bytes(digest, "big") / 2**64  # uniform in [0, 1)
    if position < test:
        return "test"
    return "dev" if position < test + dev else "train"


class Reader(Protocol):
    """Reads one layout of captioned images."""

    layout: str
    """The layout in a few words, for the message that lists all known layouts."""

    def recognises(self, root: Path, captions: Path | None = None) -> bool:
        """Whether the folder `root`, or the captions file if the user named one, has this layout."""

    def read(self, root: Path, captions: Path | None = None, image_folder: Path | None = None) -> Dataset:
        """Read it; `captions` and `image_folder` replace the usual places."""


# Layouts are tried in this order, the most specific first.
readers: Registry[type[Reader]] = Registry(
    "data reader",
    builtin=[f"saywhy.data.readers.{name}" for name in ("flickr8k", "karpathy", "coco", "folder")],
)


def read(
    root: str | Path,
    *,
    reader: str | None = None,
    captions: str | Path | None = None,
    image_folder: str | Path | None = None,
) -> Dataset:
    """Read a data set; its layout is recognised unless `reader` names it.

    `root` may be the captions file itself. `captions` and `image_folder` are relative to the working folder or, if
    nothing is there, to `root`.
    """
    root = Path(root)
    if not root.exists():
        raise UserError(f"{root}: no such file or folder; check the spelling")
    if root.is_file():
        root, captions = root.parent, captions or root
    captions_path, images_path = _locate(root, captions), _locate(root, image_folder)
    if images_path is not None and not images_path.is_dir():
        raise UserError(f"{images_path}: not a folder; --images must name the folder that holds the images")
    reader_class = readers[reader] if reader else _recognise(root, captions_path)
    return reader_class().read(root, captions_path, images_path)


def _locate(root: Path, name: str | Path | None) -> Path | None:
    if name is None:
        return None
    for path in (Path(name), root / name):
        if path.exists():
            return path
    raise UserError(f"{name}: no such file or folder, nor in {root}; check the spelling")


def _recognise(root: Path, captions: Path | None) -> type[Reader]:
    for name in readers:
        if readers[name]().recognises(root, captions):
            return readers[name]
    layouts = "; ".join(f"{name}: {readers[name].layout}" for name in readers)
    raise UserError(f"{captions or root}: no known layout of captioned images. Known layouts are {layouts}")
