"""Near-duplicates between two sets of images: the same photograph, re-encoded, resized, recoloured or slightly cropped.

Each image is reduced to a grey thumbnail (32, 32). Two tests decide on a pair:

1. Difference hash, 128 bits: whether brightness rises from each cell to the next, along the rows of an 8×9 grid and
   down the columns of a 9×8 grid. All pairs within `MAX_DISTANCE` bits are candidates; most are skies and horizons.
2. Detail: thumbnails minus their local mean, divided by the local standard deviation, without row and column means,
   so that horizons and frames do not count. Its correlation, the best of shifts by up to one pixel, must reach
   `MIN_SIMILARITY`.

Both limits were chosen by looking at pairs of COCO and Flickr8k images, with mirrored images for comparison.
docs/tutorial.md gives the numbers.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from saywhy.cache import DiskCache
from saywhy.data.datasets import ANY_SPLIT, CaptionedImage, Dataset, split_name
from saywhy.data.images import open_image
from saywhy.data.worker_pool import Progress, map_in_workers
from saywhy.errors import UnreadableImage, UserError
from saywhy.files import read_text

SIDE = 32
BITS = 128
MAX_DISTANCE = 28
MIN_SIMILARITY = 0.5

_BLOCK = (1024, 16384)  # images of A and of B that are compared at once: 64 MiB of distances
_FEW = 4096  # thumbnails that are converted to floating point at once
_RADIUS = 3  # of the neighbourhood whose mean and deviation are local
_NOISE = 2.0  # grey levels; smaller deviations are not detail


@dataclass(frozen=True)
class NearDuplicate:
    """An image of A and one of B that show the same photograph.

    Attributes:
        distance: bits in which the difference hashes differ, of 128.
        similarity: correlation of the detail, up to 1.
        mirrored: whether one is the mirror image of the other.
    """

    a: str
    b: str
    split_a: str
    split_b: str
    distance: int
    similarity: float
    mirrored: bool


@dataclass(frozen=True)
class Overlap:
    """The result of `find_overlap`; the most similar pairs come first.

    Attributes:
        images_a: number of images of A that were compared.
        images_b: number of images of B that were compared.
        unreadable: files that could not be read, and so were not compared.
    """

    images_a: int
    images_b: int
    pairs: tuple[NearDuplicate, ...]
    unreadable: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Images of A that are in a pair, once each: those to leave out of training."""
        return sorted({pair.a for pair in self.pairs})

    def as_dict(self) -> dict[str, Any]:
        """All fields as plain dictionaries and lists, for JSON."""
        return {**asdict(self), "names": self.names}


def find_overlap(
    a: Dataset,
    b: Dataset,
    *,
    splits_a: Sequence[str] = ("train",),
    splits_b: Sequence[str] = ("dev", "test"),
    workers: int | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Overlap:
    """Near-duplicates between splits of two data sets, or of one if `a` is `b`."""
    images_a, images_b = _select(a, splits_a), _select(b, splits_b)
    paths = list(dict.fromkeys(image.path for image in (*images_a, *images_b)))
    pixels, readable = thumbnails(paths, workers, cache, progress)
    unreadable = tuple(str(path) for path, valid in zip(paths, readable, strict=True) if not valid)
    row = {path: number for number, (path, valid) in enumerate(zip(paths, readable, strict=True)) if valid}
    images_a, images_b = ([image for image in images if image.path in row] for images in (images_a, images_b))
    rows_a, rows_b = (np.array([row[image.path] for image in images], int) for images in (images_a, images_b))
    pairs: dict[frozenset[Path], NearDuplicate] = {}
    for i, j, distance, similarity, mirrored in sorted(
        _pairs(pixels[rows_a], pixels[rows_b]), key=lambda pair: -pair[3]
    ):
        one, other = images_a[i], images_b[j]
        if one.path != other.path:  # a split that is compared with itself: each pair once
            found = NearDuplicate(one.name, other.name, one.split, other.split, distance, similarity, mirrored)
            pairs.setdefault(frozenset((one.path, other.path)), found)
    return Overlap(len(images_a), len(images_b), tuple(pairs.values()), unreadable)


def read_names(path: str | Path) -> list[str]:
    """The image names of a file with one per line, as `saywhy data overlap --out` writes it."""
    return [name for line in read_text(path).splitlines() if (name := line.strip())]


def thumbnails(
    paths: Sequence[Path], workers: int | None = None, cache: Path | None = None, progress: Progress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Grey thumbnails (N, 32, 32) of image files, and which of them could be read (N,)."""
    store = DiskCache(cache, "thumbnails", {"side": SIDE}) if cache else None
    key = _files_key(paths) if store else ""
    if store and store.has(key):
        arrays = store.load(key)
        return arrays["pixels"], arrays["readable"]
    pixels, readable = np.zeros((len(paths), SIDE, SIDE), np.uint8), np.zeros(len(paths), bool)
    for row, thumbnail in enumerate(map_in_workers(_thumbnail, paths, workers, progress)):
        if thumbnail is not None:
            pixels[row], readable[row] = thumbnail, True
    if store:
        store.save(key, {"pixels": pixels, "readable": readable})
    return pixels, readable


def difference_hash(pixels: np.ndarray) -> np.ndarray:
    """The hash of thumbnails (N, 32, 32): bits (N, 128)."""
    eight, nine = _averaging(8), _averaging(9)
    bits = np.zeros((len(pixels), 2, 8, 8), bool)
    for start in range(0, len(pixels), _FEW):
        grey = pixels[start : start + _FEW].astype(np.float32)
        bits[start : start + _FEW, 0] = np.diff(eight @ grey @ nine.T, axis=2) > 0
        bits[start : start + _FEW, 1] = np.diff(nine @ grey @ eight.T, axis=1) > 0
    return bits.reshape(-1, BITS)


def similarities(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Correlation (N,) of the detail of thumbnails (N, 32, 32), the best of shifts by up to one pixel."""
    a, b = _detail(a), _detail(b)
    kept = {-1: slice(0, SIDE - 1), 0: slice(0, SIDE), 1: slice(1, SIDE)}
    shifts = product(kept, kept)
    return np.max([_correlation(a[:, kept[y], kept[x]], b[:, kept[-y], kept[-x]]) for y, x in shifts], axis=0)


def _select(dataset: Dataset, splits: Sequence[str]) -> list[CaptionedImage]:
    names = {split_name(split) for split in splits} | {ANY_SPLIT}
    images = [image for image in dataset.images if image.split in names]
    if not images:
        known = ", ".join(filter(None, dataset.splits)) or "none"
        raise UserError(f"{dataset.root}: no images in {', '.join(splits)}; it has these splits: {known}")
    return images


def _thumbnail(path: Path) -> np.ndarray | None:
    try:
        image = open_image(path, min_side=2 * SIDE)
    except UnreadableImage:
        return None
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))


def _files_key(paths: Sequence[Path]) -> str:
    """Changes if a file is added, removed, renamed or modified."""
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        try:
            status = os.stat(path)
            state = (status.st_size, status.st_mtime_ns)
        except OSError:
            state = (0, 0)
        digest.update(repr((os.path.abspath(path), state)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def _pairs(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[int, int, int, float, bool]]:
    """Near-duplicates of thumbnails: rows of A and B, distance, similarity, and whether B is mirrored."""
    for mirrored in (False, True):
        compared = b[:, :, ::-1] if mirrored else b
        for i, j, distance in _candidates(difference_hash(a), difference_hash(compared)):
            similarity = similarities(a[i], compared[j])
            same = similarity >= MIN_SIMILARITY
            columns = (values[same].tolist() for values in (i, j, distance, similarity))
            yield from ((*pair, mirrored) for pair in zip(*columns, strict=True))


def _candidates(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """All pairs of hashes within `MAX_DISTANCE`: rows of A, rows of B and distances, some at a time.

    With bits as ±1, the product of two hashes is 128 − 2 · distance, so that one matrix product compares a block.
    """
    for start_b, start_a in product(range(0, len(b), _BLOCK[1]), range(0, len(a), _BLOCK[0])):
        products = _signs(a[start_a : start_a + _BLOCK[0]]) @ _signs(b[start_b : start_b + _BLOCK[1]]).T
        rows, columns = np.nonzero(products >= BITS - 2 * MAX_DISTANCE)
        distances = ((BITS - products[rows, columns]) / 2).astype(int)
        for part in range(0, len(rows), _FEW):
            few = slice(part, part + _FEW)
            yield start_a + rows[few], start_b + columns[few], distances[few]


def _signs(bits: np.ndarray) -> np.ndarray:
    return np.where(bits, np.float32(1), np.float32(-1))


def _averaging(cells: int) -> np.ndarray:
    """A matrix (cells, 32) that averages a row of pixels over equal cells."""
    left, right = np.arange(cells)[:, None] * SIDE / cells, (np.arange(cells)[:, None] + 1) * SIDE / cells
    pixel = np.arange(SIDE)
    covered = np.clip(np.minimum(right, pixel + 1) - np.maximum(left, pixel), 0, None)
    return (covered * cells / SIDE).astype(np.float32)


def _detail(pixels: np.ndarray) -> np.ndarray:
    grey = pixels.astype(np.float32)
    mean = _local_mean(grey)
    deviation = np.sqrt(np.maximum(_local_mean(grey**2) - mean**2, 0))
    detail = (grey - mean) / (deviation + _NOISE)
    return detail - detail.mean(1, keepdims=True) - detail.mean(2, keepdims=True) + detail.mean((1, 2), keepdims=True)


def _local_mean(values: np.ndarray) -> np.ndarray:
    """The mean over 7×7 pixels; the border is repeated outwards."""
    index = np.clip(np.arange(-_RADIUS, SIDE + _RADIUS), 0, SIDE - 1)
    window = np.zeros((SIDE, SIDE), np.float32)
    for offset in range(2 * _RADIUS + 1):
        window[np.arange(SIDE), index[offset : offset + SIDE]] += 1 / (2 * _RADIUS + 1)
    return window @ values @ window.T


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = (values.reshape(len(values), -1) for values in (a, b))
    a, b = (values - values.mean(1, keepdims=True) for values in (a, b))
    return (a * b).sum(1) / np.maximum(np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1), 1e-6)
