"""How well scores separate true items from false ones, and whether predicted probabilities are calibrated.

    AUC = P(s⁺ > s⁻) + P(s⁺ = s⁻) / 2                    for the score s⁺ of a true item and s⁻ of a false one
    ECE = Σ_b n_b / N |mean predicted_b − share true_b|  over equal-width bins b of the predicted probability

NaN marks an item without a score, which is ignored. The result is NaN if no item remains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import overload

import numpy as np

_BLOCK = 1 << 21  # numbers per block of rows: 16 MiB of float64


@overload
def auc(scores: np.ndarray, truth: np.ndarray) -> float: ...
@overload
def auc(scores: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> np.ndarray: ...
def auc(scores: np.ndarray, truth: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray | float:
    """The probability that the score of a true item is higher than that of a false one; ties count half.

    Args:
        scores: (N,); NaN for items to ignore.
        truth: (N,) bool.
        weights: (…, N), how often each item counts; the result then has one value per row, (…).

    >>> auc(np.array([0.1, 0.5, 0.5, 0.9]), np.array([False, False, True, True]))
    0.875
    """
    scores, truth = np.asarray(scores, float), np.asarray(truth, bool)
    if scores.shape != truth.shape:
        raise ValueError(f"scores have shape {scores.shape}, truth has {truth.shape}")
    counts = np.ones(scores.shape) if weights is None else np.asarray(weights)
    if counts.shape[-1:] != scores.shape:
        raise ValueError(f"scores have shape {scores.shape}, weights have {counts.shape}")
    rows = counts.reshape(math.prod(counts.shape[:-1]), len(scores))  # (R, N)
    true, false = (np.flatnonzero(selected & ~np.isnan(scores)) for selected in (truth, ~truth))
    false = false[np.argsort(scores[false])]
    ties = [np.searchsorted(scores[false], scores[true], side) for side in ("left", "right")]  # (T,) each
    step = max(1, _BLOCK // max(1, len(scores)))
    values = np.empty(len(rows))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        values[start : start + step] = _auc(block[:, true], block[:, false], *ties)
    return float(values[0]) if weights is None else values.reshape(counts.shape[:-1])


def _auc(true: np.ndarray, false: np.ndarray, first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """AUC (R,) from weights (R, T) of true items and (R, F) of false items, sorted by ascending score.

    For each true item, false items before index `first` (T,) have a lower score, and from there to `end` an equal one.
    """
    cumulative = np.zeros((len(false), false.shape[1] + 1))
    np.cumsum(false, axis=1, out=cumulative[:, 1:])
    wins = np.einsum("rt,rt->r", true, cumulative[:, first] + cumulative[:, end]) / 2
    pairs = true.sum(axis=1, dtype=float) * cumulative[:, -1]
    return np.divide(wins, pairs, out=np.full(np.shape(wins), np.nan), where=pairs != 0)


@dataclass(frozen=True)
class Calibration:
    """Predicted probabilities compared with observed frequencies.

    Attributes:
        bins: mean prediction, share of true items, and count of every bin that has items, in ascending order.
        ece: expected calibration error; 0 if every share equals the mean prediction of its bin.
    """

    bins: tuple[tuple[float, float, int], ...]
    ece: float


def calibration(predicted: np.ndarray, truth: np.ndarray, bins: int = 10) -> Calibration:
    """Compare predicted probabilities (N,) with truth (N,), in equal-width bins on [0, 1].

    >>> calibration(np.array([0.25, 0.25, 0.75]), np.array([False, True, True]), bins=2)
    Calibration(bins=((0.25, 0.5, 2), (0.75, 1.0, 1)), ece=0.25)
    """
    predicted, truth = np.asarray(predicted, float), np.asarray(truth, float)
    valid = ~np.isnan(predicted)
    predicted, truth = predicted[valid], truth[valid]
    if not predicted.size:
        return Calibration((), math.nan)
    bin_index = np.clip(predicted * bins, 0, bins - 1).astype(int)  # 1 belongs to the last bin
    counts = np.bincount(bin_index, minlength=bins)
    used = counts > 0
    counts = counts[used]
    means, shares = (np.bincount(bin_index, values, minlength=bins)[used] / counts for values in (predicted, truth))
    ece = float((counts * np.abs(means - shares)).sum() / predicted.size)
    return Calibration(tuple(zip(means.tolist(), shares.tolist(), counts.tolist(), strict=True)), ece)
