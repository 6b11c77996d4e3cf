"""Training inputs in the device's memory: every image is decoded, or encoded by a frozen encoder, once.

All of COCO as 256 × 256 pixels is 23 GB of uint8, which fits into a large GPU; a training step then only sends the
numbers of its images (`ResidentBatches`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from saywhy.data.loading import ImageFiles
from saywhy.files import whole_file
from saywhy.inference.batches import read_ahead

CHUNK = 128
"""Images that are read, copied and encoded together."""
SHARE_OF_MEMORY = 0.5
"""Of the device's free memory; training needs the rest."""

OnEvent = Callable[[dict[str, Any]], None]


def fits(images: int, bytes_per_image: int, device: torch.device) -> bool:
    """Whether the inputs fit into the free memory of a GPU beside training; False on other devices."""
    if device.type != "cuda":
        return False
    free, _ = torch.cuda.mem_get_info(device)
    return images * bytes_per_image <= SHARE_OF_MEMORY * free


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
