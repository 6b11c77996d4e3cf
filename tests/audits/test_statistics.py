"""Estimates and their intervals, compared with other packages, slow loops and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reference import audits as reference
from saywhy.audits.statistics import EMPTY, Bootstrap, Estimate, check, random_for, rank_correlation
from saywhy.metrics.classification import auc

pytestmark = pytest.mark.filterwarnings("error")
NAN = math.nan


def scored_items(seed: int, count: int = 60, levels: int | None = 7) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores with many ties, labels that correlate with them, and the image of each item."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=count) if levels is None else rng.integers(levels, size=count).astype(float)
    truth = scores + rng.normal(scale=3, size=count) > scores.mean()
    return scores, truth, rng.integers(12, size=count)


def assert_similar_interval(estimate: Estimate, samples: list[float]) -> None:
    """The interval is that of the samples of a slow bootstrap, up to chance."""
    expected = [reference.quantile(samples, share) for share in (0.025, 0.975)]
    width = expected[1] - expected[0]
    np.testing.assert_allclose([estimate.low, estimate.high], expected, atol=0.1 * width)


def test_samples_contain_as_many_images_as_there_are_with_all_their_items():
    images = ["b", "a", "b", "c", "a"]
    weights = Bootstrap(images, samples=3000).weights
    assert weights.shape == (3000, 5)
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights[:, 0], weights[:, 2])
    np.testing.assert_array_equal(weights[:, 1], weights[:, 4])
    np.testing.assert_array_equal(weights[:, [0, 1, 3]].sum(axis=1), 3)
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.06)
    assert (weights[:, 0] == 0).mean() == pytest.approx((2 / 3) ** 3, abs=0.03)


def test_samples_depend_on_the_seed_only():
    first, same, other = (Bootstrap(range(9), samples=20, seed=seed).weights for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert (first != other).any()


def test_intervals_are_quantiles_of_the_statistics_of_the_samples():
    scores, truth, images = scored_items(5)
    scores[::7] = NAN
    bootstrap = Bootstrap(images, samples=40)
    valid = ~np.isnan(scores)
    means = [reference.mean(np.repeat(scores[valid], row[valid].astype(int)).tolist()) for row in bootstrap.weights]
    aucs = [reference.auc(scores[valid], truth[valid], row[valid]) for row in bootstrap.weights.astype(float)]
    for estimate, samples in ((bootstrap.mean(scores), means), (bootstrap.auc(scores, truth), aucs)):
        expected = [reference.quantile(samples, share) for share in (0.025, 0.975)]
        np.testing.assert_allclose([estimate.low, estimate.high], expected, rtol=1e-9)
        assert estimate.n == valid.sum()
    assert bootstrap.mean(scores).value == pytest.approx(np.nanmean(scores))
    assert bootstrap.auc(scores, truth).value == reference.auc(scores[valid], truth[valid])


def test_intervals_are_similar_to_those_of_a_slow_bootstrap():
    scores, truth, images = scored_items(1)
    bootstrap = Bootstrap(images, samples=4000)
    means = reference.bootstrap(reference.mean, scores.tolist(), images, 4000, seed=1)
    assert_similar_interval(bootstrap.mean(scores), means)

    def slow_auc(items):
        return reference.auc(*zip(*items, strict=True))

    aucs = reference.bootstrap(slow_auc, [*zip(scores, truth, strict=True)], images, 400, 1)
    assert_similar_interval(bootstrap.auc(scores, truth), aucs)


def test_differences_are_paired():
    scores, truth, images = scored_items(2, levels=None)
    bootstrap = Bootstrap(images)
    shifted = bootstrap.difference(scores + 0.25, scores)
    assert (shifted.value, shifted.low, shifted.high) == pytest.approx((0.25, 0.25, 0.25))
    assert bootstrap.auc_difference(np.exp(scores), scores, truth) == Estimate(0, 0, 0, len(scores))
    other = scored_items(3, levels=None)[0]
    difference = bootstrap.auc_difference(scores, other, truth)
    assert difference.value == pytest.approx(bootstrap.auc(scores, truth).value - bootstrap.auc(other, truth).value)
    weights = bootstrap.weights.astype(float)[:200]
    samples = [reference.auc(scores, truth, row) - reference.auc(other, truth, row) for row in weights]
    few = Bootstrap(images, samples=200).auc_difference(scores, other, truth)
    np.testing.assert_allclose([few.low, few.high], np.quantile(samples, [0.025, 0.975]))


def test_a_difference_ignores_items_that_lack_one_of_the_values():
    bootstrap = Bootstrap(range(5))
    first, second = np.array([5, NAN, 1, 2, 9]), np.array([1, 1, NAN, 1, 4.0])
    assert bootstrap.difference(first, second).value == pytest.approx((4 + 1 + 5) / 3)
    assert bootstrap.difference(first, second).n == 3
    truth = np.array([True, True, False, False, True])
    difference, both = bootstrap.auc_difference(first, second, truth), [0, 3, 4]
    assert difference.n == 3
    assert difference.value == auc(first[both], truth[both]) - auc(second[both], truth[both]) == 0.25


def test_samples_without_a_value_are_ignored():
    assert Bootstrap(range(4)).mean(np.array([3, NAN, NAN, NAN])) == Estimate(3, 3, 3, 1)


def coverage(images: np.ndarray, draw, repetitions: int = 400) -> float:
    """How often the interval of the mean contains the true mean, 0."""
    bootstrap = Bootstrap(images, samples=500)
    estimates = [bootstrap.mean(draw()) for _ in range(repetitions)]
    return float(np.mean([estimate.low <= 0 <= estimate.high for estimate in estimates]))


def test_intervals_contain_the_true_mean_about_95_times_in_100():
    rng = np.random.default_rng(0)
    assert 0.92 <= coverage(np.arange(80), lambda: rng.exponential(size=80) - 1) <= 0.97


def test_only_resampling_images_gives_correct_intervals_for_correlated_words():
    rng = np.random.default_rng(0)
    images = np.repeat(np.arange(80), 5)

    def correlated():
        return np.repeat(rng.normal(size=80), 5) + 0.5 * rng.normal(size=400)

    assert 0.92 <= coverage(images, correlated) <= 0.97
    assert coverage(np.arange(400), correlated) < 0.8
    values = correlated()
    by_image, by_word = (Bootstrap(items).mean(values) for items in (images, range(400)))
    assert by_image.high - by_image.low > 1.5 * (by_word.high - by_word.low)
    assert by_image.value == by_word.value


def test_estimates_without_values_are_nan_without_a_warning():
    for values, bootstrap in ((np.array([]), Bootstrap([])), (np.full(3, NAN), Bootstrap([1, 2, 2]))):
        truth = values > 0
        estimates = [bootstrap.mean(values), bootstrap.difference(values, values)]
        estimates += [bootstrap.auc(values, truth), bootstrap.auc_difference(values, values, truth)]
        assert [estimate.as_dict() for estimate in estimates] == [EMPTY.as_dict()] * 4
        assert math.isnan(rank_correlation(values, values))
    assert Bootstrap([]).weights.shape == (2000, 0)
    one_class = Bootstrap([1, 2]).auc(np.array([1, 2]), np.array([True, True]))
    assert one_class.as_dict() == EMPTY.as_dict() | {"n": 2}


def test_an_estimate_becomes_plain_numbers():
    values = Bootstrap([1, 2, 3]).mean(np.array([1, 2, 3], np.float32)).as_dict()
    assert values["value"] == 2
    assert [type(value) for value in values.values()] == [float, float, float, int]
    assert EMPTY.as_dict() == {"value": None, "low": None, "high": None, "n": 0}


@pytest.mark.parametrize(
    ("low", "high", "holds"), [(0.1, 0.3, True), (-0.3, -0.1, False), (-0.1, 0.3, None), (NAN, NAN, None)]
)
def test_a_claim_is_decided_only_if_its_interval_excludes_zero(low, high, holds):
    assert check("a is larger", Estimate(0.2, low, high, 9))["holds"] is holds


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_rank_correlation_equals_scipy_and_counted_ranks(levels):
    spearmanr = pytest.importorskip("scipy.stats").spearmanr
    first, second = np.random.default_rng(0).integers(levels, size=(2, 3, 4, 30))
    rho = rank_correlation(first, second)
    assert rho.shape == (3, 4)
    for row in np.ndindex(3, 4):
        x, y = first[row].tolist(), second[row].tolist()
        assert rho[row] == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
        assert rho[row] == pytest.approx(reference.rank_correlation(x, y), abs=1e-12)
    np.testing.assert_allclose(rank_correlation(first, second[0, 0])[0, 0], rho[0, 0])


def test_rank_correlation_is_nan_if_an_input_is_constant_or_has_nan():
    first = np.array([[1, 2, 3], [0.1, 0.1, 0.1], [1, NAN, 3]])
    np.testing.assert_array_equal(rank_correlation(first, np.array([1, 2, 9])), [1, NAN, NAN])
    assert math.isnan(rank_correlation(np.ones(1), np.ones(1)))


def test_random_numbers_of_an_image_depend_on_its_name_only():
    first, same, other = (random_for(name).random(5) for name in ("dog.jpg", "dog.jpg", "cat.jpg"))
    np.testing.assert_array_equal(first, same)
    assert (first != other).all()
