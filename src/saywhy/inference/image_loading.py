"""One image of a batch: read, cropped and resized to the encoder's input. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from saywhy.data.images import EncodedImage, to_image, upright_size
from saywhy.data.preprocess import Crop, Preprocessing
from saywhy.errors import UserError

if TYPE_CHECKING:
    from saywhy.data.regions import RegionSource

DISPLAY_SIDE = 1024
"""Longest side of the copy that captions and explanations keep for figures."""


@dataclass(frozen=True)
class LoadedImage:
    """What is known of one image of a batch.

    Attributes:
        index: its position among the sources.
        source: its path, or the name of an `EncodedImage`; empty where it was given as pixels.
        size: width and height of the upright image; (0, 0) where it was not opened.
        crop: the part of it that the encoder sees.
        image: a copy for figures, where one is kept.
        image_crop: the part of that copy that the encoder sees.
    """

    index: int
    source: str
    size: tuple[int, int]
    crop: Crop
    image: Image.Image | None = None
    image_crop: Crop | None = None


@dataclass(frozen=True)
class ImageLoader:
    """Reads one image at a time.

    Attributes:
        preprocessing: the encoder's input geometry.
        keep_images: keep a copy of each image for figures.
        regions: where region boxes or vectors come from; None for a grid.
        width: the length of region vectors that the encoder expects.
        names: file names by which regions are looked up; without them, those of the sources.
    """

    preprocessing: Preprocessing
    keep_images: bool = False
    regions: RegionSource | None = None
    width: int | None = None
    names: Sequence[str] | None = None

    def __call__(self, index: int, source: Any) -> tuple[LoadedImage, np.ndarray, np.ndarray | None]:
        """One image: what is known of it, pixels (3, S, S) or region vectors (R, D), and region boxes (R, 4)."""
        name = _name(source)
        if self.vectors_only and not self.keep_images:  # the image itself is not needed
            vectors, boxes = self._regions(index, source, None)
            return LoadedImage(index, name, (0, 0), (0.0, 0.0, 0.0, 0.0)), vectors, boxes
        image = to_image(source, self.preprocessing.min_side if name else None)  # a JPEG may be decoded smaller
        size = upright_size(source) if name else image.size
        vectors, boxes = self._regions(index, source, size)
        inputs = vectors if self.vectors_only else self.preprocessing(image)
        if not self.keep_images:
            return LoadedImage(index, name, size, self._crop(size)), inputs, boxes
        image.thumbnail((DISPLAY_SIDE, DISPLAY_SIDE))  # our own copy: opening and converting both made one
        return LoadedImage(index, name, size, self._crop(size), image, self._crop(image.size)), inputs, boxes

    @property
    def vectors_only(self) -> bool:
        """Whether the encoder's input is region vectors in place of pixels."""
        return self.regions is not None and self.regions.are_features

    def _crop(self, size: tuple[int, int]) -> Crop:
        return (0.0, 0.0, float(size[0]), float(size[1])) if self.vectors_only else self.preprocessing.crop(*size)

    def _regions(self, index: int, source: Any, size: tuple[int, int] | None) -> tuple[Any, np.ndarray | None]:
        """Region vectors, where there are any, and boxes."""
        if self.regions is None:
            return None, None
        name = self.names[index] if self.names else _file_name(source)
        if not name:
            raise UserError("regions are looked up by file name, and this image has none: give its path")
        boxes = self.regions.boxes(name, size, self.preprocessing)
        return self.regions.vectors(name, self.width) if self.vectors_only else None, boxes


def require_several(images: Any, plural: str, single: str) -> None:
    """Raise a `UserError` where a method for several images (`plural`) gets one; `single` is that for one image."""
    if isinstance(images, str | bytes | Path) or not isinstance(images, Iterable) or hasattr(images, "convert"):
        raise UserError(f"{plural} takes several images: give a list, or use {single} for one image")


def _name(source: Any) -> str:
    """The path of an image file, or the name of an `EncodedImage`; empty for other sources."""
    return source.name if isinstance(source, EncodedImage) else str(source) if isinstance(source, str | Path) else ""


def _file_name(source: Any) -> str:
    path = _name(source) or getattr(source, "filename", "")
    return Path(path).name if path else ""
