"""Captioned images, whatever layout they were downloaded in.

A reader is one file in `readers/`: a small class that recognises a layout and reads it.

>>> sorted(readers)
['coco', 'flickr8k', 'folder', 'karpathy']
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from saywhy.data.splits import SPLITS
from saywhy.errors import UserError
from saywhy.registry import Registry


@dataclass(frozen=True)
class CaptionedImage:
    """An image and what people said about it."""

    name: str
    """As the data set writes it; unique within the data set."""
    path: Path
    captions: tuple[str, ...]
    split: str
    """"train", "dev", "test", or "" for an image in none of them."""


@dataclass(frozen=True)
class Dataset:
    """Captioned images, with notes on what the reader found odd."""

    name: str
    root: Path
    images: tuple[CaptionedImage, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.images)

    @property
    def splits(self) -> dict[str, int]:
        """How many images each split has; images in none are counted under ""."""
        counts = Counter(image.split for image in self.images)
        return {name: counts[name] for name in (*SPLITS, "") if counts[name]}

    def split(self, name: str) -> Dataset:
        """Keep one split; a `UserError` if it is empty."""
        chosen = tuple(image for image in self.images if image.split == name)
        if not chosen:
            there = ", ".join(f"{split} ({n})" for split, n in self.splits.items() if split) or "none"
            raise UserError(f"{self.root}: no images in split {name!r}; splits there are: {there}")
        return replace(self, images=chosen)


def digest(*parts: Dataset) -> str:
    """A hash of the images' names and captions, in their order and splits."""
    told = [[image.split, image.name, *image.captions] for part in parts for image in part.images]
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()


class Reader(Protocol):
    """Reads one layout of captioned images."""

    layout: str
    """The layout in a few words, for the message that lists what is recognised."""

    def recognises(self, root: Path, captions: Path | None = None) -> bool:
        """Say whether `root` (or the captions file, where the user named one) has this layout."""

    def read(self, root: Path, captions: Path | None = None, image_folder: Path | None = None) -> Dataset:
        """Read it; `captions` and `images` say where these are if not in their usual places."""


readers: Registry[type[Reader]] = Registry("data reader")


def read(
    root: str | Path,
    *,
    reader: str | None = None,
    captions: str | Path | None = None,
    image_folder: str | Path | None = None,
) -> Dataset:
    """Read a data set; its layout is recognised unless `reader` names it.

    `root` may be the captions file itself. A path of `captions` or `images` counts from the working
    folder or, failing that, from `root`.
    """
    root = Path(root)
    if not root.exists():
        raise UserError(f"{root}: no such file or folder; check the spelling")
    if root.is_file():
        root, captions = root.parent, captions or root
    captions_path, images_path = _located(root, captions), _located(root, image_folder)
    if images_path is not None and not images_path.is_dir():
        raise UserError(f"{images_path}: not a folder; images must name the folder that holds the images")
    chosen = readers[reader] if reader else _recognised(root, captions_path)
    return chosen().read(root, captions_path, images_path)


def _located(root: Path, given: str | Path | None) -> Path | None:
    if given is None:
        return None
    for path in (Path(given), root / given):
        if path.exists():
            return path
    raise UserError(f"{given}: no such file or folder, nor in {root}; check the spelling")


def _recognised(root: Path, captions: Path | None) -> type[Reader]:
    for name in readers:
        if readers[name]().recognises(root, captions):
            return readers[name]
    layouts = "; ".join(f"{name}: {readers[name].layout}" for name in readers)
    raise UserError(f"{captions or root}: no known layout of captioned images. Recognised are {layouts}")


# The readers enter themselves in the registry above, so they can only be imported below it.
import saywhy.data.readers  # noqa: E402, F401
