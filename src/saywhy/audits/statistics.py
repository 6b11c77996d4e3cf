"""What an audit measured, and how sure of it one may be.

    AUC = P(s⁺ > s⁻) + P(s⁺ = s⁻) / 2                    of a true item's score s⁺ and a false one's s⁻
    ECE = Σ_b n_b / N |mean predicted_b − share true_b|  over equal-width bins b of the predicted probability
    ρ   = the correlation of ranks (Spearman); equal values have their mean rank

Intervals are percentile bootstraps of 95 % (Efron, 1979) that draw whole images. NaN is an item without a value
and is left out; where nothing is left the answer is NaN, and nothing is warned of.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import overload

import numpy as np

LEVEL = 0.95
_BLOCK = 1 << 21  # numbers at a time: 16 MiB of float64


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % bootstrap interval.

    Attributes:
        value: the number.
        low: where the interval begins.
        high: where it ends.
        n: of how many items.
    """

    value: float
    low: float
    high: float
    n: int

    def as_dict(self) -> dict[str, float | None]:
        """For JSON, which has no NaN.

        >>> Estimate(0.5, 0.25, math.nan, 3).as_dict()
        {'value': 0.5, 'low': 0.25, 'high': None, 'n': 3}
        """
        return {name: None if math.isnan(each) else each for name, each in asdict(self).items()}


NOTHING = Estimate(math.nan, math.nan, math.nan, 0)


class Bootstrap:
    """Images are drawn with replacement, not words: words of one image are not independent.

    All statistics of one `Bootstrap` see the same draws, so that differences between them are paired.

    >>> Bootstrap(["dog.jpg", "dog.jpg", "sea.jpg"]).mean(np.array([1.0, 1.0, 4.0]))
    Estimate(value=2.0, low=1.0, high=4.0, n=3)
    """

    def __init__(self, images: Sequence[int | str], draws: int = 2000, seed: int = 0) -> None:
        """`images` names the image of each of N items."""
        names, self._owner = np.unique(np.asarray(images), return_inverse=True)  # (P,), (N,)
        count = len(names)
        drawn = np.random.default_rng(seed).integers(max(count, 1), size=(draws, count))  # (draws, P)
        cells = drawn + count * np.arange(draws)[:, None]
        self._times = np.bincount(cells.ravel(), minlength=draws * count).reshape(draws, count).astype(np.float32)

    @property
    def weights(self) -> np.ndarray:
        """How often each item is drawn in each draw: (draws, N) float32."""
        return self._times[:, self._owner]

    def mean(self, values: np.ndarray) -> Estimate:
        """The mean of values (N,)."""
        values = np.asarray(values, float)
        there = ~np.isnan(values)
        if not there.any():
            return NOTHING
        sums, counts = (self._by_image(each) for each in (np.where(there, values, 0), there))  # (P,)
        times = self._times.astype(float)
        return _estimate(values[there].mean(), _ratio(times @ sums, times @ counts), there)

    def difference(self, one: np.ndarray, other: np.ndarray) -> Estimate:
        """The mean of one − other, item by item; both (N,)."""
        return self.mean(np.asarray(one, float) - np.asarray(other, float))

    def auc(self, scores: np.ndarray, truth: np.ndarray) -> Estimate:
        """How well scores (N,) tell the true items from the false ones; see `auc`."""
        scores = np.asarray(scores, float)
        return _estimate(auc(scores, truth), auc(scores, truth, self.weights), ~np.isnan(scores))

    def auc_difference(self, one: np.ndarray, other: np.ndarray, truth: np.ndarray) -> Estimate:
        """How much better `one` tells the true items from the false ones than `other`, over those with both scores."""
        one, other = np.asarray(one, float), np.asarray(other, float)
        there = ~(np.isnan(one) | np.isnan(other))
        one, other = (np.where(there, each, np.nan) for each in (one, other))
        weights = self.weights
        draws = auc(one, truth, weights) - auc(other, truth, weights)
        return _estimate(auc(one, truth) - auc(other, truth), draws, there)

    def _by_image(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self._owner, values, minlength=self._times.shape[1])


def _estimate(value: float, draws: np.ndarray, there: np.ndarray) -> Estimate:
    """A draw may have no value, where it missed every item that has one."""
    if math.isnan(value):
        return Estimate(math.nan, math.nan, math.nan, int(there.sum()))
    draws = draws[~np.isnan(draws)]
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(draws, [outside, 1 - outside]) if draws.size else (math.nan, math.nan)
    return Estimate(float(value), float(low), float(high), int(there.sum()))


@overload
def auc(scores: np.ndarray, truth: np.ndarray) -> float: ...
@overload
def auc(scores: np.ndarray, truth: np.ndarray, weights: np.ndarray) -> np.ndarray: ...
def auc(scores: np.ndarray, truth: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray | float:
    """The probability that a true item's score is above a false one's, ties counting half.

    Args:
        scores: (N,); NaN for items to leave out.
        truth: (N,) bool.
        weights: (…, N), how often each item counts; then there is a value a row, (…).

    >>> auc(np.array([0.1, 0.5, 0.5, 0.9]), np.array([False, False, True, True]))
    0.875
    """
    scores, truth = np.asarray(scores, float), np.asarray(truth, bool)
    if scores.shape != truth.shape:
        raise ValueError(f"{scores.shape} scores and {truth.shape} truths")
    given = np.ones(scores.shape) if weights is None else np.asarray(weights)
    if given.shape[-1:] != scores.shape:
        raise ValueError(f"{scores.shape} scores and weights of {given.shape}")
    rows = given.reshape(math.prod(given.shape[:-1]), len(scores))  # (R, N)
    true, false = (np.flatnonzero(each & ~np.isnan(scores)) for each in (truth, ~truth))
    false = false[np.argsort(scores[false])]
    ties = [np.searchsorted(scores[false], scores[true], side) for side in ("left", "right")]  # of each true item
    step = max(1, _BLOCK // max(1, len(scores)))
    found = np.empty(len(rows))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        found[start : start + step] = _auc(block[:, true], block[:, false], *ties)
    return float(found[0]) if weights is None else found.reshape(given.shape[:-1])


def _auc(true: np.ndarray, false: np.ndarray, first: np.ndarray, end: np.ndarray) -> np.ndarray:
    """AUC of weights (R, T) of true items and (R, F) of false ones, the lowest score first; (R,).

    Of each true item, the false ones before `first` (T,) have a lower score, and those from there to `end` the same.
    """
    up_to = np.zeros((len(false), false.shape[1] + 1))
    np.cumsum(false, axis=1, out=up_to[:, 1:])
    wins = np.einsum("rt,rt->r", true, up_to[:, first] + up_to[:, end]) / 2
    return _ratio(wins, true.sum(axis=1, dtype=float) * up_to[:, -1])


@dataclass(frozen=True)
class Calibration:
    """Whether what is called likely happens as often.

    Attributes:
        bins: mean predicted, share that came true, and count of every bin that has items, the least likely first.
        ece: expected calibration error, 0 where every share is what was predicted.
    """

    bins: tuple[tuple[float, float, int], ...]
    ece: float


def calibration(predicted: np.ndarray, truth: np.ndarray, bins: int = 10) -> Calibration:
    """Compare predicted probabilities (N,) with truth (N,), in equal-width bins on [0, 1].

    >>> calibration(np.array([0.25, 0.25, 0.75]), np.array([False, True, True]), bins=2)
    Calibration(bins=((0.25, 0.5, 2), (0.75, 1.0, 1)), ece=0.25)
    """
    predicted, truth = np.asarray(predicted, float), np.asarray(truth, float)
    there = ~np.isnan(predicted)
    predicted, truth = predicted[there], truth[there]
    if not predicted.size:
        return Calibration((), math.nan)
    place = np.clip(predicted * bins, 0, bins - 1).astype(int)  # 1 belongs to the last bin
    counts = np.bincount(place, minlength=bins)
    used = counts > 0
    counts = counts[used]
    means, shares = (np.bincount(place, each, minlength=bins)[used] / counts for each in (predicted, truth))
    ece = float((counts * np.abs(means - shares)).sum() / predicted.size)
    return Calibration(tuple(zip(means.tolist(), shares.tolist(), counts.tolist(), strict=True)), ece)


def rank_correlation(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Spearman's ρ along the last axis, (…, N) and (…, N) ↦ (…); NaN where one is constant or has a NaN.

    >>> rank_correlation(np.array([[1, 2, 3], [3, 2, 1], [5, 5, 5]]), np.array([10, 20, 99])).tolist()
    [1.0, -1.0, nan]
    """
    x, y = _centred_ranks(np.asarray(one, float)), _centred_ranks(np.asarray(other, float))
    sizes = np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))
    return np.clip(_ratio((x * y).sum(axis=-1), sizes), -1, 1)


def _centred_ranks(values: np.ndarray) -> np.ndarray:
    """The mean rank of every value along the last axis, less the mean of all; all NaN where a value is."""
    count = values.shape[-1]
    order = np.argsort(values, axis=-1)
    ordered = np.take_along_axis(values, order, axis=-1)
    places = np.arange(count)
    begins = np.ones(values.shape, bool)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    ends = np.ones(values.shape, bool)
    ends[..., :-1] = begins[..., 1:]
    first = np.maximum.accumulate(np.where(begins, places, 0), axis=-1)
    last = np.minimum.accumulate(np.where(ends, places, count)[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 - (count - 1) / 2, axis=-1)
    return np.where(np.isnan(values).any(axis=-1, keepdims=True), np.nan, ranks)


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """above / below, NaN where that would divide by nothing."""
    return np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below != 0)
