"""File formats of regions; `read_regions` recognises them by content.

    folder of .npz, .npy    one file per image: features, and optionally boxes
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

from saywhy.data.images import names_of
from saywhy.data.regions import (
    RegionLocation,
    Regions,
    RegionSettings,
    RegionSource,
    RegionTable,
    has_area,
    prepend_full_image,
    to_regions,
)
from saywhy.errors import UserError

ENTITIES_FILE = "boxes.jsonl.gz"
"""The name under which a data set's folder may hold Flickr30k Entities."""
FORMATS = "a folder of .npz or .npy files, a bottom-up TSV of six columns, or boxes.jsonl[.gz]"


def find_regions(
    settings: RegionSettings | None,
    location: RegionLocation,
    user: str,
    data_folder: Path | None = None,
) -> RegionSource | None:
    """The regions that a model or a recipe needs; None for a grid.

    Args:
        settings: what it needs; None for a grid.
        location: a path, or a table already read; None for the boxes in `data_folder`.
        user: the model or the recipe, for error messages.
        data_folder: a data set's folder, which may hold `boxes.jsonl.gz`.
    """
    if settings is None:
        if location is not None:
            raise UserError(f"{user} attends to a grid, not to regions: omit --regions")
        return None
    default = None if data_folder is None or settings.kind != "boxes" else data_folder / ENTITIES_FILE
    if location is None and default is not None and default.is_file():
        location = default
    if location is None:
        what = "boxes" if settings.kind == "boxes" else "regions with their features"
        missing = f" (there is no {default})" if default else ""
        raise UserError(f"{user} needs {what} of each image{missing}: name their file or folder with --regions PATH")
    return RegionSource(settings, location if isinstance(location, RegionTable) else read_regions(location))


def read_regions(path: str | Path) -> RegionTable:
    """The regions in a file or folder."""
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
        return EntityBoxes(path)
    if columns == len(BottomUpTsv.COLUMNS):
        return BottomUpTsv(path)
    raise UserError(f"{path}: not a known format of regions; give {FORMATS}")


class FeatureFolder(RegionTable):
    """One `.npz` or `.npy` file per image, found by the image's stem.

    Array names in an `.npz`: features, x or feat; boxes or bbox; image_w and image_h, or width and height; num_boxes
    or num_bbox where arrays are padded. An `.npy` is an (n, D) array. Without boxes, every vector is of the full image.
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
        """The name of an image's file."""
        candidates = (f"{stem}{suffix}" for stem in names_of(name) for suffix in self.SUFFIXES)
        return next((file for file in candidates if file in self.files), None)

    def find(self, name: str, vectors: bool = True) -> Regions:
        """Read an image's file."""
        path = self.path / self._entry(name)
        try:
            contents = np.load(path, allow_pickle=False)
            if isinstance(contents, np.ndarray):
                return to_regions(str(path), None, contents)
            with contents:
                return self._from_archive(str(path), contents, vectors)
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
        except Exception as error:
            if isinstance(error, UserError):
                raise
            if "pickle" in str(error):
                raise UserError(
                    f"{path}: contains pickled objects, which are not opened: save its arrays with np.savez"
                ) from None
            raise UserError(f"{path}: damaged, or not a file of arrays ({' '.join(str(error).split())})") from None

    def identity(self) -> dict[str, Any]:
        """The folder's name, and the number and total size of its files."""
        total = sum((self.path / name).stat().st_size for name in self.files)
        return {"name": self.path.name, "files": len(self.files), "bytes": total, "oracle": self.oracle}

    @staticmethod
    def _from_archive(source: str, arrays: Mapping[str, np.ndarray], vectors: bool) -> Regions:
        def first(*names: str) -> np.ndarray | None:
            return next((arrays[name] for name in names if name in arrays), None)

        boxes = first("boxes", "bbox")
        features = first("features", "x", "feat") if vectors or boxes is None else None
        if features is None and boxes is None:
            raise UserError(f"{source}: neither features nor boxes; its arrays are {', '.join(arrays) or 'none'}")
        sides = first("image_w", "width"), first("image_h", "height")
        width, height = (None if side is None else float(side.item()) for side in sides)
        count = first("num_boxes", "num_bbox")
        size = None if width is None or height is None else (width, height)
        return to_regions(source, boxes, features, size, None if count is None else int(count.item()))


class BottomUpTsv(RegionTable):
    """The format of bottom-up attention's own code: no header, six columns, boxes and features in base64.

    An `image_id` is an image's name, its stem, or the number at the end of its stem. Only the offset of each line is
    kept in memory.
    """

    COLUMNS: ClassVar = ("image_id", "image_w", "image_h", "num_boxes", "boxes", "features")

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.offsets: dict[str, int] = {}
        with path.open("rb") as file:
            offset = 0
            for number, line in enumerate(file, start=1):
                if line.strip():
                    self.offsets.setdefault(self._image_id(line, number), offset)
                offset += len(line)

    def entry(self, name: str) -> str | None:
        """An image's `image_id`."""
        return next((alias for alias in names_of(name) if alias in self.offsets), None)

    def find(self, name: str, vectors: bool = True) -> Regions:
        """Read an image's line."""
        image_id = self._entry(name)
        with self.path.open("rb") as file:  # opened each time, because several processes may read
            file.seek(self.offsets[image_id])
            columns = file.readline().rstrip(b"\r\n").split(b"\t")
        source = f"{self.path}, image_id {image_id}"
        try:
            width, height, count = float(columns[1]), float(columns[2]), int(columns[3])
            boxes = _decoded(columns[4]).reshape(count, 4)
            features = _decoded(columns[5]).reshape(count, -1) if vectors else None
        except (ValueError, binascii.Error) as error:
            raise UserError(f"{source}: not a line of {', '.join(self.COLUMNS)} ({error})") from None
        # The format has pixels: tiny boxes must not be mistaken for shares.
        if not min(width, height) > 0:
            raise UserError(f"{source}: an image of {width:g} × {height:g} pixels")
        return to_regions(source, (boxes / np.array([width, height] * 2, np.float32)).clip(0, 1), features)

    def _image_id(self, line: bytes, number: int) -> str:
        columns = line.count(b"\t") + 1
        if columns != len(self.COLUMNS):
            raise UserError(f"{self.path}, line {number}: {columns} columns, not {', '.join(self.COLUMNS)}")
        name = line[: line.index(b"\t")].decode("utf-8", errors="replace").strip()
        return str(int(name)) if name.isdecimal() else name


def _decoded(column: bytes) -> np.ndarray:
    return np.frombuffer(base64.b64decode(column, validate=True), np.float32)


class EntityBoxes(RegionTable):
    """Boxes that people drew for phrases of the captions: Flickr30k Entities, one JSON object per line.

    These are oracle regions. The first region is the full image; the others are the distinct boxes of its phrases,
    the largest first.
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
                name, boxes = PurePosixPath(row["image"]), _distinct_boxes(row)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                fields = '"image", "width", "height" and "phrases" with "boxes"'
                detail = " ".join(f"{type(error).__name__}: {error}".split())
                raise UserError(f"{path}, line {number}: not a JSON object with {fields} ({detail})") from None
            self.boxes[str(name)] = boxes
            self.boxes.setdefault(name.name, boxes)

    def entry(self, name: str) -> str | None:
        """The field `image` of an image's line, or the file name in it."""
        return next((alias for alias in names_of(name) if alias in self.boxes), None)

    def find(self, name: str, vectors: bool = True) -> Regions:
        """The boxes of an image; this format has no vectors."""
        return Regions(self.boxes[self._entry(name)])

    def _lines(self) -> Iterator[str]:
        try:
            with self.path.open("rb") as raw:
                compressed = raw.read(2) == b"\x1f\x8b"
                raw.seek(0)
                with gzip.open(raw) if compressed else raw as file:
                    for line in file:
                        yield line.decode("utf-8")
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise UserError(f"{self.path}: damaged or cut short ({error}); download it again") from None


def _distinct_boxes(row: dict[str, Any]) -> np.ndarray:
    """The full image, then the distinct boxes of a line, the largest first; shares (n, 4)."""
    width, height = float(row["width"]), float(row["height"])
    if not min(width, height) > 0:
        raise ValueError(f"{width:g} × {height:g} pixels")
    pixels = [tuple(map(float, box)) for phrase in row["phrases"] for box in phrase.get("boxes", ())]
    if not all(len(box) == 4 and np.isfinite(box).all() for box in pixels):
        raise ValueError("a box is left, top, right and bottom")
    boxes = np.array(sorted(set(pixels)), np.float32).reshape(-1, 4) / np.array([width, height] * 2, np.float32)
    boxes = boxes.clip(0, 1)
    sides = boxes[:, 2:] - boxes[:, :2]
    boxes = boxes[np.argsort(-sides.prod(axis=1), kind="stable")]
    return prepend_full_image(boxes[has_area(boxes)])
