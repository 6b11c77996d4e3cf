"""Fitting recovers a planted rule, is calibrated, and does not use the labels of the words it predicts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from saywhy.hallucination.fitting import PRIOR_BOUND, PRIOR_COUNT, TooFewWords, fit, object_priors
from saywhy.hallucination.risk_model import PRIOR_FEATURE, WORD_FEATURES, Risk
from saywhy.metrics.classification import auc, calibration

pytest.importorskip("sklearn", reason='fitting a risk needs pip install "saywhy[audit]"')


@dataclass
class Words:
    """Synthetic object words, five per image."""

    features: np.ndarray
    lemmas: np.ndarray
    made_up: np.ndarray
    images: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.images = self.images or [f"{n // 5}.jpg" for n in range(len(self.lemmas))]

    def fit(self) -> Risk:
        return fit(self.features, self.lemmas, self.made_up, self.images)


WEIGHTS = np.zeros(len(WORD_FEATURES))
WEIGHTS[0], WEIGHTS[4] = 1.5, -1.0
SCALE = np.where(np.arange(len(WORD_FEATURES)) == 4, 2, 1)


def words_with_a_rule(seed: int, count: int = 4000) -> Words:
    """Features 0 and 4 determine the risk σ(−1 + 1.5 f_0 − f_4 / 2), where f_4 varies twice as much as the others."""
    random = np.random.default_rng(seed)
    scaled = random.normal(size=(count, len(WORD_FEATURES)))
    lemmas = random.choice(["dog", "man", "car"], count)
    p = 1 / (1 + np.exp(-(-1 + scaled @ WEIGHTS)))
    return Words(3 + scaled * SCALE, lemmas, random.random(count) < p)


def words_with_priors(seed: int, shares: np.ndarray, occurrences: int = 6) -> Words:
    """Objects that are made up with these shares, and constant features."""
    random = np.random.default_rng(seed)
    objects = random.permutation(np.repeat(np.arange(len(shares)), occurrences))
    lemmas = np.array([f"object{n}" for n in objects])
    features = np.zeros((len(objects), len(WORD_FEATURES)))
    return Words(features, lemmas, random.random(len(objects)) < shares[objects])


def test_a_planted_rule_is_recovered_and_calibrated():
    risk = words_with_a_rule(0).fit()
    assert risk.features == (*WORD_FEATURES, PRIOR_FEATURE)
    np.testing.assert_allclose(risk.weights[:-1], WEIGHTS, atol=0.15)
    np.testing.assert_allclose(risk.mean[:-1], 3, atol=0.15)
    np.testing.assert_allclose(risk.scale[4], 2, atol=0.1)
    test = words_with_a_rule(1)
    predicted = risk(test.features, test.lemmas.tolist())
    assert calibration(predicted, test.made_up).ece < 0.03
    best = auc((test.features - 3) / SCALE @ WEIGHTS, test.made_up)
    assert best > 0.8
    assert auc(predicted, test.made_up) > best - 0.01
    assert risk.about["cross_validated"]["auc"] == pytest.approx(best, abs=0.02)
    assert risk.about["cross_validated"]["ece"] < 0.03


def test_the_risk_is_the_logistic_function_of_the_scaled_features():
    words = words_with_a_rule(0, 300)
    risk = words.fit()
    for n in range(5):
        inputs = [*words.features[n], risk.object_priors[words.lemmas[n]]]
        terms = zip(risk.weights, inputs, risk.mean, risk.scale, strict=True)
        odds = risk.bias + sum(w * (f - m) / s for w, f, m, s in terms)
        assert risk(words.features[n : n + 1], [words.lemmas[n]])[0] == pytest.approx(1 / (1 + np.exp(-odds)))


@pytest.mark.parametrize("seed", range(3))
def test_priors_of_pure_chance_predict_nothing_for_other_images(seed):
    words = words_with_priors(seed, np.full(300, 0.5))
    risk = words.fit()
    assert risk.about["cross_validated"]["auc"] == pytest.approx(0.5, abs=0.06)
    priors = np.array([risk.object_priors[lemma] for lemma in words.lemmas])
    assert auc(priors, words.made_up) > 0.65, "priors that include a word's own label would predict it"
    assert abs(risk.weights[-1]) < 0.25


def test_real_priors_are_learnt_within_their_bound():
    risk = words_with_priors(0, np.where(np.arange(100) % 2, 0.9, 0.1), occurrences=20).fit()
    assert risk.about["cross_validated"]["auc"] > 0.85
    low, high = risk(np.zeros((2, len(WORD_FEATURES))), ["object0", "object1"])
    assert 1 / (1 + np.exp(PRIOR_BOUND)) - 0.03 < low < 0.35
    assert 0.65 < high < 1 / (1 + np.exp(-PRIOR_BOUND)) + 0.03


def test_priors_are_smoothed_with_the_mean_share():
    lemmas, made_up = np.array(["cat"] * 3 + ["dog"] * 7), np.arange(10) < 4
    priors, default = object_priors(lemmas, made_up)
    share = (4 + 1) / (10 + 2)
    cat = (3 + PRIOR_COUNT * share) / (3 + PRIOR_COUNT)
    assert default == pytest.approx(np.log(share / (1 - share)))
    assert priors["cat"] == pytest.approx(np.log(cat / (1 - cat)))


def test_no_prior_is_further_from_the_default_than_the_bound():
    lemmas = np.array(["never"] * 5000 + ["always"] * 5000 + ["dog"] * 100)
    made_up = np.array([False] * 5000 + [True] * 5000 + [False, True] * 50)
    priors, default = object_priors(lemmas, made_up)
    assert priors["never"] == pytest.approx(default - PRIOR_BOUND)
    assert priors["always"] == pytest.approx(default + PRIOR_BOUND)
    assert abs(priors["dog"] - default) < 0.1


def test_a_safe_object_with_features_that_speak_against_it_has_a_high_risk():
    words = words_with_a_rule(0)
    words.lemmas = np.where(words.made_up, words.lemmas, "safe")  # never made up
    risk = words.fit()
    worst = 3 + 3 * np.sign(WEIGHTS) * SCALE
    assert risk.object_priors["safe"] == min(risk.object_priors.values())
    assert risk(worst[None], ["safe"])[0] > 0.5
    assert risk(np.full((1, len(WORD_FEATURES)), 3.0), ["safe"])[0] < 0.2


def test_features_that_only_raise_the_risk_never_lower_it():
    words = words_with_a_rule(0, 1000)
    column = WORD_FEATURES.index("unfamiliarity")
    words.features[:, column] = np.where(words.made_up, 0, 1) + np.random.default_rng(0).normal(size=1000)
    risk = words.fit()
    assert risk.weights[column] == 0
    words.features[:, column] *= -1
    assert words.fit().weights[column] > 0.5


def test_objects_that_did_not_occur_have_the_default_prior():
    words = words_with_a_rule(0, 200)
    risk = words.fit()
    unknown, dog = (risk(words.features[:1], [lemma]) for lemma in ("unknown", "dog"))
    expected = risk.weights[-1] * (risk.default_prior - risk.object_priors["dog"]) / risk.scale[-1]
    np.testing.assert_allclose(np.log(unknown / (1 - unknown)) - np.log(dog / (1 - dog)), expected)


@pytest.mark.parametrize(("made_up", "true"), [(19, 200), (200, 19), (0, 0)])
def test_too_few_words_are_refused(made_up, true):
    words = words_with_a_rule(0, made_up + true)
    words.made_up = np.arange(made_up + true) < made_up
    with pytest.raises(TooFewWords, match=f"{made_up} made-up and {true} true object words are too few"):
        words.fit()


def test_made_up_words_of_a_single_image_are_refused():
    words = words_with_a_rule(0, 40)
    words.made_up, words.images = np.arange(40) < 20, ["first.jpg"] * 20 + ["second.jpg"] * 20
    with pytest.raises(TooFewWords, match="in too few images"):
        words.fit()


def test_a_saved_risk_is_read_unchanged(tmp_path):
    words = words_with_a_rule(0, 300)
    risk = words.fit()
    risk.save(tmp_path)
    restored = Risk.read(tmp_path)
    assert restored == risk
    lemmas = words.lemmas.tolist()
    np.testing.assert_array_equal(restored(words.features, lemmas), risk(words.features, lemmas))
    assert (restored.about["words"], restored.about["made_up"]) == (300, words.made_up.sum())
