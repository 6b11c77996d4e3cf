"""Regions: boxes of an image that a captioner attends to, instead of the cells of a grid.

Bottom-up attention (Anderson et al. 2018, https://arxiv.org/abs/1707.07998): n boxes per image with one feature vector
each. The vectors come with the boxes from a detector (kind "features"), or are pooled from the encoder's own feature
map (kind "boxes", see `encoders.region_pooling`).

Boxes are left, top, right, bottom as shares, 0–1, of the width and the height. Boxes without an area are padding.

*Oracle regions* are boxes that people drew for the captions of the same images. They show what is worth mentioning, so
scores with oracle regions are not comparable to scores on unseen images.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from saywhy.data.preprocess import Preprocessing
from saywhy.errors import UserError, did_you_mean

KINDS = ("boxes", "features")
FULL_IMAGE = (0.0, 0.0, 1.0, 1.0)
MIN_REMAINING = 0.1
"""A cropped box that keeps less of its area is dropped."""
MIN_SIDE = 1e-3
"""A cropped box with a shorter side is dropped: rounding can leave as much of a box outside the crop."""
TOLERANCE = 0.01
"""Computed shares may exceed 1 by this much."""
Array = TypeVar("Array", np.ndarray, Tensor)


@dataclass(frozen=True)
class RegionSettings:
    """The regions that a model expects.

    Attributes:
        kind: "boxes", with vectors pooled from the encoder's map, or "features", with vectors from a detector.
        most: maximum number of regions per image.
    """

    kind: str = "boxes"
    most: int = 36

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"unknown regions.kind {self.kind!r}: {did_you_mean(self.kind, KINDS)}")
        if not 1 <= self.most <= 1000:
            raise UserError(f"regions.most = {self.most} is out of range")


@dataclass(frozen=True)
class Regions:
    """The regions of one image.

    Attributes:
        boxes: (n, 4) float32, shares of the image's width and height.
        vectors: (n, D) float32, or None where only boxes are known.
    """

    boxes: np.ndarray
    vectors: np.ndarray | None = None


class RegionTable(ABC):
    """The regions of many images in one file or folder; `region_files` has one subclass per format.

    Attributes:
        path: the file or folder.
        oracle: whether the boxes were drawn for the captions themselves.
    """

    oracle: ClassVar[bool] = False

    def __init__(self, path: Path) -> None:
        self.path = path

    @abstractmethod
    def entry(self, name: str) -> str | None:
        """The table's own name for an image; None where it has no regions for it."""

    @abstractmethod
    def find(self, name: str, vectors: bool = True) -> Regions:
        """The regions of an image; without `vectors` only boxes are read."""

    def require(self, names: Iterable[str]) -> None:
        """Raise a `UserError` if an image has no regions, or two images match the same entry."""
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
        """What distinguishes this table from another, without reading it: its name and size."""
        return {"name": self.path.name, "bytes": self.path.stat().st_size, "oracle": self.oracle}


RegionLocation = str | Path | RegionTable | None
"""Where regions are: a path, or a table already read."""


@dataclass(frozen=True)
class RegionSource:
    """Regions of images, padded to the number that a model expects.

    Attributes:
        settings: what the model expects.
        table: where the regions are read from.
    """

    settings: RegionSettings
    table: RegionTable

    @property
    def are_features(self) -> bool:
        """Whether vectors come with the boxes, so that the encoder sees no pixels."""
        return self.settings.kind == "features"

    def describe(self) -> dict[str, Any]:
        """Settings and table, for results and cache keys."""
        return {**asdict(self.settings), **self.table.identity()}

    def boxes(
        self, name: str, size: tuple[int, int] | None = None, preprocessing: Preprocessing | None = None
    ) -> np.ndarray:
        """Boxes of an image, (most, 4), as shares of the crop that `preprocessing` keeps, or of the complete image.

        `size` is the image's width and height; needed where the crop depends on them.
        """
        stored, most = self.table.find(name, vectors=False).boxes, self.settings.most
        if self.are_features:
            return pad_rows(stored, most)
        boxes = prepend_full_image(stored)
        if len(boxes) == 1 < len(stored):
            raise UserError(f'{self.table.path}: features without boxes, which regions.kind = "boxes" needs')
        if preprocessing is not None and preprocessing.fit == "crop" and size is not None:
            crop = torch.tensor(preprocessing.crop(*size)) / torch.tensor([*size, *size])
            boxes = crop_boxes(torch.from_numpy(boxes), crop.float()).numpy()
            boxes = boxes[has_area(boxes)]  # boxes outside the crop leave their rows to others
        return pad_rows(boxes, most)

    def vectors(self, name: str, width: int | None = None) -> np.ndarray:
        """Vectors of an image, (most, D); a `UserError` if D is not `width`."""
        vectors = self.table.find(name).vectors
        if vectors is None:
            raise UserError(f'{self.table.path}: boxes without features, which regions.kind = "features" needs')
        if width is not None and vectors.shape[1] != width:
            raise UserError(
                f"{self.table.path}: features of {name} have {vectors.shape[1]} numbers per region, not {width}"
            )
        return pad_rows(vectors, self.settings.most)


def has_area(boxes: Array) -> Array:
    """Which of the boxes (…, 4) have an area: (…)."""
    return (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])


def prepend_full_image(boxes: np.ndarray) -> np.ndarray:
    """Boxes (n, 4) with the full image as the first of them, so that every image has a region."""
    others = boxes[~np.isclose(boxes, FULL_IMAGE).all(axis=1)]
    return np.concatenate([np.array([FULL_IMAGE], np.float32), others.astype(np.float32)])


def pad_rows(values: np.ndarray, count: int) -> np.ndarray:
    """The first `count` rows, padded with zeros: (n, …) ↦ (count, …) float32."""
    rows = np.zeros((count, *values.shape[1:]), np.float32)
    rows[: len(values)] = values[:count]
    return rows


def crop_boxes(boxes: Tensor, crop: Tensor) -> Tensor:
    """Boxes (…, R, 4) in shares of an image, as shares of a crop (…, 4) of that image.

    A crop whose right is left of its left is mirrored. Boxes are clipped to the crop; those of which little remains
    become zero. The first box is the full image and becomes the full crop.

    >>> full, dog = [0.0, 0.0, 1.0, 1.0], [0.5, 0.25, 1.0, 0.75]
    >>> crop_boxes(torch.tensor([full, dog]), torch.tensor([0.25, 0.0, 0.75, 1.0])).tolist()
    [[0.0, 0.0, 1.0, 1.0], [0.5, 0.25, 1.0, 0.75]]
    """
    corner, far = crop[..., None, :2], crop[..., None, 2:]  # (…, 1, 2)
    first, second = ((boxes[..., ends] - corner) / (far - corner) for ends in (slice(0, 2), slice(2, 4)))  # (…, R, 2)
    low, high = torch.minimum(first, second), torch.maximum(first, second)
    area = (high - low).prod(dim=-1)
    low, high = low.clamp(0, 1), high.clamp(0, 1)
    sides = high - low
    remains = (sides.prod(dim=-1) >= MIN_REMAINING * area) & (sides > MIN_SIDE).all(dim=-1)  # (…, R)
    cropped = torch.cat([low, high], dim=-1) * remains[..., None]
    cropped[..., 0, :] = cropped.new_tensor(FULL_IMAGE)
    return cropped


def to_regions(
    source: str,
    boxes: np.ndarray | None,
    vectors: np.ndarray | None,
    size: tuple[float, float] | None = None,
    count: int | None = None,
) -> Regions:
    """Regions from the arrays of a file.

    Args:
        source: the file, for error messages.
        boxes: (n, 4) in shares or in pixels; None if every vector is of the full image.
        vectors: (n, D), or (D, n) as in some files; None for boxes alone.
        size: width and height of the image, where boxes are in pixels.
        count: number of valid rows, where the others are padding.
    """
    if vectors is not None and boxes is not None and vectors.shape[1:] == (len(boxes),) != vectors.shape[:1]:
        vectors = vectors.T  # (n, D)
    boxes, vectors = (None if values is None else values[:count] for values in (boxes, vectors))
    _check_shapes(source, boxes, vectors)
    if boxes is None:
        assert vectors is not None
        boxes = np.tile(np.array(FULL_IMAGE, np.float32), (len(vectors), 1))
    boxes = _to_shares(source, boxes.astype(np.float32), size)
    valid = has_area(boxes)
    if not valid.any():
        raise UserError(f"{source}: no box with an area (left, top, right, bottom); an image needs at least one region")
    return Regions(boxes[valid], None if vectors is None else vectors[valid].astype(np.float32))


def _check_shapes(source: str, boxes: np.ndarray | None, vectors: np.ndarray | None) -> None:
    if boxes is None and vectors is None:
        raise UserError(f"{source}: neither features nor boxes")
    if vectors is not None and not (vectors.ndim == 2 and vectors.shape[1] and _is_finite(vectors)):
        raise UserError(f"{source}: features must be n × D finite numbers, not {vectors.dtype} of {vectors.shape}")
    if boxes is not None and not (boxes.ndim == 2 and boxes.shape[1] == 4 and _is_finite(boxes)):
        raise UserError(f"{source}: boxes must be n × 4 finite numbers, not {boxes.dtype} of {boxes.shape}")
    if boxes is not None and vectors is not None and len(vectors) != len(boxes):
        raise UserError(f"{source}: {len(boxes)} boxes and features of {len(vectors)}")


def _is_finite(values: np.ndarray) -> bool:
    return values.dtype.kind in "fiu" and bool(np.isfinite(values).all())


def _to_shares(source: str, boxes: np.ndarray, size: tuple[float, float] | None) -> np.ndarray:
    if boxes.size and boxes.max() > 1 + TOLERANCE:
        if size is None:
            raise UserError(f"{source}: boxes in pixels without image_w and image_h: add these, or use shares 0–1")
        if not min(size) > 0:
            raise UserError(f"{source}: boxes in pixels of an image of {size[0]:g} × {size[1]:g} pixels")
        boxes = boxes / np.array([*size, *size], np.float32)
    return boxes.clip(0, 1)
