"""Square patches of the encoder's input: sums of maps over patches, and images with masked patches."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from saywhy.explain.occlusion import MEAN

PATCH = 8
"""Side of a patch in pixels, as in the LRP paper."""


def patch_sums(maps: np.ndarray, patch: int = PATCH) -> np.ndarray:
    """Sums of maps (…, S, S) over patches, (…, n · n), row by row; those at the right and bottom may be narrower.

    >>> patch_sums(np.arange(9.0).reshape(3, 3), 2).tolist()
    [8.0, 7.0, 13.0, 8.0]
    """
    missing = -maps.shape[-1] % patch
    padded = np.pad(maps, [(0, 0)] * (maps.ndim - 2) + [(0, missing)] * 2)
    n = padded.shape[-1] // patch
    cells = padded.reshape(*maps.shape[:-2], n, patch, n, patch)
    return cells.sum(axis=(-3, -1)).reshape(*maps.shape[:-2], n * n)


def patch_masks(selected: Tensor, side: int, patch: int = PATCH) -> Tensor:
    """The pixels that selected patches (…, n · n) cover, (…, S, S)."""
    n = -(-side // patch)
    cells = selected.unflatten(-1, (n, n))
    return cells.repeat_interleave(patch, -1).repeat_interleave(patch, -2)[..., :side, :side]


def mask_patches(pixels: Tensor, selected: Tensor) -> Tensor:
    """Images (N, 3, S, S) with selected patches (N, n · n) masked."""
    return mask_pixels(pixels, patch_masks(selected, pixels.shape[-1]))


def mask_pixels(pixels: Tensor, selected: Tensor) -> Tensor:
    """Images (N, 3, S, S) with selected pixels (N, S, S) masked."""
    mean = torch.tensor(MEAN, dtype=pixels.dtype, device=pixels.device).view(3, 1, 1)
    return torch.where(selected.to(pixels.device)[:, None], mean, pixels)


def select_highest(values: np.ndarray, count: int, tie_break: np.ndarray) -> np.ndarray:
    """Select the `count` highest of values (…, N), (…, N) bool; of equal values those with the higher `tie_break`.

    >>> select_highest(np.array([1, 3, 3, 3]), 2, np.array([0.9, 0.1, 0.2, 0.3])).tolist()
    [False, False, True, True]
    """
    order = np.lexsort((-np.broadcast_to(tie_break, values.shape), -values), axis=-1)[..., :count]
    selected = np.zeros(values.shape, bool)
    np.put_along_axis(selected, order, True, axis=-1)
    return selected
