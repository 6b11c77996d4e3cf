"""The inputs of training: read from files for every batch, or once into the device's memory.

All of COCO as 256 × 256 pixels is 23 GB of uint8, which fits into a large GPU; a training step then only sends the
numbers of its images (`ResidentBatches`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from saywhy.data.datasets import CaptionedImage
from saywhy.data.loading import ImageFiles
from saywhy.data.training_batches import Inputs
from saywhy.encoders.base import Encoder
from saywhy.errors import UserError
from saywhy.files import whole_file
from saywhy.inference.batches import read_ahead
from saywhy.training.builders import OnEvent, cached_features, image_files, image_inputs, pixel_key
from saywhy.training.recipe import PixelRecipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

CHUNK = 128
"""Images that are read, copied and encoded together."""
SHARE_OF_MEMORY = 0.5
"""Of the device's free memory; training needs the rest."""

INPUTS = ("auto", "files", "memory")


class InputSource:
    """The inputs of a run on a grid: images or, of a frozen encoder without augmentation, its features.

    Args:
        recipe: how images become pixels.
        encoder: what makes the features.
        images: of all data sets.
        fabric: gives the device.
        workers: processes that read images.
        cache: a folder for decoded images and features.
        on_event: called with the progress.
        features: whether the inputs are features (`builders.has_fixed_features`).
        accumulate: batches of one step; with several, inputs are not in memory.

    Attributes:
        grid: rows and columns of the features, once they are computed; None for images.
    """

    def __init__(
        self,
        recipe: PixelRecipe,
        encoder: Encoder,
        images: Sequence[CaptionedImage],
        fabric: Fabric,
        workers: int,
        cache: Path | None,
        on_event: OnEvent,
        *,
        features: bool = False,
        accumulate: int = 1,
    ) -> None:
        self.recipe, self.encoder, self.fabric, self.workers, self.on_event = recipe, encoder, fabric, workers, on_event
        self.paths, self.cache = [image.path for image in images], cache
        self.features, self.accumulate = features, accumulate
        self.grid: tuple[int, int] | None = None

    def in_memory(self, inputs: str) -> bool:
        """Whether all inputs are read once, into the device's memory; `inputs` is one of `INPUTS`."""
        if inputs not in INPUTS:
            raise UserError(f"unknown inputs {inputs!r}: use {', '.join(INPUTS)}")
        alone = self.fabric.world_size == 1 and self.accumulate == 1
        if inputs == "memory" and not alone:
            raise UserError("inputs in memory need one process and training.accumulate = 1")
        return inputs == "memory" or (inputs == "auto" and alone and self._fits())

    def _fits(self) -> bool:
        """Whether they fit into the free memory of a GPU beside training; False on other devices."""
        if self.fabric.device.type != "cuda":
            return False
        shape = image_files(self.recipe, []).shape
        size = int(np.prod(shape))
        if self.features:
            size = 2 * self.encoder.width * (shape[-1] // self.encoder.stride) ** 2  # float16
        free, _ = torch.cuda.mem_get_info(self.fabric.device)
        return len(self.paths) * size <= SHARE_OF_MEMORY * free

    def in_batches(self, run: Path) -> Inputs:
        """Inputs that are read from files for every batch; `run` is the run's folder, for features without a cache."""
        if not self.features:
            return image_inputs(self.recipe, self.paths, self.cache)
        cached = cached_features(
            self.encoder,
            self.recipe.preprocessing,
            self.paths,
            self.cache or run / "cache",
            self.workers,
            self.fabric,
            self.on_event,
        )
        self.grid = cached.grid
        return cached

    def on_device(self) -> tuple[Tensor, dict[int, str]]:
        """All inputs as one tensor on the device, and the errors of unreadable images."""
        files = image_files(self.recipe, self.paths)
        cache = (self.cache, pixel_key(self.recipe)) if self.cache else None
        encode = self._encode if self.features else None
        return load_resident(files, self.fabric.device, self.workers, cache, self.on_event, encode)

    @torch.inference_mode()
    def _encode(self, pixels: Tensor) -> Tensor:
        with self.fabric.autocast():
            features = self.encoder(pixels)
        self.grid = features.grid
        return features.vectors.half()


def load_resident(
    files: ImageFiles,
    device: torch.device,
    workers: int,
    cache: tuple[Path, Any] | None,
    on_event: OnEvent,
    encode: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, dict[int, str]]:
    """The pixels of all images on the device, or what `encode` makes of them, and the errors of unreadable images.

    With a cache (its folder, and how the pixels were made), decoded pixels are kept in one file, which is read much
    faster than the images.
    """
    inputs: Tensor | None = None
    errors: dict[int, str] = {}
    total = len(files.paths)
    for rows, pixels, chunk_errors in _cached_chunks(files, workers, cache):
        chunk = pixels.to(device)
        chunk = encode(chunk) if encode else chunk
        if inputs is None:
            inputs = torch.empty(total, *chunk.shape[1:], dtype=chunk.dtype, device=device)
        inputs[rows] = chunk
        errors |= chunk_errors
        on_event({"kind": "load", "done": min(rows.stop, total), "total": total})
    assert inputs is not None, "a split has at least one image"
    return inputs, errors


Chunk = tuple[slice, Tensor, dict[int, str]]
"""Which images, their pixels, and the errors of those that cannot be read."""


class _Chunks(TorchDataset):
    def __init__(self, files: ImageFiles) -> None:
        self.files = files

    def __getitem__(self, start: int) -> tuple[Tensor, dict[int, str]]:
        images = range(start, min(start + CHUNK, len(self.files.paths)))
        pixels, errors = self.files.rows(images)
        return torch.from_numpy(pixels), {image: line for image, line in zip(images, errors, strict=True) if line}


def _chunks(files: ImageFiles, workers: int) -> Iterator[Chunk]:
    starts = range(0, len(files.paths), CHUNK)
    for start, (pixels, errors) in zip(starts, read_ahead(_Chunks(files), starts, workers), strict=True):
        yield slice(start, start + CHUNK), pixels, errors


def _cached_chunks(files: ImageFiles, workers: int, cache: tuple[Path, Any] | None) -> Iterator[Chunk]:
    """The chunks from the cache's file or, the first time, from the images, while the file is written."""
    if cache is None:
        yield from _chunks(files, workers)
        return
    folder, key = cache
    path = folder / f"pixels-{_digest(files.paths, [key, files.shape])}.npy"
    listed = path.with_suffix(".json")
    if path.exists() and listed.exists():
        pixels, errors = np.load(path, mmap_mode="r"), json.loads(listed.read_text(encoding="utf-8"))
        errors = {int(image): line for image, line in errors.items()}
        for start in range(0, len(pixels), CHUNK):
            rows = slice(start, start + CHUNK)
            yield rows, torch.from_numpy(np.array(pixels[rows])), errors
        return
    all_errors: dict[int, str] = {}
    with whole_file(path) as part:
        shape = (len(files.paths), *files.shape)
        pixels = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape)
        for rows, chunk, chunk_errors in _chunks(files, workers):
            pixels[rows] = chunk.numpy()
            all_errors |= chunk_errors
            yield rows, chunk, chunk_errors
        pixels.flush()
    listed.write_text(json.dumps(all_errors), encoding="utf-8")


def _digest(paths: Sequence[Path], key: Any) -> str:
    """A hash of the files' paths, sizes and times, which is much faster than one of their contents."""
    rows = []
    for path in paths:
        try:
            status = path.stat()
            rows.append([str(path), status.st_size, status.st_mtime_ns])
        except OSError:
            rows.append([str(path), 0, 0])
    return hashlib.blake2b(json.dumps([key, rows]).encode(), digest_size=16).hexdigest()
