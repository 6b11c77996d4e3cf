"""Patches of the encoder's square: what a map says of each, and images in which some of them are masked."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

PATCH = 8
"""Side of a patch in pixels, as in the LRP paper."""
MEAN = (124, 116, 104)
"""What masks: the mean of ImageNet's training images in RGB, which the encoders' weights were trained on."""


def patch_sums(maps: np.ndarray, patch: int = PATCH) -> np.ndarray:
    """Sums of maps (…, S, S) over patches, (…, n · n), in reading order; at the far edges they may be narrower.

    >>> patch_sums(np.arange(9.0).reshape(3, 3), 2).tolist()
    [8.0, 7.0, 13.0, 8.0]
    """
    missing = -maps.shape[-1] % patch
    padded = np.pad(maps, [(0, 0)] * (maps.ndim - 2) + [(0, missing)] * 2)
    n = padded.shape[-1] // patch
    cells = padded.reshape(*maps.shape[:-2], n, patch, n, patch)
    return cells.sum(axis=(-3, -1)).reshape(*maps.shape[:-2], n * n)


def masks(chosen: Tensor, side: int, patch: int = PATCH) -> Tensor:
    """Which pixels the chosen patches (…, n · n) cover, (…, S, S)."""
    n = -(-side // patch)
    cells = chosen.unflatten(-1, (n, n))
    return cells.repeat_interleave(patch, -1).repeat_interleave(patch, -2)[..., :side, :side]


def masked(pixels: Tensor, chosen: Tensor) -> Tensor:
    """Images (N, 3, S, S) with chosen patches (N, n · n) masked."""
    mean = torch.tensor(MEAN, dtype=pixels.dtype, device=pixels.device).view(3, 1, 1)
    return torch.where(masks(chosen.to(pixels.device), pixels.shape[-1])[:, None], mean, pixels)


def highest(values: np.ndarray, count: int, chance: np.ndarray) -> np.ndarray:
    """Which of values (…, N) are the `count` highest, (…, N) bool; of equal ones those of the higher `chance`, (…, N).

    >>> highest(np.array([1, 3, 3, 3]), 2, np.array([0.9, 0.1, 0.2, 0.3])).tolist()
    [False, False, True, True]
    """
    order = np.lexsort((-np.broadcast_to(chance, values.shape), -values), axis=-1)[..., :count]
    chosen = np.zeros(values.shape, bool)
    np.put_along_axis(chosen, order, True, axis=-1)
    return chosen
