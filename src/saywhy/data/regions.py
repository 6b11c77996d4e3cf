"""Regions: parts of an image that a captioner may look at, in place of the cells of a grid.

Bottom-up attention (Anderson et al. 2018, https://arxiv.org/abs/1707.07998): n boxes an image, and for each a
vector. Vectors come with the boxes from a detector (kind "features"), or are cut out of an encoder's own map
(kind "boxes", see `encoders.regions`).

Boxes are left, top, right, bottom as shares, 0–1, of a width and a height. A box without an area is no region.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from saywhy.errors import UserError, closest

KINDS = ("boxes", "features")
WHOLE = (0.0, 0.0, 1.0, 1.0)
LEAST_LEFT = 0.1  # of a box's area: a smaller rest shows hardly what the box was drawn for
THINNEST = 1e-3  # of a side: what rounding may leave of a box that is outside
Array = TypeVar("Array", np.ndarray, Tensor)


@dataclass(frozen=True)
class RegionSettings:
    """What a model wants of regions.

    Attributes:
        kind: "boxes", with vectors cut out of the encoder's map, or "features", vectors made elsewhere.
        most: how many regions an image has at most.
    """

    kind: str = "boxes"
    most: int = 36

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise UserError(f"unknown regions.kind {self.kind!r}: {closest(self.kind, KINDS)}")
        if not 1 <= self.most <= 1000:
            raise UserError(f"regions.most = {self.most} is out of range")


@dataclass(frozen=True)
class Regions:
    """The regions of one image.

    Attributes:
        boxes: (n, 4) float32, shares of the image's width and height.
        vectors: (n, D) float32, or None where there are boxes alone.
    """

    boxes: np.ndarray
    vectors: np.ndarray | None = None


def has_area(boxes: Array) -> Array:
    """Which of the boxes (…, 4) are any: (…)."""
    return (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])


def led_by_the_whole(boxes: np.ndarray) -> np.ndarray:
    """Boxes (n, 4) with the whole image as the first of them, so that no image is without a region."""
    rest = boxes[~np.isclose(boxes, WHOLE).all(axis=1)]
    return np.concatenate([np.array([WHOLE], np.float32), rest.astype(np.float32)])


def padded(values: np.ndarray, most: int) -> np.ndarray:
    """The first `most` rows, filled up with zeros: (n, …) ↦ (most, …) float32."""
    rows = np.zeros((most, *values.shape[1:]), np.float32)
    rows[: len(values)] = values[:most]
    return rows


def within(boxes: Tensor, part: Tensor) -> Tensor:
    """Boxes (…, R, 4) as shares of a part (…, 4) of what they were shares of.

    A part whose right is left of its left is a mirror image. Boxes are clipped to the part; those with little
    left of them vanish. The first is the whole and becomes the whole part.

    >>> box, dog = [0.0, 0.0, 1.0, 1.0], [0.5, 0.25, 1.0, 0.75]
    >>> within(torch.tensor([box, dog]), torch.tensor([0.25, 0.0, 0.75, 1.0])).tolist()
    [[0.0, 0.0, 1.0, 1.0], [0.5, 0.25, 1.0, 0.75]]
    """
    corner, far = part[..., None, :2], part[..., None, 2:]  # (…, 1, 2)
    one, other = ((boxes[..., ends] - corner) / (far - corner) for ends in (slice(0, 2), slice(2, 4)))  # (…, R, 2)
    low, high = torch.minimum(one, other), torch.maximum(one, other)
    before = (high - low).prod(dim=-1)
    low, high = low.clamp(0, 1), high.clamp(0, 1)
    sides = high - low
    stays = (sides.prod(dim=-1) >= LEAST_LEFT * before) & (sides > THINNEST).all(dim=-1)  # (…, R)
    moved = torch.cat([low, high], dim=-1) * stays[..., None]
    moved[..., 0, :] = moved.new_tensor(WHOLE)
    return moved
