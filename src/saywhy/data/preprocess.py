"""From a photograph to the square of pixels an encoder takes, and back.

Two ways of the papers: Show, attend and tell resizes the shortest side to 256 and cuts the middle 224 × 224
(`fit="crop"`); the LRP paper resizes the whole image to a square, whatever its shape (`fit="squash"`).
Pixels stay 0–255; each encoder normalises them by its own convention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from saywhy.errors import UserError

Region = tuple[float, float, float, float]

SMOOTHING = 20 / 16
"""σ of attention's Gaussian, in places."""
FITS = ("crop", "squash")


@dataclass(frozen=True)
class Preprocessing:
    """The geometry of an encoder's input.

    Attributes:
        size: side of the square the encoder sees.
        fit: "crop" or "squash".
        margin: with "crop", the shortest side is resized to `margin` · size before the middle is cut out.
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
    def at_least(self) -> int:
        """The shortest side an image must keep to lose nothing that the encoder would see."""
        return math.ceil(self.size * (self.margin if self.fit == "crop" else 1))

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of a width × height image that the encoder sees: left, top, right, bottom in its pixels.

        >>> Preprocessing(224).region(512, 256)
        (144.0, 16.0, 368.0, 240.0)
        """
        if self.fit == "squash":
            return (0.0, 0.0, float(width), float(height))
        side = min(width, height) / self.margin
        left, top = (width - side) / 2, (height - side) / 2
        return (left, top, left + side, top + side)

    def __call__(self, image: Image.Image) -> np.ndarray:
        """The encoder's input, (3, size, size) uint8."""
        return self._cut(image, self.region(*image.size), self.size)

    def canvas(self, image: Image.Image, side: int) -> np.ndarray:
        """A square of `side` pixels, (3, side, side) uint8, from which training crops are cut.

        With "crop" it is the largest square in the middle, margin included; with "squash" the whole image.
        """
        whole = Preprocessing(self.size, self.fit, margin=1.0)
        return self._cut(image, whole.region(*image.size), side)

    @staticmethod
    def _cut(image: Image.Image, box: tuple[float, float, float, float], side: int) -> np.ndarray:
        square = image.resize((side, side), Image.Resampling.BILINEAR, box=box, reducing_gap=3.0)
        return np.asarray(square).transpose(2, 0, 1).copy()  # (3, side, side)


def enlarged(places: np.ndarray, size: int, smooth: bool = False) -> np.ndarray:
    """Maps over places (…, rows, columns) on the encoder's square, (…, size, size)."""
    down, across = (_stretch(cells, size, smooth) for cells in places.shape[-2:])
    return (down @ places @ across.T).astype(np.float32)


def _stretch(cells: int, size: int, smooth: bool) -> np.ndarray:
    """The linear map from cells to pixels along one side, (size, cells): interpolation, then a Gaussian."""
    at = (np.arange(size) + 0.5) * cells / size - 0.5  # where each pixel lies, in cells
    near = np.clip(at, 0, cells - 1)
    between = np.clip(1 - np.abs(near[:, None] - np.arange(cells)), 0, 1)  # (size, cells)
    if not smooth:
        return between
    blur = np.exp(-0.5 * ((at[:, None] - at) / SMOOTHING) ** 2)  # (size, size)
    return blur / blur.sum(axis=1, keepdims=True) @ between


def on_image(values: np.ndarray, size: tuple[int, int], region: Region) -> np.ndarray:
    """A map of the encoder's square over an image of (width, height), of which it saw `region`: (height, width)."""
    left, top, right, bottom = (round(each) for each in region)
    square = Image.fromarray(np.ascontiguousarray(values, np.float32))
    part = square.resize((max(1, right - left), max(1, bottom - top)), Image.Resampling.BILINEAR)
    whole = np.zeros((size[1], size[0]), np.float32)
    rows, columns = whole[top:bottom, left:right].shape
    whole[top:bottom, left:right] = np.asarray(part)[:rows, :columns]
    return whole


def in_boxes(values: np.ndarray, boxes: np.ndarray, size: tuple[int, int], region: Region) -> np.ndarray:
    """Values (R,) of boxes (R, 4), shares of the region, spread evenly over each: (height, width)."""
    left, top, right, bottom = region
    whole = np.zeros((size[1], size[0]), np.float32)
    corner, sides = np.array([left, top] * 2), np.array([right - left, bottom - top] * 2)
    for value, (x, y, far_x, far_y) in zip(values, np.rint(corner + boxes * sides).astype(int), strict=True):
        x, y = min(max(x, 0), size[0] - 1), min(max(y, 0), size[1] - 1)
        part = whole[y : max(far_y, y + 1), x : max(far_x, x + 1)]
        part += value / max(part.size, 1)
    return whole
