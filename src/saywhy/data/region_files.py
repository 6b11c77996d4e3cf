"""The three forms of regions on disk; `region_tables.read_regions` tells them apart."""

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
from saywhy.data.regions import Regions, led_by_the_whole
from saywhy.errors import UserError


class FeatureFolder(RegionTable):
    """One `.npz` or `.npy` file a picture, found by the picture's stem.

    Of an `.npz` the usual names are known: features, x or feat; boxes or bbox; image_w and image_h, or width and
    height; num_boxes or num_bbox where arrays are padded. An `.npy` is an (n, D) array. Without boxes, every
    vector is of the whole picture.
    """

    SUFFIXES: ClassVar = (".npz", ".npy")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            self.files = {name: None for name in sorted(os.listdir(path)) if name.endswith(self.SUFFIXES)}
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None
        if not self.files:
            raise UserError(f"{path}: no .npz or .npy file in this folder of regions")

    def __contains__(self, name: object) -> bool:
        return self._file(str(name)) is not None

    def find(self, name: str, vectors: bool = True) -> Regions:
        """Read a picture's file."""
        file = self._file(name)
        if file is None:
            raise UserError(f"{self.path}: no regions for {name}")
        path = self.path / file
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

    def _file(self, picture: str) -> str | None:
        every = (f"{name}{suffix}" for name in names_of(picture) for suffix in self.SUFFIXES)
        return next((name for name in every if name in self.files), None)

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

    An `image_id` is a picture's name, its stem, or the number its stem ends with. The file is read once for where
    its lines begin, and a line when its picture is asked for.
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

    def __contains__(self, name: object) -> bool:
        return any(each in self.lines for each in names_of(str(name)))

    def find(self, name: str, vectors: bool = True) -> Regions:
        """Read a picture's line."""
        known = next((each for each in names_of(name) if each in self.lines), None)
        if known is None:
            raise UserError(f"{self.path}: no regions for {name}")
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
        # in pixels by definition: a picture of tiny boxes must not be taken for one of shares
        if not min(width, height) > 0:
            raise UserError(f"{where}: a picture of {width:g} × {height:g} pixels")
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

    *Oracle regions*: scores over them are no captioner's scores on unseen pictures. The first region is the whole
    picture; the others are the distinct boxes of its phrases, the largest first.
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
            except (ValueError, KeyError, TypeError, IndexError) as error:
                wanted = '"image", "width", "height" and "phrases" with "boxes"'
                detail = " ".join(f"{type(error).__name__}: {error}".split())
                raise UserError(f"{path}, line {number}: not a JSON object with {wanted} ({detail})") from None
            self.boxes[str(name)] = boxes
            self.boxes.setdefault(name.name, boxes)

    def __contains__(self, name: object) -> bool:
        return any(each in self.boxes for each in names_of(str(name)))

    def find(self, name: str, vectors: bool = True) -> Regions:
        """The boxes of a picture; there are no vectors."""
        boxes = next((self.boxes[each] for each in names_of(name) if each in self.boxes), None)
        if boxes is None:
            raise UserError(f"{self.path}: no regions for {name}")
        return Regions(boxes)

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
    """The whole picture, then the distinct boxes of a line, the largest first; shares (n, 4)."""
    width, height = float(row["width"]), float(row["height"])
    if not min(width, height) > 0:
        raise ValueError(f"{width:g} × {height:g} pixels")
    distinct = sorted({tuple(map(float, box)) for phrase in row["phrases"] for box in phrase.get("boxes", ())})
    boxes = np.array(distinct, np.float32).reshape(-1, 4) / np.array([width, height] * 2, np.float32)
    boxes = boxes.clip(0, 1)
    sides = boxes[:, 2:] - boxes[:, :2]
    boxes = boxes[np.argsort(-sides.prod(axis=1), kind="stable")]
    return led_by_the_whole(boxes[(boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])])
