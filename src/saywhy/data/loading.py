"""Where the pixels come from: files, read once a time or kept decoded in a cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from saywhy.cache import ArrayCache, content_key
from saywhy.data.images import open_image
from saywhy.errors import UnreadableImage, UserError


class ImageFiles:
    """Images as arrays of one shape; a broken one is grey and named.

    Args:
        paths: the files.
        shape: of one array.
        prepare: makes the array, (3, S, S) uint8, of an image.
        at_least: the shortest side `prepare` needs, so that large JPEGs decode fast.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        shape: tuple[int, int, int],
        prepare: Callable[[Image.Image], np.ndarray],
        at_least: int,
    ) -> None:
        self.paths = paths
        self.shape = shape
        self.prepare = prepare
        self.at_least = at_least

    def __len__(self) -> int:
        return len(self.paths)

    def rows(self, images: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """Arrays (P, 3, S, S) of these images, and a line for each that is broken."""
        rows, faults = np.full((len(images), *self.shape), 128, np.uint8), [""] * len(images)
        for row, image in enumerate(images):
            try:
                rows[row] = self.prepare(open_image(self.paths[image], at_least=self.at_least))
            except UnreadableImage as error:
                faults[row] = str(error)
        return rows, faults


class CachedImages:
    """The same arrays, decoded once and kept in a cache under the contents of their files."""

    def __init__(self, files: ImageFiles, folder: Path, key: dict[str, Any]) -> None:
        self.files = files
        self.cache = ArrayCache(folder, files.shape, "uint8", {"decoded": key})

    def rows(self, images: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """As `ImageFiles.rows`; broken images are not kept."""
        rows, faults = np.full((len(images), *self.files.shape), 128, np.uint8), [""] * len(images)
        keys = [self._key(image) for image in images]
        there = self.cache.has(keys)
        held, missing = np.flatnonzero(there).tolist(), np.flatnonzero(~there).tolist()
        if held:
            rows[held] = self.cache.get([keys[row] for row in held])
        if missing:
            rows[missing], lines = self.files.rows([images[row] for row in missing])
            for row, line in zip(missing, lines, strict=True):
                faults[row] = line
            good = [row for row in missing if not faults[row]]
            self.cache.put([keys[row] for row in good], rows[good])
        return rows, faults

    def _key(self, image: int) -> str:
        try:
            return content_key(self.files.paths[image])
        except UnreadableImage:
            return "broken"  # never kept, so opening it says what is wrong


class SizedInputs(Protocol):
    """Inputs of a known number of images."""

    def __len__(self) -> int:
        """How many images."""

    def rows(self, images: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """The inputs of these images (P, …), and a line for each that is broken ("" for the others)."""


class Chunks(TorchDataset):
    """Rows of inputs, a list of numbers at a time: what a `DataLoader` needs to read ahead."""

    def __init__(self, inputs: SizedInputs) -> None:
        self.inputs = inputs

    def __getitem__(self, images: Sequence[int]) -> tuple[list[int], np.ndarray, list[str]]:
        return list(images), *self.inputs.rows(images)


class _MistakesAsValues(TorchDataset):
    """A data set that hands over a user's mistake: raised in a worker, it would come back wrapped in a traceback."""

    def __init__(self, data: TorchDataset) -> None:
        self.data = data

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.data[key]
        except UserError as error:
            return error


def read_ahead(data: TorchDataset, order: Sequence[Any], workers: int, pin_memory: bool = False) -> Iterator[Any]:
    """What the data set has for each key of `order`, read by worker processes."""
    loader = DataLoader(
        _MistakesAsValues(data),
        sampler=order,  # type: ignore[arg-type]  # any iterable of what the data set is indexed by
        batch_size=None,
        num_workers=min(workers, len(order)),
        pin_memory=pin_memory,
    )
    for item in loader:
        if isinstance(item, UserError):
            raise item
        yield item


def in_order(inputs: SizedInputs, batch: int, workers: int) -> Iterator[tuple[list[int], Tensor, list[str]]]:
    """All images in their order, read ahead: (numbers, rows, faults) a batch."""
    count = len(inputs)
    chunks = [list(range(start, min(start + batch, count))) for start in range(0, count, batch)]
    return read_ahead(Chunks(inputs), chunks, workers)


def default_workers() -> int:
    """Processes that read images: one a core but one, at most eight; none where there is one core."""
    return min(8, len(os.sched_getaffinity(0)) - 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) - 1)
