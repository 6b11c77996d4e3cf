"""Estimates of audits, with confidence intervals.

    ρ = the correlation of ranks (Spearman); equal values share their mean rank

Intervals are 95 % percentile bootstraps (Efron, 1979) that resample images. NaN marks an item without a value, which
is ignored. The result is NaN if no item remains.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from saywhy.metrics.classification import auc

LEVEL = 0.95


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % bootstrap interval.

    Attributes:
        value: the statistic of all items.
        low: the lower end of the interval.
        high: the upper end of the interval.
        n: the number of items.
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
        return {name: None if math.isnan(value) else value for name, value in asdict(self).items()}


EMPTY = Estimate(math.nan, math.nan, math.nan, 0)


class Bootstrap:
    """A bootstrap that resamples images, not words, because the words of one image are not independent.

    All statistics of one `Bootstrap` use the same samples, so that differences between them are paired.

    >>> Bootstrap(["dog.jpg", "dog.jpg", "sea.jpg"]).mean(np.array([1.0, 1.0, 4.0]))
    Estimate(value=2.0, low=1.0, high=4.0, n=3)
    """

    def __init__(self, images: Sequence[int | str], samples: int = 2000, seed: int = 0) -> None:
        """`images` names the image of each of the N items."""
        names, self._image_index = np.unique(np.asarray(images), return_inverse=True)  # (P,), (N,)
        count = len(names)
        drawn = np.random.default_rng(seed).integers(max(count, 1), size=(samples, count))  # (samples, P)
        cells = drawn + count * np.arange(samples)[:, None]
        counts = np.bincount(cells.ravel(), minlength=samples * count).reshape(samples, count)
        self._image_counts = counts.astype(np.float32)

    @property
    def weights(self) -> np.ndarray:
        """How often each sample contains each item: (samples, N) float32."""
        return self._image_counts[:, self._image_index]

    def mean(self, values: np.ndarray) -> Estimate:
        """The mean of values (N,)."""
        values = np.asarray(values, float)
        valid = ~np.isnan(values)
        if not valid.any():
            return EMPTY
        sums, counts = (self._sum_by_image(array) for array in (np.where(valid, values, 0), valid))  # (P,)
        image_counts = self._image_counts.astype(float)
        return _estimate(values[valid].mean(), _ratio(image_counts @ sums, image_counts @ counts), valid)

    def difference(self, first: np.ndarray, second: np.ndarray) -> Estimate:
        """The mean of first − second, item by item; both (N,)."""
        return self.mean(np.asarray(first, float) - np.asarray(second, float))

    def of_sums(self, values: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> Estimate:
        """A statistic of the sums of values (N, K) over the items, such as BLEU of its counts; sums (…, K) ↦ (…).

        >>> counts = np.array([[1.0, 2.0], [0.0, 2.0]])
        >>> Bootstrap(["a", "b"]).of_sums(counts, lambda sums: sums[..., 0] / sums[..., 1])
        Estimate(value=0.25, low=0.0, high=0.5, n=2)
        """
        values = np.asarray(values, float)
        by_image = np.stack([self._sum_by_image(column) for column in values.T], axis=-1)  # (P, K)
        samples = statistic(self._image_counts.astype(float) @ by_image)
        return _estimate(float(statistic(values.sum(axis=0))), samples, np.ones(len(values), bool))

    def auc(self, scores: np.ndarray, truth: np.ndarray) -> Estimate:
        """How well scores (N,) separate true items from false ones; see `metrics.classification.auc`."""
        scores = np.asarray(scores, float)
        return _estimate(auc(scores, truth), auc(scores, truth, self.weights), ~np.isnan(scores))

    def auc_difference(self, first: np.ndarray, second: np.ndarray, truth: np.ndarray) -> Estimate:
        """The AUC of `first` minus the AUC of `second`, over the items that have both scores."""
        first, second = np.asarray(first, float), np.asarray(second, float)
        valid = ~(np.isnan(first) | np.isnan(second))
        first, second = (np.where(valid, scores, np.nan) for scores in (first, second))
        weights = self.weights
        samples = auc(first, truth, weights) - auc(second, truth, weights)
        return _estimate(auc(first, truth) - auc(second, truth), samples, valid)

    def _sum_by_image(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self._image_index, values, minlength=self._image_counts.shape[1])


def _estimate(value: float, samples: np.ndarray, valid: np.ndarray) -> Estimate:
    """A sample has no value if it contains no item that has one."""
    if math.isnan(value):
        return Estimate(math.nan, math.nan, math.nan, int(valid.sum()))
    samples = samples[~np.isnan(samples)]
    outside = (1 - LEVEL) / 2
    low, high = np.quantile(samples, [outside, 1 - outside]) if samples.size else (math.nan, math.nan)
    return Estimate(float(value), float(low), float(high), int(valid.sum()))


def means_by_name(bootstrap: Bootstrap, names: Sequence[str], tables: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """By name and table, the mean of a column: each name is a column of every table (N, names)."""
    return {
        name: {key: bootstrap.mean(values[:, column]).as_dict() for key, values in tables.items()}
        for column, name in enumerate(names)
    }


def check(claim: str, difference: Estimate) -> dict[str, Any]:
    """A claim that a difference is above zero: true or false if its interval excludes zero, else undecided (None)."""
    holds = True if difference.low > 0 else False if difference.high < 0 else None
    return {"claim": claim, "holds": holds, "difference": difference.as_dict()}


def rank_correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Spearman's ρ along the last axis, (…, N) and (…, N) ↦ (…); NaN if one is constant or has a NaN.

    >>> rank_correlation(np.array([[1, 2, 3], [3, 2, 1], [5, 5, 5]]), np.array([10, 20, 99])).tolist()
    [1.0, -1.0, nan]
    """
    x, y = _centred_ranks(np.asarray(first, float)), _centred_ranks(np.asarray(second, float))
    norms = np.sqrt((x**2).sum(axis=-1) * (y**2).sum(axis=-1))
    return np.clip(_ratio((x * y).sum(axis=-1), norms), -1, 1)


def _centred_ranks(values: np.ndarray) -> np.ndarray:
    """The mean rank of every value along the last axis minus the mean of all ranks; all NaN if a value is NaN."""
    count = values.shape[-1]
    order = np.argsort(values, axis=-1)
    ordered = np.take_along_axis(values, order, axis=-1)
    positions = np.arange(count)
    begins = np.ones(values.shape, bool)
    begins[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    ends = np.ones(values.shape, bool)
    ends[..., :-1] = begins[..., 1:]
    first = np.maximum.accumulate(np.where(begins, positions, 0), axis=-1)
    last = np.minimum.accumulate(np.where(ends, positions, count)[..., ::-1], axis=-1)[..., ::-1]
    ranks = np.empty(values.shape)
    np.put_along_axis(ranks, order, (first + last) / 2 - (count - 1) / 2, axis=-1)
    return np.where(np.isnan(values).any(axis=-1, keepdims=True), np.nan, ranks)


def random_for(name: str) -> np.random.Generator:
    """A random generator that depends on the name of an image alone."""
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()))


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    """numerator / denominator, NaN where the denominator is zero."""
    return np.divide(numerator, denominator, out=np.full(np.shape(numerator), np.nan), where=denominator != 0)
