"""From an encoder's places to the picture the user gave.

The encoder sees a square of S × S pixels, which preprocessing cut out of the picture and resized (`region`). A map over
that square is laid back over the part it came from; what a crop cut away has the value 0. Maps over places are first
enlarged to the square: attention as in Show, attend and tell, linearly and then smoothed by a Gaussian of σ = 20 pixels
for places of 16 pixels.
"""

from __future__ import annotations

import numpy as np
from PIL import Image

Region = tuple[float, float, float, float]

SMOOTHING = 20 / 16
"""σ of attention's Gaussian, in places."""


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


def on_picture(values: np.ndarray, size: tuple[int, int], region: Region) -> np.ndarray:
    """A map of the encoder's square over a picture of (width, height), of which it saw `region`: (height, width)."""
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
