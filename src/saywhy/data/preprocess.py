"""The geometry between an image and the encoder's square input: the crop on the way in, maps on the way back.

In: *Show, attend and tell* resizes the shorter side to 256 and crops the centre 224 × 224 (`fit="crop"`); the LRP
paper resizes the image to a square, whatever its shape (`fit="squash"`). Pixels stay 0–255; each encoder normalises
them by its own convention. The part of the image that the encoder sees is its *crop*: left, top, right, bottom in
pixels of the image.

Back: attention over a grid (rows, columns) is upsampled to the square (S, S); a map over the square, or values of
region boxes, are placed on the image (height, width) inside the crop.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from saywhy.errors import UserError

Crop = tuple[float, float, float, float]
"""Left, top, right, bottom in pixels."""

SMOOTHING = 20 / 16
"""σ of the Gaussian that smooths attention maps, in grid cells."""
FITS = ("crop", "squash")


@dataclass(frozen=True)
class Preprocessing:
    """The geometry of an encoder's input.

    Attributes:
        size: side S of the encoder's square input.
        fit: "crop" or "squash".
        margin: with "crop", the shorter side is resized to `margin` · size before the centre is cut out.
    """

    size: int = 224
    fit: str = "crop"
    margin: float = 256 / 224

    def __post_init__(self) -> None:
        if self.fit not in FITS:
            raise UserError(f"unknown fit {self.fit!r}: use one of {', '.join(FITS)}")
        if not (32 <= self.size <= 4096 and 1 <= self.margin <= 8):
            raise UserError(f"preprocessing: size {self.size} is not in 32–4096, or margin {self.margin:g} not in 1–8")

    @property
    def min_side(self) -> int:
        """The shorter side that a decoded image needs, so that the encoder's input loses no detail."""
        return math.ceil(self.size * (self.margin if self.fit == "crop" else 1))

    def crop(self, width: int, height: int) -> Crop:
        """The part of a width × height image that the encoder sees.

        >>> Preprocessing(224).crop(512, 256)
        (144.0, 16.0, 368.0, 240.0)
        """
        if self.fit == "squash":
            return (0.0, 0.0, float(width), float(height))
        side = min(width, height) / self.margin
        left, top = (width - side) / 2, (height - side) / 2
        return (left, top, left + side, top + side)

    def __call__(self, image: Image.Image) -> np.ndarray:
        """The encoder's input, (3, size, size) uint8."""
        return self._resize(image, self.crop(*image.size), self.size)

    def canvas(self, image: Image.Image, side: int) -> np.ndarray:
        """A square of `side` pixels, (3, side, side) uint8, from which training crops are cut.

        With "crop" it is the largest square in the centre, margin included; with "squash" the complete image.
        """
        without_margin = Preprocessing(self.size, self.fit, margin=1.0)
        return self._resize(image, without_margin.crop(*image.size), side)

    def _resize(self, image: Image.Image, crop: Crop, side: int) -> np.ndarray:
        square = image.resize((side, side), Image.Resampling.BILINEAR, box=crop, reducing_gap=3.0)
        return np.asarray(square).transpose(2, 0, 1).copy()  # (3, side, side)


def upsample_grid(cells: np.ndarray, size: int, smooth: bool = False) -> np.ndarray:
    """Bilinear upsampling of maps (…, rows, columns) to (…, size, size), if `smooth` followed by a Gaussian."""
    vertical, horizontal = (_upsampling_matrix(count, size, smooth) for count in cells.shape[-2:])
    return (vertical @ cells @ horizontal.T).astype(np.float32)


def _upsampling_matrix(cells: int, size: int, smooth: bool) -> np.ndarray:
    """The linear map from cells to pixels along one side, (size, cells)."""
    positions = (np.arange(size) + 0.5) * cells / size - 0.5  # of each pixel, in cells
    inside = np.clip(positions, 0, cells - 1)
    weights = np.clip(1 - np.abs(inside[:, None] - np.arange(cells)), 0, 1)  # (size, cells)
    if not smooth:
        return weights
    blur = np.exp(-0.5 * ((positions[:, None] - positions) / SMOOTHING) ** 2)  # (size, size)
    return blur / blur.sum(axis=1, keepdims=True) @ weights


def map_on_image(values: np.ndarray, size: tuple[int, int], crop: Crop) -> np.ndarray:
    """A map (S, S) over the encoder's input, resized to its crop of a (width, height) image: (height, width)."""
    left, top, right, bottom = (round(side) for side in crop)
    square = Image.fromarray(np.ascontiguousarray(values, np.float32))
    resized = square.resize((max(1, right - left), max(1, bottom - top)), Image.Resampling.BILINEAR)
    image_map = np.zeros((size[1], size[0]), np.float32)
    rows, columns = image_map[top:bottom, left:right].shape
    image_map[top:bottom, left:right] = np.asarray(resized)[:rows, :columns]
    return image_map


def boxes_on_image(values: np.ndarray, boxes: np.ndarray, size: tuple[int, int], crop: Crop) -> np.ndarray:
    """Values (R,) of boxes (R, 4), in shares of the crop, each spread evenly over its box: (height, width)."""
    left, top, right, bottom = crop
    image_map = np.zeros((size[1], size[0]), np.float32)
    corner, sides = np.array([left, top] * 2), np.array([right - left, bottom - top] * 2)
    for value, (x, y, far_x, far_y) in zip(values, np.rint(corner + boxes * sides).astype(int), strict=True):
        x, y = min(max(x, 0), size[0] - 1), min(max(y, 0), size[1] - 1)
        box = image_map[y : max(far_y, y + 1), x : max(far_x, x + 1)]
        box += value / max(box.size, 1)
    return image_map
