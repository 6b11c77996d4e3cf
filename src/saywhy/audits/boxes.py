"""Does an explanation lie where the thing is: maps over the encoder's square, and boxes that people drew.

Shares are the correctness of the LRP paper (https://arxiv.org/abs/2001.01037, eqs. 23–24), of either sign:

    positive = Σ_{ij ∈ boxes} max(E_ij, 0) / Σ_ij max(E_ij, 0)        negative: the same of −E

The pointing game (Zhang et al. 2018, https://arxiv.org/abs/1608.00507) asks of the highest pixel alone.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from saywhy.data.preprocess import Preprocessing


def box_mask(boxes: np.ndarray, size: tuple[int, int], preprocessing: Preprocessing, side: int) -> np.ndarray:
    """The pixels whose centres lie in one of the boxes: (side, side) bool.

    Args:
        boxes: (n, 4) left, top, right, bottom as shares 0–1 of the image.
        size: the image's width and height.
        preprocessing: what part of the image the encoder sees.
        side: of the square that part is laid on, whatever the encoder's own.

    >>> left_half = np.array([[0, 0, 0.5, 1]])
    >>> box_mask(left_half, (200, 100), Preprocessing(fit="crop", margin=1), 4).astype(int).tolist()[0]
    [1, 1, 0, 0]
    """
    part = np.array(preprocessing.region(*size)).reshape(2, 2) / size  # (corner, far corner) × (x, y), in shares
    centres = part[0] + (np.arange(side)[:, None] + 0.5) / side * (part[1] - part[0])  # (side, 2)
    corner, far = np.asarray(boxes, float).reshape(-1, 2, 2).swapaxes(0, 1)[:, :, None]  # (n, 1, 2) each
    columns, rows = np.moveaxis((corner <= centres) & (centres < far), -1, 0)  # (n, side) each
    return (rows[:, :, None] & columns[:, None, :]).any(axis=0)


class Shares(NamedTuple):
    """How much of a map lies inside, of what speaks for a word and of what speaks against it; (…) each."""

    positive: np.ndarray
    negative: np.ndarray


def shares(maps: np.ndarray, mask: np.ndarray) -> Shares:
    """The shares of maps (…, side, side) in a mask (side, side), or one for each map; NaN where that sign is absent.

    >>> found = shares(np.array([[3.0, -2.0], [1.0, 0.0]]), np.array([[True, True], [False, False]]))
    >>> float(found.positive), float(found.negative)
    (0.75, 1.0)
    """
    maps = np.asarray(maps, float)
    return Shares(_share(np.maximum(maps, 0), mask), _share(np.maximum(-maps, 0), mask))


def _share(amounts: np.ndarray, mask: np.ndarray) -> np.ndarray:
    inside, whole = (each.sum(axis=(-2, -1)) for each in (amounts * mask, amounts))
    return np.divide(inside, whole, out=np.full(np.shape(inside), np.nan), where=whole > 0)


def points(maps: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Whether the highest pixel of maps (…, side, side) lies in the mask, the first where several are: (…) bool.

    >>> points(np.array([[[3, 2], [1, 0]], [[0, 1], [2, 3]]]), np.array([[True, True], [False, False]])).tolist()
    [True, False]
    """
    maps, mask = np.broadcast_arrays(maps, mask)
    flat = (*maps.shape[:-2], -1)
    highest = maps.reshape(flat).argmax(axis=-1)
    return np.take_along_axis(mask.reshape(flat), highest[..., None], axis=-1)[..., 0]
