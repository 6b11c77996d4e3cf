"""AUC and calibration, compared with scikit-learn and with loops over pairs and bins."""

from __future__ import annotations

import math

import numpy as np
import pytest

from reference import audits as reference
from saywhy.metrics import classification
from saywhy.metrics.classification import auc, calibration

pytestmark = pytest.mark.filterwarnings("error")
NAN = math.nan


def scored_items(seed: int, count: int = 60, levels: int | None = 7) -> tuple[np.ndarray, np.ndarray]:
    """Scores with many ties, and labels that correlate with them."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=count) if levels is None else rng.integers(levels, size=count).astype(float)
    return scores, scores + rng.normal(scale=3, size=count) > scores.mean()


@pytest.mark.parametrize("levels", [None, 2, 7])
@pytest.mark.parametrize("seed", range(3))
def test_auc_equals_scikit_learn_and_loops_over_pairs(seed, levels):
    roc_auc_score = pytest.importorskip("sklearn.metrics").roc_auc_score
    scores, truth = scored_items(seed, levels=levels)
    weights = np.random.default_rng(seed).integers(4, size=(2, 3, len(scores)))
    values = auc(scores, truth, weights)
    assert values.shape == (2, 3)
    for row in np.ndindex(2, 3):
        assert values[row] == pytest.approx(roc_auc_score(truth, scores, sample_weight=weights[row]), abs=1e-12)
        assert values[row] == pytest.approx(reference.auc(scores, truth, weights[row]), abs=1e-12)
    assert auc(scores, truth) == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)


def test_auc_does_not_depend_on_the_size_of_blocks(monkeypatch):
    scores, truth = scored_items(0)
    weights = np.random.default_rng(0).integers(4, size=(50, len(scores)))
    expected = auc(scores, truth, weights)
    monkeypatch.setattr(classification, "_BLOCK", 3 * len(scores))
    np.testing.assert_array_equal(auc(scores, truth, weights), expected)


def test_auc_ignores_nan_and_accepts_infinite_scores():
    truth = np.array([True, False, True, False, True])
    scores = np.array([np.inf, -np.inf, -np.inf, 0, NAN])
    assert auc(scores, truth) == (1 + 1 + 0.5 + 0) / 4
    np.testing.assert_array_equal(auc(scores, truth, np.array([[1, 1, 1, 1, 9]])), [0.625])


def test_auc_is_nan_if_a_class_is_missing():
    assert math.isnan(auc(np.arange(3.0), np.ones(3, bool)))
    assert math.isnan(auc(np.array([1.0, NAN]), np.array([True, False])))
    weights = np.array([[1, 1, 1], [0, 1, 1]])
    np.testing.assert_array_equal(auc(np.arange(3.0), np.array([False, True, True]), weights), [1, NAN])


def test_auc_refuses_arrays_of_different_lengths():
    with pytest.raises(ValueError, match="truth"):
        auc(np.zeros(3), np.ones(2, bool))
    with pytest.raises(ValueError, match="weights"):
        auc(np.zeros(3), np.ones(3, bool), np.ones((2, 4)))


@pytest.mark.parametrize("bins", [1, 4, 10])
def test_calibration_equals_a_loop_over_bins(bins):
    rng = np.random.default_rng(0)
    predicted = np.concatenate([rng.random(200) ** 3, [0, 0.25, 0.5, 1]])
    truth = rng.random(204) < predicted
    curve = calibration(predicted, truth, bins)
    assert curve.ece == pytest.approx(reference.expected_calibration_error(predicted, truth, bins))
    counts = np.array([count for *_, count in curve.bins])
    assert counts.sum() == 204
    for column, values in ((0, predicted), (1, truth)):
        assert counts @ [row[column] for row in curve.bins] == pytest.approx(values.sum())


def test_true_probabilities_are_calibrated_and_overconfident_ones_are_not():
    rng = np.random.default_rng(0)
    p = rng.random(20_000)
    truth = rng.random(20_000) < p
    assert calibration(p, truth).ece < 0.015
    assert calibration(np.where(p > 0.5, 0.99, 0.01), truth).ece == pytest.approx(0.24, abs=0.02)


def test_empty_bins_are_omitted():
    assert calibration(np.array([0.0, 1.0, NAN]), np.array([False, True, True])).bins == ((0, 0, 1), (1, 1, 1))


@pytest.mark.parametrize("values", [np.array([]), np.full(3, NAN)])
def test_calibration_without_predictions_is_nan(values):
    curve = calibration(values, values > 0)
    assert curve.bins == ()
    assert math.isnan(curve.ece)
