"""From a photograph to the square of pixels an encoder takes, and back.

Two ways of the papers: Show, attend and tell resizes the shortest side to 256 and cuts the middle 224 × 224
(`fit="crop"`); the LRP paper resizes the whole picture to a square, whatever its shape (`fit="squash"`).
Pixels stay 0–255; each encoder normalises them by its own convention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from saywhy.errors import UserError

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
        """The shortest side a picture must keep to lose nothing that the encoder would see."""
        return math.ceil(self.size * (self.margin if self.fit == "crop" else 1))

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part of a width × height picture that the encoder sees: left, top, right, bottom in its pixels.

        >>> Preprocessing(224).region(512, 256)
        (144.0, 16.0, 368.0, 240.0)
        """
        if self.fit == "squash":
            return (0.0, 0.0, float(width), float(height))
        side = min(width, height) / self.margin
        left, top = (width - side) / 2, (height - side) / 2
        return (left, top, left + side, top + side)

    def __call__(self, picture: Image.Image) -> np.ndarray:
        """The encoder's input, (3, size, size) uint8."""
        return self._cut(picture, self.region(*picture.size), self.size)

    def canvas(self, picture: Image.Image, side: int) -> np.ndarray:
        """A square of `side` pixels, (3, side, side) uint8, from which training crops are cut.

        With "crop" it is the largest square in the middle, margin included; with "squash" the whole picture.
        """
        whole = Preprocessing(self.size, self.fit, margin=1.0)
        return self._cut(picture, whole.region(*picture.size), side)

    @staticmethod
    def _cut(picture: Image.Image, box: tuple[float, float, float, float], side: int) -> np.ndarray:
        square = picture.resize((side, side), Image.Resampling.BILINEAR, box=box, reducing_gap=3.0)
        return np.asarray(square).transpose(2, 0, 1).copy()  # (3, side, side)
