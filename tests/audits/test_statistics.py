"""Numbers and their intervals against other packages, slow loops and simulations."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reference import audits as reference
from saywhy.audits import statistics
from saywhy.audits.statistics import NOTHING, Bootstrap, Estimate, auc, calibration, rank_correlation

pytestmark = pytest.mark.filterwarnings("error")
NAN = math.nan


def scored(seed: int, count: int = 60, levels: int | None = 7):
    """Scores with many ties, truths that lean with them, and the image of each item."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=count) if levels is None else rng.integers(levels, size=count).astype(float)
    truth = scores + rng.normal(scale=3, size=count) > scores.mean()
    return scores, truth, rng.integers(12, size=count)


def scattered(estimate: Estimate, draws: list[float]) -> None:
    """An interval is that of the draws of a slow bootstrap, as far as chance lets two of them agree."""
    wanted = [reference.quantile(draws, share) for share in (0.025, 0.975)]
    spread = wanted[1] - wanted[0]
    np.testing.assert_allclose([estimate.low, estimate.high], wanted, atol=0.1 * spread)


@pytest.mark.parametrize("levels", [None, 2, 7])
@pytest.mark.parametrize("seed", range(3))
def test_auc_is_that_of_scikit_learn_and_of_every_pair(seed, levels):
    roc_auc_score = pytest.importorskip("sklearn.metrics").roc_auc_score
    scores, truth, _ = scored(seed, levels=levels)
    weights = np.random.default_rng(seed).integers(4, size=(2, 3, len(scores)))
    found = auc(scores, truth, weights)
    assert found.shape == (2, 3)
    for row in np.ndindex(2, 3):
        assert found[row] == pytest.approx(roc_auc_score(truth, scores, sample_weight=weights[row]), abs=1e-12)
        assert found[row] == pytest.approx(reference.auc(scores, truth, weights[row]), abs=1e-12)
    assert auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)


def test_auc_of_blocks_of_rows_is_that_of_all_at_once(monkeypatch):
    scores, truth, _ = scored(0)
    weights = np.random.default_rng(0).integers(4, size=(50, len(scores)))
    whole = auc(scores, truth, weights)
    monkeypatch.setattr(statistics, "_BLOCK", 3 * len(scores))
    np.testing.assert_array_equal(auc(scores, truth, weights), whole)


def test_auc_leaves_out_nan_and_takes_infinities():
    truth = np.array([True, False, True, False, True])
    scores = np.array([np.inf, -np.inf, -np.inf, 0, NAN])
    assert auc(scores, truth) == (1 + 1 + 0.5 + 0) / 4
    np.testing.assert_array_equal(auc(scores, truth, np.array([[1, 1, 1, 1, 9]])), [0.625])


def test_auc_is_nan_where_a_class_is_missing():
    assert math.isnan(auc(np.arange(3.0), np.ones(3, bool)))
    assert math.isnan(auc(np.array([1.0, NAN]), np.array([True, False])))
    weights = np.array([[1, 1, 1], [0, 1, 1]])
    np.testing.assert_array_equal(auc(np.arange(3.0), np.array([False, True, True]), weights), [1, NAN])


def test_auc_refuses_arrays_that_do_not_fit():
    with pytest.raises(ValueError, match="truths"):
        auc(np.zeros(3), np.ones(2, bool))
    with pytest.raises(ValueError, match="weights"):
        auc(np.zeros(3), np.ones(3, bool), np.ones((2, 4)))


def test_weights_draw_as_many_images_as_there_are_with_all_their_items():
    images = ["b", "a", "b", "c", "a"]
    weights = Bootstrap(images, draws=3000).weights
    assert weights.shape == (3000, 5)
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights[:, 0], weights[:, 2])
    np.testing.assert_array_equal(weights[:, 1], weights[:, 4])
    np.testing.assert_array_equal(weights[:, [0, 1, 3]].sum(axis=1), 3)
    np.testing.assert_allclose(weights.mean(axis=0), 1, atol=0.06)
    assert (weights[:, 0] == 0).mean() == pytest.approx((2 / 3) ** 3, abs=0.03)


def test_draws_are_a_function_of_the_seed():
    one, same, other = (Bootstrap(range(9), draws=20, seed=seed).weights for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


def test_every_statistic_of_a_draw_is_that_of_the_items_it_drew():
    scores, truth, images = scored(5)
    scores[::7] = NAN
    boot = Bootstrap(images, draws=40)
    there = ~np.isnan(scores)
    means = [reference.mean(np.repeat(scores[there], row[there].astype(int)).tolist()) for row in boot.weights]
    areas = [reference.auc(scores[there], truth[there], row[there]) for row in boot.weights.astype(float)]
    for found, draws in ((boot.mean(scores), means), (boot.auc(scores, truth), areas)):
        wanted = [reference.quantile(draws, share) for share in (0.025, 0.975)]
        np.testing.assert_allclose([found.low, found.high], wanted, rtol=1e-9)
        assert found.n == there.sum()
    assert boot.mean(scores).value == pytest.approx(np.nanmean(scores))
    assert boot.auc(scores, truth).value == reference.auc(scores[there], truth[there])


def test_intervals_are_those_of_a_bootstrap_that_goes_draw_by_draw():
    scores, truth, images = scored(1)
    boot = Bootstrap(images, draws=4000)
    scattered(boot.mean(scores), reference.bootstrap(reference.mean, scores.tolist(), images, 4000, seed=1))

    def area(items):
        return reference.auc(*zip(*items, strict=True))

    scattered(boot.auc(scores, truth), reference.bootstrap(area, [*zip(scores, truth, strict=True)], images, 400, 1))


def test_differences_are_paired():
    scores, truth, images = scored(2, levels=None)
    boot = Bootstrap(images)
    moved = boot.difference(scores + 0.25, scores)
    assert (moved.value, moved.low, moved.high) == pytest.approx((0.25, 0.25, 0.25))
    still = boot.auc_difference(np.exp(scores), scores, truth)
    assert still == Estimate(0, 0, 0, len(scores))
    other = scored(3, levels=None)[0]
    apart = boot.auc_difference(scores, other, truth)
    assert apart.value == pytest.approx(boot.auc(scores, truth).value - boot.auc(other, truth).value)
    draws = [
        reference.auc(scores, truth, row) - reference.auc(other, truth, row) for row in boot.weights.astype(float)[:200]
    ]
    few = Bootstrap(images, draws=200).auc_difference(scores, other, truth)
    np.testing.assert_allclose([few.low, few.high], np.quantile(draws, [0.025, 0.975]))


def test_a_pair_without_one_value_is_left_out_of_both():
    boot = Bootstrap(range(5))
    one, other = np.array([5, NAN, 1, 2, 9]), np.array([1, 1, NAN, 1, 4.0])
    assert boot.difference(one, other).value == pytest.approx((4 + 1 + 5) / 3)
    assert boot.difference(one, other).n == 3
    truth = np.array([True, True, False, False, True])
    found = boot.auc_difference(one, other, truth)
    assert found.n == 3
    assert found.value == auc(one[[0, 3, 4]], truth[[0, 3, 4]]) - auc(other[[0, 3, 4]], truth[[0, 3, 4]]) == 0.25


def test_draws_that_miss_every_value_are_left_out():
    found = Bootstrap(range(4)).mean(np.array([3, NAN, NAN, NAN]))
    assert found == Estimate(3, 3, 3, 1)


def coverage(images: np.ndarray, draw, data_sets: int = 400) -> float:
    """How often the interval of the mean holds the true one, 0."""
    boot = Bootstrap(images, draws=500)
    found = [boot.mean(draw()) for _ in range(data_sets)]
    return float(np.mean([each.low <= 0 <= each.high for each in found]))


def test_the_interval_covers_the_true_mean_about_95_times_in_100():
    rng = np.random.default_rng(0)
    assert 0.92 <= coverage(np.arange(80), lambda: rng.exponential(size=80) - 1) <= 0.97


def test_words_of_one_image_are_not_independent_and_only_drawing_images_covers_them():
    rng = np.random.default_rng(0)
    images = np.repeat(np.arange(80), 5)

    def alike():
        return np.repeat(rng.normal(size=80), 5) + 0.5 * rng.normal(size=400)

    assert 0.92 <= coverage(images, alike) <= 0.97
    assert coverage(np.arange(400), alike) < 0.8
    values = alike()
    clustered, independent = (Bootstrap(each).mean(values) for each in (images, range(400)))
    assert clustered.high - clustered.low > 1.5 * (independent.high - independent.low)
    assert clustered.value == independent.value


def test_nothing_gives_nan_and_no_warning():
    none, unknown = np.array([]), np.full(3, NAN)
    for values, boot in ((none, Bootstrap([])), (unknown, Bootstrap([1, 2, 2]))):
        truth = values > 0
        found = [boot.mean(values), boot.difference(values, values)]
        found += [boot.auc(values, truth), boot.auc_difference(values, values, truth)]
        assert [each.as_dict() for each in found] == [NOTHING.as_dict()] * 4
        assert calibration(values, truth).bins == ()
        assert math.isnan(calibration(values, truth).ece)
        assert math.isnan(rank_correlation(values, values))
    assert Bootstrap([]).weights.shape == (2000, 0)
    assert Bootstrap([1, 2]).auc(np.array([1, 2]), np.array([True, True])).as_dict() == NOTHING.as_dict() | {"n": 2}


def test_an_estimate_is_plain_numbers():
    found = Bootstrap([1, 2, 3]).mean(np.array([1, 2, 3], np.float32)).as_dict()
    assert found["value"] == 2
    assert [type(each) for each in found.values()] == [float, float, float, int]
    assert NOTHING.as_dict() == {"value": None, "low": None, "high": None, "n": 0}


@pytest.mark.parametrize("bins", [1, 4, 10])
def test_calibration_is_that_of_a_loop_over_bins(bins):
    rng = np.random.default_rng(0)
    predicted = np.concatenate([rng.random(200) ** 3, [0, 0.25, 0.5, 1]])
    truth = rng.random(204) < predicted
    found = calibration(predicted, truth, bins)
    assert found.ece == pytest.approx(reference.expected_calibration_error(predicted, truth, bins))
    counts = np.array([count for *_, count in found.bins])
    assert counts.sum() == 204
    for column, values in ((0, predicted), (1, truth)):
        assert counts @ [each[column] for each in found.bins] == pytest.approx(values.sum())


def test_who_knows_how_likely_things_are_is_calibrated_and_who_boasts_is_not():
    rng = np.random.default_rng(0)
    likely = rng.random(20_000)
    truth = rng.random(20_000) < likely
    assert calibration(likely, truth).ece < 0.015
    assert calibration(np.where(likely > 0.5, 0.99, 0.01), truth).ece == pytest.approx(0.24, abs=0.02)


def test_empty_bins_are_left_out():
    assert calibration(np.array([0.0, 1.0, NAN]), np.array([False, True, True])).bins == ((0, 0, 1), (1, 1, 1))


@pytest.mark.parametrize("levels", [2, 5, 1000])
def test_rank_correlation_is_that_of_scipy_and_of_counted_ranks(levels):
    spearmanr = pytest.importorskip("scipy.stats").spearmanr
    one, other = np.random.default_rng(0).integers(levels, size=(2, 3, 4, 30))
    found = rank_correlation(one, other)
    assert found.shape == (3, 4)
    for row in np.ndindex(3, 4):
        x, y = one[row].tolist(), other[row].tolist()
        assert found[row] == pytest.approx(spearmanr(x, y).statistic, abs=1e-12)
        assert found[row] == pytest.approx(reference.rank_correlation(x, y), abs=1e-12)
    np.testing.assert_allclose(rank_correlation(one, other[0, 0])[0, 0], found[0, 0])


def test_rank_correlation_is_nan_where_one_is_constant_or_unknown():
    one = np.array([[1, 2, 3], [0.1, 0.1, 0.1], [1, NAN, 3]])
    np.testing.assert_array_equal(rank_correlation(one, np.array([1, 2, 9])), [1, NAN, NAN])
    assert math.isnan(rank_correlation(np.ones(1), np.ones(1)))
