"""The forms of regions on disk, which `read_regions` tells apart.

    folder of .npz, .npy    one file an image: features, and boxes where there are any
    .tsv                    image_id, image_w, image_h, num_boxes, boxes, features; the last two are base64 of float32
    boxes.jsonl[.gz]        boxes of the phrases of Flickr30k Entities

Nothing is unpickled.
"""

from __future__ import annotations

import base64
import binascii
import gzip
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

import numpy as np

from saywhy.data.region_tables import RegionTable, as_regions, names_of
from saywhy.data.regions import Regions, has_area, led_by_the_whole
from saywhy.errors import UserError

BESIDE = "boxes.jsonl.gz"
RECOGNISED = "a folder of .npz or .npy files, a bottom-up TSV of six columns, or boxes.jsonl[.gz]"


def read_regions(path: str | Path) -> RegionTable:
    """The regions in a file or folder; what it is is told by its contents."""
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


class FeatureFolder(RegionTable):
    """One `.npz` or `.npy` file an image, found by the image's stem.

    Of an `.npz` the usual names are known: features, x or feat; boxes or bbox; image_w and image_h, or width and
    height; num_boxes or num_bbox where arrays are padded. An `.npy` is an (n, D) array. Without boxes, every
    vector is of the whole image.
    """

    SUFFIXES: ClassVar = (".npz", ".npy")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self.files = frozenset(name for name in os.listdir(path) if name.endswith(self.SUFFIXES))
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
        if not self.files:
            raise UserError(f"{path}: no .npz or .npy file in this folder of regions")

    def entry(self, name: str) -> str | None:
        """An image's file."""
        every = (f"{each}{suffix}" for each in names_of(name) for suffix in self.SUFFIXES)
        return next((file for file in every if file in self.files), None)

    def find(self, name: str, vectors: bool = True) -> Regions:
        """Read an image's file."""
        path = self.path / self._entry(name)
        try:
            held = np.load(path, allow_pickle=False)
            if isinstance(held, np.ndarray):
                return as_regions(str(path), None, held)
            with held:
                return self._of_archive(str(path), held, vectors)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
        except Exception as error:
            if isinstance(error, UserError):
                raise
            if "pickle" in str(error):
                raise UserError(
                    f"{path}: holds pickled objects, which are never opened: save its arrays with np.savez"
                ) from None
            raise UserError(f"{path}: damaged, or no file of arrays ({' '.join(str(error).split())})") from None

    def identity(self) -> dict[str, Any]:
        """As of a file; of all files together."""
        total = sum((self.path / name).stat().st_size for name in self.files)
        return {"name": self.path.name, "files": len(self.files), "bytes": total, "oracle": self.oracle}

    @staticmethod
    def _of_archive(where: str, held: Mapping[str, np.ndarray], vectors: bool) -> Regions:
        def first(*names: str) -> np.ndarray | None:
            return next((held[name] for name in names if name in held), None)

        boxes = first("boxes", "bbox")
        features = first("features", "x", "feat") if vectors or boxes is None else None
        if features is None and boxes is None:
            raise UserError(f"{where}: neither features nor boxes; it holds {', '.join(held) or 'nothing'}")
        sides = first("image_w", "width"), first("image_h", "height")
        width, height = (None if side is None else float(side.item()) for side in sides)
        count = first("num_boxes", "num_bbox")
        size = None if width is None or height is None else (width, height)
        return as_regions(where, boxes, features, size, None if count is None else int(count.item()))


class BottomUpTsv(RegionTable):
    """The file bottom-up attention's own code writes: no header, six columns, boxes and features in base64.

    An `image_id` is an image's name, its stem, or the number its stem ends with. The file is read once for where
    its lines begin, and a line when its image is asked for.
    """

    COLUMNS: ClassVar = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.lines: dict[str, int] = {}
        with path.open("rb") as file:
            begin = 0
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self.lines.setdefault(self._id(line, number), begin)
                begin += len(line)

    def entry(self, name: str) -> str | None:
        """An image's `image_id`."""
        return next((each for each in names_of(name) if each in self.lines), None)

    def find(self, name: str, vectors: bool = True) -> Regions:
        """Read an image's line."""
        known = self._entry(name)
        with self.path.open("rb") as file:  # opened anew, as several processes may read
            file.seek(self.lines[known])
            columns = file.readline().rstrip(b"\r\n").split(b"\t")
        where = f"{self.path}, image_id {known}"
        try:
            width, height, count = float(columns[1]), float(columns[2]), int(columns[3])
            boxes = _decoded(columns[4]).reshape(count, 4)
            features = _decoded(columns[5]).reshape(count, -1) if vectors else None
        except (ValueError, binascii.Error) as error:
            raise UserError(f"{where}: not a line of {', '.join(self.COLUMNS)} ({error})") from None
        # in pixels by definition: an image of tiny boxes must not be taken for one of shares
        if not min(width, height) > 0:
            raise UserError(f"{where}: an image of {width:g} × {height:g} pixels")
        return as_regions(where, (boxes / np.array([width, height] * 2, np.float32)).clip(0, 1), features)

    def _id(self, line: bytes, number: int) -> str:
        if line.count(b"\t") + 1 != len(self.COLUMNS):
            found = line.count(b"\t") + 1
            raise UserError(f"{self.path}, line {number}: {found} columns, not {', '.join(self.COLUMNS)}")
        name = line[: line.index(b"\t")].decode("utf-8", errors="replace").strip()
        return str(int(name)) if name.isdecimal() else name


def _decoded(column: bytes) -> np.ndarray:
    return np.frombuffer(base64.b64decode(column, validate=True), np.float32)


class DrawnBoxes(RegionTable):
    """Boxes that people drew for the phrases of the captions: Flickr30k Entities, a JSON object a line.

    *Oracle regions*: scores over them are no captioner's scores on unseen images. The first region is the whole
    image; the others are the distinct boxes of its phrases, the largest first.
    """

    oracle: ClassVar[bool] = True

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.boxes: dict[str, np.ndarray] = {}
        for number, line in enumerate(self._lines(), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                name, boxes = PurePosixPath(row["image"]), _drawn(row)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                wanted = '"image", "width", "height" and "phrases" with "boxes"'
                detail = " ".join(f"{type(error).__name__}: {error}".split())
                raise UserError(f"{path}, line {number}: not a JSON object with {wanted} ({detail})") from None
            self.boxes[str(name)] = boxes
            self.boxes.setdefault(name.name, boxes)

    def entry(self, name: str) -> str | None:
        """An image's `image`, or the end of it."""
        return next((each for each in names_of(name) if each in self.boxes), None)

    def find(self, name: str, vectors: bool = True) -> Regions:
        """The boxes of an image; there are no vectors."""
        return Regions(self.boxes[self._entry(name)])

    def _lines(self) -> Iterator[str]:
        try:
            with self.path.open("rb") as raw:
                packed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                with gzip.open(raw) if packed else raw as file:
                    for line in file:
                        yield line.decode("utf-8")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise UserError(f"{self.path}: damaged or cut short ({error}); download it again") from None


def _drawn(row: dict[str, Any]) -> np.ndarray:
    """The whole image, then the distinct boxes of a line, the largest first; shares (n, 4)."""
    width, height = float(row["width"]), float(row["height"])
    if not min(width, height) > 0:
        raise ValueError(f"{width:g} × {height:g} pixels")
    every = [tuple(map(float, box)) for phrase in row["phrases"] for box in phrase.get("boxes", ())]
    if not all(len(box) == 4 and np.isfinite(box).all() for box in every):
        raise ValueError("a box is left, top, right and bottom")
    boxes = np.array(sorted(set(every)), np.float32).reshape(-1, 4) / np.array([width, height] * 2, np.float32)
    boxes = boxes.clip(0, 1)
    sides = boxes[:, 2:] - boxes[:, :2]
    boxes = boxes[np.argsort(-sides.prod(axis=1), kind="stable")]
    return led_by_the_whole(boxes[has_area(boxes)])
