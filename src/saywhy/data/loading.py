"""The inputs of training batches: pixels from image files or a cache, and boxes or vectors of regions.

Each class has `rows(indices)`, which gives the arrays of some images of a data set; `read_ahead` calls it in worker
processes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saywhy.cache import DiskCache, content_key
from saywhy.data.images import open_image, upright_size
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import FULL_IMAGE, RegionSource, pad_rows
from saywhy.errors import UnreadableImage, UserError

GREY = 128
"""Pixels of an image that cannot be read."""


class ImageFiles:
    """Images as arrays of one shape, read from their files.

    Args:
        paths: the files.
        shape: of one array.
        prepare: makes the array, (3, S, S) uint8, from an image.
        min_side: the shorter side that `prepare` needs, so that large JPEGs decode fast.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        shape: tuple[int, int, int],
        prepare: Callable[[Image.Image], np.ndarray],
        min_side: int,
    ) -> None:
        self.paths = paths
        self.shape = shape
        self.prepare = prepare
        self.min_side = min_side

    def rows(self, indices: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """Arrays (P, 3, S, S) of these images, and an error line for each ("" for a readable one).

        An unreadable image is grey.
        """
        rows, errors = np.full((len(indices), *self.shape), GREY, np.uint8), [""] * len(indices)
        for row, index in enumerate(indices):
            try:
                rows[row] = self.load(index)
            except UnreadableImage as error:
                errors[row] = str(error)
        return rows, errors

    def load(self, index: int) -> np.ndarray:
        """The array of one image, (3, S, S); raises `UnreadableImage`."""
        return self.prepare(open_image(self.paths[index], min_side=self.min_side))


class CachedImages(ImageFiles):
    """The same arrays, decoded once and then read from a cache by the contents of the files."""

    def __init__(self, files: ImageFiles, folder: Path, key: dict[str, Any]) -> None:
        super().__init__(files.paths, files.shape, files.prepare, files.min_side)
        self.cache = DiskCache(folder, "pixels", {"decoded": key, "shape": files.shape})

    def load(self, index: int) -> np.ndarray:
        """As in `ImageFiles`; unreadable images are not cached."""
        try:
            key = content_key(self.paths[index])
        except UnreadableImage:
            return super().load(index)  # raises the more exact error
        if self.cache.has(key):
            with contextlib.suppress(UserError):  # a damaged item, now deleted: decode the image again
                return self.cache.load(key)["pixels"]
        pixels = super().load(index)
        self.cache.save(key, {"pixels": pixels})
        return pixels


class RegionBoxes:
    """Region boxes of a data set's images, by index; beside the pixels or vectors of a batch."""

    def __init__(
        self,
        regions: RegionSource,
        names: Sequence[str],
        paths: Sequence[Path],
        preprocessing: Preprocessing | None,
    ) -> None:
        regions.table.require(names)
        self.regions, self.names, self.paths, self.preprocessing = regions, names, paths, preprocessing

    def rows(self, indices: Sequence[int]) -> np.ndarray:
        """Boxes (P, most, 4); the full image for an unreadable one, whose pixels are grey."""
        return np.stack([self._boxes(index) for index in indices])

    def _boxes(self, index: int) -> np.ndarray:
        needs_size = self.preprocessing is not None and self.preprocessing.fit == "crop"
        try:
            size = upright_size(self.paths[index]) if needs_size else None
        except UnreadableImage:
            return pad_rows(np.array([FULL_IMAGE]), self.regions.settings.most)
        return self.regions.boxes(self.names[index], size, self.preprocessing)


class RegionVectors:
    """Region vectors of a data set's images, by index; in place of pixels."""

    def __init__(self, regions: RegionSource, names: Sequence[str], width: int | None = None) -> None:
        regions.table.require(names)
        self.regions, self.names = regions, names
        self.width = width or regions.vectors(names[0]).shape[1]

    def rows(self, indices: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """Vectors (P, most, D), and no error lines: no image is opened."""
        vectors = [self.regions.vectors(self.names[index], self.width) for index in indices]
        return np.stack(vectors), [""] * len(indices)
