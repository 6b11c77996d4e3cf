"""A frozen encoder runs once an image: its features go to a cache on disk and are read from there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from saywhy.cache import ArrayCache, content_key
from saywhy.data.loading import ImageFiles, in_order
from saywhy.data.preprocess import Preprocessing
from saywhy.encoders.base import Encoder
from saywhy.errors import UnreadableImage

if TYPE_CHECKING:
    from lightning_fabric import Fabric


class CachedFeatures:
    """Features of images, by their number; what a batch takes in place of pixels."""

    def __init__(self, cache: ArrayCache, keys: list[str], faults: dict[int, str], grid: tuple[int, int]) -> None:
        self.cache, self.keys, self.faults, self.grid = cache, keys, faults, grid

    def rows(self, images: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """Features (P, L, D) in float32, and a line for each broken image."""
        values = np.zeros((len(images), *self.cache.shape), np.float32)
        whole = [row for row, image in enumerate(images) if image not in self.faults]
        if whole:
            values[whole] = self.cache.get([self.keys[images[row]] for row in whole])
        return values, [self.faults.get(image, "") for image in images]


def weights_digest(encoder: Encoder) -> str:
    """A hash of every weight: another encoder never reads these features."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def cached_features(
    encoder: Encoder,
    preprocessing: Preprocessing,
    paths: Sequence[Path],
    folder: Path,
    workers: int,
    fabric: Fabric,
    on_event: Callable[[dict[str, Any]], None],
) -> CachedFeatures:
    """Encode what the cache does not hold yet; the first process does it and the others wait."""
    side = preprocessing.size
    files = ImageFiles(paths, (3, side, side), preprocessing, preprocessing.at_least)
    with torch.inference_mode():
        blank = encoder(torch.zeros(1, 3, side, side, device=fabric.device))
    key = {
        "encoder": asdict(encoder.settings),
        "weights": weights_digest(encoder),
        "preprocessing": asdict(preprocessing),
    }
    cache = ArrayCache(folder, tuple(blank.vectors.shape[1:]), "float16", key)
    faults: dict[int, str] = {}
    keys = [_key(path, number, faults) for number, path in enumerate(paths)]
    if fabric.is_global_zero:
        _encode_missing(encoder, cache, files, keys, faults, workers, fabric, on_event)
    fabric.barrier()
    return CachedFeatures(cache, keys, fabric.broadcast(faults), blank.grid)


def _key(path: Path, number: int, faults: dict[int, str]) -> str:
    try:
        return content_key(path)
    except UnreadableImage as error:
        faults[number] = str(error)
        return ""


def _encode_missing(
    encoder: Encoder, cache: ArrayCache, files: ImageFiles, keys: list[str], faults: dict[int, str],
    workers: int, fabric: Fabric, on_event: Callable[[dict[str, Any]], None],
) -> None:  # fmt: skip
    missing = [n for n, there in enumerate(cache.has(keys)) if not there and n not in faults]
    lacking = ImageFiles([files.paths[n] for n in missing], files.shape, files.prepare, files.at_least)
    for numbers, rows, lines in in_order(lacking, 32, workers):
        faults.update({missing[n]: line for n, line in zip(numbers, lines, strict=True) if line})
        whole = [row for row, line in enumerate(lines) if not line]
        with torch.inference_mode(), fabric.autocast():
            vectors = encoder(rows[whole].to(fabric.device)).vectors
        cache.put([keys[missing[numbers[row]]] for row in whole], vectors.half().cpu().numpy())
        on_event({"kind": "encode", "done": numbers[-1] + 1, "total": len(missing)})
