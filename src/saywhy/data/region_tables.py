"""What every form of regions on disk has in common (`region_files` has the forms): a table by names of images.

Boxes that people drew for an image's own captions are *oracle regions*: what is said over them has seen what is
worth saying, so its scores are no captioner's scores on unseen images.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from saywhy.data.regions import WHOLE, Regions, has_area
from saywhy.errors import UserError

ROUNDING = 0.01  # shares that were computed may end a little above 1


class RegionTable(ABC):
    """Regions by the name of an image.

    Attributes:
        path: where they are.
        oracle: whether the boxes were drawn for the captions themselves.
    """

    oracle: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def entry(self, name: str) -> str | None:
        """What the table calls an image of this name; None where it has no regions for it."""

    @abstractmethod
    def find(self, name: str, vectors: bool = True) -> Regions:
        """The regions of an image; without `vectors` those are not read."""

    def require(self, names: Iterable[str]) -> None:
        """Raise a `UserError` if an image has none, or two would have the same."""
        entries = {name: self.entry(name) for name in names}
        if missing := [name for name, entry in entries.items() if entry is None]:
            raise UserError(
                f"{self.path}: no regions for {len(missing)} of {len(entries)} images, such as {missing[0]}"
            )
        owners: dict[str | None, str] = {}
        for name, entry in entries.items():
            if (other := owners.setdefault(entry, name)) != name:
                raise UserError(f"{self.path}: {other} and {name} would both have the regions of {entry}")

    def _entry(self, name: str) -> str:
        entry = self.entry(name)
        if entry is None:
            raise UserError(f"{self.path}: no regions for {name}")
        return entry

    def identity(self) -> dict[str, Any]:
        """What tells this table from another, cheaply: its name and how large it is."""
        return {"name": self.path.name, "bytes": self.path.stat().st_size, "oracle": self.oracle}


def names_of(image: str) -> Iterator[str]:
    """The names an image may go by, the most exact first; digits that end a word are no number.

    >>> list(names_of("val2014/COCO_val2014_000000123.jpg"))
    ['val2014/COCO_val2014_000000123.jpg', 'COCO_val2014_000000123.jpg', 'COCO_val2014_000000123', '123']
    >>> list(names_of("1001773457_577c3a7d70.jpg"))
    ['1001773457_577c3a7d70.jpg', '1001773457_577c3a7d70']
    """
    name = PurePosixPath(image.replace("\\", "/"))
    yield image
    if name.name != image:
        yield name.name
    if name.stem != name.name:
        yield name.stem
    if number := re.search(r"(?<![A-Za-z0-9])\d+$", name.stem):
        yield str(int(number[0]))


def as_regions(
    where: str,
    boxes: np.ndarray | None,
    vectors: np.ndarray | None,
    size: tuple[float, float] | None = None,
    count: int | None = None,
) -> Regions:
    """Regions from a file's arrays.

    Args:
        where: named in complaints.
        boxes: (n, 4) in shares, or in pixels; None for the whole image each time.
        vectors: (n, D), or (D, n) as some dumps have it; None for boxes alone.
        size: width and height, where boxes are in pixels.
        count: how many of the n there are, where the rest is padding.
    """
    if vectors is not None and boxes is not None and vectors.shape[1:] == (len(boxes),) != vectors.shape[:1]:
        vectors = vectors.T  # (n, D)
    boxes, vectors = (None if each is None else each[:count] for each in (boxes, vectors))
    _refuse_misfits(where, boxes, vectors)
    if boxes is None:
        assert vectors is not None
        boxes = np.tile(np.array(WHOLE, np.float32), (len(vectors), 1))
    boxes = _shares(where, boxes.astype(np.float32), size)
    there = has_area(boxes)
    if not there.any():
        raise UserError(f"{where}: no box with an area (left, top, right, bottom); an image needs one region at least")
    return Regions(boxes[there], None if vectors is None else vectors[there].astype(np.float32))


def _refuse_misfits(where: str, boxes: np.ndarray | None, vectors: np.ndarray | None) -> None:
    if boxes is None and vectors is None:
        raise UserError(f"{where}: neither features nor boxes")
    if vectors is not None and not (vectors.ndim == 2 and vectors.shape[1] and _finite(vectors)):
        raise UserError(f"{where}: features must be n × D finite numbers, not {vectors.dtype} of {vectors.shape}")
    if boxes is not None and not (boxes.ndim == 2 and boxes.shape[1] == 4 and _finite(boxes)):
        raise UserError(f"{where}: boxes must be n × 4 finite numbers, not {boxes.dtype} of {boxes.shape}")
    if boxes is not None and vectors is not None and len(vectors) != len(boxes):
        raise UserError(f"{where}: {len(boxes)} boxes and features of {len(vectors)}")


def _finite(values: np.ndarray) -> bool:
    return values.dtype.kind in "fiu" and bool(np.isfinite(values).all())


def _shares(where: str, boxes: np.ndarray, size: tuple[float, float] | None) -> np.ndarray:
    if boxes.size and boxes.max() > 1 + ROUNDING:
        if size is None:
            raise UserError(
                f"{where}: boxes in pixels, and no size to divide them by: add image_w and image_h, or give shares 0–1"
            )
        if not min(size) > 0:
            raise UserError(f"{where}: boxes in pixels of an image of {size[0]:g} × {size[1]:g} pixels")
        boxes = boxes / np.array([*size, *size], np.float32)
    return boxes.clip(0, 1)
