"""Where regions are read from: a folder of NumPy files, a bottom-up TSV, or boxes that people drew.

    folder of .npz, .npy    one file a picture: features, and boxes where there are any
    .tsv                    image_id, image_w, image_h, num_boxes, boxes, features; the last two are base64 of float32
    boxes.jsonl[.gz]        boxes of the phrases of Flickr30k Entities

Nothing is unpickled. Boxes that people drew for a picture's own captions are *oracle regions*: what is said over
them has seen what is worth saying, so its scores are no captioner's scores on unseen pictures.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from saywhy.data.regions import WHOLE, Regions
from saywhy.errors import UserError

BESIDE = "boxes.jsonl.gz"
RECOGNISED = "a folder of .npz or .npy files, a bottom-up TSV of six columns, or boxes.jsonl[.gz]"
ROUNDING = 0.01  # shares that were computed may end a little above 1


class RegionTable(ABC):
    """Regions by the name of a picture.

    Attributes:
        path: where they are.
        oracle: whether the boxes were drawn for the captions themselves.
    """

    oracle: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def __contains__(self, name: object) -> bool:
        """Say whether a picture of this name has regions."""

    @abstractmethod
    def find(self, name: str, vectors: bool = True) -> Regions:
        """The regions of a picture; without `vectors` those are not read."""

    def require(self, names: Iterable[str]) -> None:
        """Raise a `UserError` if a picture has none."""
        names = list(names)
        if missing := [name for name in names if name not in self]:
            raise UserError(
                f"{self.path}: no regions for {len(missing)} of {len(names)} pictures, such as {missing[0]}"
            )

    def identity(self) -> dict[str, Any]:
        """What tells this table from another, cheaply: its name and how large it is."""
        return {"name": self.path.name, "bytes": self.path.stat().st_size, "oracle": self.oracle}


def names_of(picture: str) -> Iterator[str]:
    """The names a picture may go by, the most exact first.

    >>> list(names_of("val2014/COCO_val2014_000000123.jpg"))
    ['val2014/COCO_val2014_000000123.jpg', 'COCO_val2014_000000123.jpg', 'COCO_val2014_000000123', '123']
    """
    name = PurePosixPath(picture.replace("\\", "/"))
    yield picture
    if name.name != picture:
        yield name.name
    if name.stem != name.name:
        yield name.stem
    if number := re.search(r"\d+$", name.stem):
        yield str(int(number[0]))


def read_regions(path: str | Path) -> RegionTable:
    """The regions in a file or folder; what it is is told by its contents."""
    from saywhy.data.region_files import BottomUpTsv, DrawnBoxes, FeatureFolder

    path = Path(path)
    if path.is_dir():
        return FeatureFolder(path)
    try:
        with path.open("rb") as file:
            beginning = file.read(2)
            file.seek(0)
            columns = 0 if beginning in (b"PK", b"\x93N") else file.readline().count(b"\t") + 1
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its name and permissions") from None
    if beginning == b"\x1f\x8b" or beginning[:1] == b"{":
        return DrawnBoxes(path)
    if columns == len(BottomUpTsv.COLUMNS):
        return BottomUpTsv(path)
    raise UserError(f"{path}: no regions that are known; give {RECOGNISED}")


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
        boxes: (n, 4) in shares, or in pixels; None for the whole picture each time.
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
    if not ((boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])).any():
        raise UserError(f"{where}: no box with an area (left, top, right, bottom); a picture needs one region at least")
    return Regions(boxes, None if vectors is None else vectors.astype(np.float32))


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
            raise UserError(f"{where}: boxes in pixels of a picture of {size[0]:g} × {size[1]:g} pixels")
        boxes = boxes / np.array([*size, *size], np.float32)
    return boxes.clip(0, 1)
