"""The one path from images to batches for an encoder.

`caption`, `explain`, `evaluate`, the audits and the cache of frozen features all read images here:

    sources ──► open, upright RGB ──► crop and resize ──► (B, 3, S, S) uint8
                                └───► region boxes (B, R, 4), or region vectors (B, R, D) instead of pixels

An image that cannot be read is reported and left out; the others keep their order.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSource
from saywhy.data.worker_pool import end_with_parent
from saywhy.errors import UnreadableImage, UserError
from saywhy.inference.image_loading import ImageLoader, LoadedImage

OnUnreadable = Callable[[int, UnreadableImage], None]


@dataclass(frozen=True)
class ImageBatch:
    """Images that go through the encoder together.

    Attributes:
        images: the B images.
        pixels: (B, 3, S, S) uint8, or region vectors (B, R, D).
        boxes: (B, R, 4) of regions, as shares of the crop; None on a grid.
    """

    images: Sequence[LoadedImage]
    pixels: Tensor
    boxes: Tensor | None = None

    def __len__(self) -> int:
        return len(self.images)

    @property
    def indices(self) -> list[int]:
        """The images' positions among the sources."""
        return [image.index for image in self.images]

    def to(self, device: torch.device) -> ImageBatch:
        """The same batch on another device."""
        return ImageBatch(self.images, self.pixels.to(device), None if self.boxes is None else self.boxes.to(device))

    def select(self, rows: Sequence[int]) -> ImageBatch:
        """Some of the images."""
        boxes = None if self.boxes is None else self.boxes[list(rows)]
        return ImageBatch([self.images[row] for row in rows], self.pixels[list(rows)], boxes)

    def padded(self, size: int) -> ImageBatch:
        """The same images, with the first repeated up to `size` rows: every new shape costs a GPU seconds."""
        boxes = None if self.boxes is None else _repeat_first(self.boxes, size)
        return ImageBatch(self.images, _repeat_first(self.pixels, size), boxes)


Errors = list[tuple[int, UnreadableImage]]


class ImageBatches(TorchDataset):
    """Batches of images, read in order.

    Args:
        preprocessing: the encoder's input geometry.
        sources: paths, or anything else that `data.images.to_image` accepts.
        regions: where region boxes or vectors come from; None for a grid.
        width: the length of region vectors that the encoder expects.
        batch_size: images per batch.
        workers: processes that read ahead; with 0, sources are taken one batch at a time.
        on_unreadable: called with the index and the error of an unreadable image, which is then left out; without
            it the error is raised.
        keep_images: keep a copy of each image for figures.
        names: file names by which regions are looked up; without them, those of the sources.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        sources: Iterable[Any],
        regions: RegionSource | None = None,
        *,
        width: int | None = None,
        batch_size: int = 16,
        workers: int = 0,
        on_unreadable: OnUnreadable | None = None,
        keep_images: bool = False,
        names: Sequence[str] | None = None,
    ) -> None:
        self.sources, self.batch_size, self.workers, self.on_unreadable = sources, batch_size, workers, on_unreadable
        self.load_image = ImageLoader(preprocessing, keep_images, regions, width, names)

    def __iter__(self) -> Iterator[ImageBatch]:
        for batch, errors in self._read_ahead() if self.workers else self._read():
            for index, error in errors:
                if self.on_unreadable is None:
                    raise error
                self.on_unreadable(index, error)
            if batch is not None:
                yield batch

    def _read(self) -> Iterator[tuple[ImageBatch | None, Errors]]:
        numbered = iter(enumerate(self.sources))
        while pairs := list(islice(numbered, self.batch_size)):
            yield self.load_batch(pairs)

    def _read_ahead(self) -> Iterator[tuple[ImageBatch | None, Errors]]:
        self.sources = list(self.sources)
        numbers = range(len(self.sources))
        starts = range(0, len(numbers), self.batch_size)
        if numbers:
            yield from read_ahead(self, [numbers[start : start + self.batch_size] for start in starts], self.workers)

    def __getitem__(self, indices: Sequence[int]) -> tuple[ImageBatch | None, Errors]:
        """One batch, as a worker process reads it."""
        assert isinstance(self.sources, list)
        return self.load_batch([(index, self.sources[index]) for index in indices])

    def load_batch(self, pairs: Sequence[tuple[int, Any]]) -> tuple[ImageBatch | None, Errors]:
        """One batch of indices and sources, and the errors of those that cannot be read; None if none can."""
        images, inputs, boxes, errors = [], [], [], []
        for index, source in pairs:
            try:
                image, array, image_boxes = self.load_image(index, source)
            except UnreadableImage as error:
                errors.append((index, error))
                continue
            images.append(image)
            inputs.append(array)
            if image_boxes is not None:
                boxes.append(image_boxes)
        if not images:
            return None, errors
        pixels = torch.from_numpy(np.stack(inputs))
        return ImageBatch(images, pixels, torch.from_numpy(np.stack(boxes)) if boxes else None), errors


class _ErrorsAsValues(TorchDataset):
    """A data set that returns a `UserError`; raised in a worker process, it would arrive inside a traceback."""

    def __init__(self, data: TorchDataset) -> None:
        self.data = data

    def __getitem__(self, key: Any) -> Any:
        try:
            return self.data[key]
        except UserError as error:
            return error


def read_ahead(data: TorchDataset, order: Iterable[Any], workers: int, pin_memory: bool = False) -> Iterator[Any]:
    """The items of a data set in this order of keys, read by worker processes; keys are taken as they are needed."""
    loader = DataLoader(
        _ErrorsAsValues(data),
        sampler=order,  # type: ignore[arg-type]  # any iterable of keys
        batch_size=None,
        num_workers=min(workers, len(order)) if isinstance(order, Sized) else workers,
        pin_memory=pin_memory,
        worker_init_fn=end_with_parent,
    )
    for item in loader:
        if isinstance(item, UserError):
            raise item
        yield item


def default_workers() -> int:
    """Number of processes that read images: all cores but one, at most eight; none on a single core."""
    return min(8, len(os.sched_getaffinity(0)) - 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) - 1)


def _repeat_first(rows: Tensor, count: int) -> Tensor:
    return torch.cat([rows, rows[:1].expand(max(0, count - len(rows)), *rows.shape[1:])])
