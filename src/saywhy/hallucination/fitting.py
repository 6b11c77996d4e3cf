"""Fit the risk that an object word is hallucinated: logistic regression of the word features, with object priors.

    risk = σ(b + Σ_i w_i clip((f_i − mean_i) / scale_i, ±LIMIT))

The last feature is the object prior: the log odds that the object was made up, where it occurred n times, shrunk to the
share of all N object words and bounded,

    prior = logit(share) + clip(logit((made up + m · share) / (n + m)) − logit(share), ±b)
    share = (made up + 1) / (N + 2)

with m = `PRIOR_COUNT` and b = `PRIOR_BOUND`. Its weight before scaling is at most `LARGEST_COEFFICIENT`, so that it
makes no word safe, or risky, by itself. While fitting, the prior of a word is computed from the images of other folds,
so that the word's own label is not one of its features. The strength of regularisation is chosen by cross-validation
over images. Where a feature can only speak for a made-up word (`ONLY_RAISES`), a negative weight would be chance: the
feature is then left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhy.errors import UserError
from saywhy.hallucination.risk_model import PRIOR_FEATURE, WORD_FEATURES, Risk, scaled
from saywhy.metrics.classification import auc, calibration

FOLDS = 5
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)
"""Values of C, the inverse strength of regularisation, to choose from."""
PRIOR_COUNT = 20
"""Occurrences with the mean share of made-up words that are added to those of each object."""
PRIOR_BOUND = 1.0
"""How far the prior of an object may be from that of all object words, in log odds."""
LARGEST_COEFFICIENT = 1.0
"""Of the object prior before scaling: log odds count at most as such."""
ONLY_RAISES = ("unfamiliarity", PRIOR_FEATURE)
"""Features whose weights are not negative."""
MIN_WORDS = 20
"""Made-up words, and true words, that fitting needs."""


class TooFewWords(ValueError):
    """There are not enough made-up words, or true words, to fit a risk."""


@dataclass(frozen=True)
class _Fit:
    """A fitted logistic regression.

    Attributes:
        mean: of each feature, (F + 1,); the object prior is the last.
        scale: the standard deviation of each feature, (F + 1,).
        weights: of the scaled features, (F + 1,).
        bias: b.
        object_priors: by object.
        default_prior: of objects that did not occur.
    """

    mean: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: float
    object_priors: dict[str, float]
    default_prior: float

    def __call__(self, features: np.ndarray, lemmas: np.ndarray) -> np.ndarray:
        """The risk of words with features (N, F), (N,)."""
        prior = _lookup(self.object_priors, self.default_prior, lemmas)
        inputs = scaled(np.column_stack([features, prior]), self.mean, self.scale)
        return 1 / (1 + np.exp(-(self.bias + inputs @ self.weights)))


def fit(
    features: np.ndarray,
    lemmas: np.ndarray,
    made_up: np.ndarray,
    images: Sequence[str],
    about: Mapping[str, Any] | None = None,
) -> Risk:
    """Fit a risk to N object words; raises `TooFewWords`.

    Args:
        features: the word features, (N, F), as `WORD_FEATURES`.
        lemmas: the object that each word names, (N,).
        made_up: whether each word is made up, (N,) bool.
        images: the image of each word, N names; words of one image are always in the same fold.
        about: where the words come from, to keep in the risk.
    """
    counts = int(made_up.sum()), int((~made_up).sum())
    if min(counts) < MIN_WORDS:
        raise TooFewWords(
            f"{counts[0]} made-up and {counts[1]} true object words are too few to fit a risk; it needs {MIN_WORDS} of "
            "each"
        )
    folds = np.unique(images, return_inverse=True)[1] % FOLDS
    C, scores = _choose_strength(features, lemmas, made_up, folds)
    best = _fit(features, lemmas, made_up, folds, C)
    return Risk(
        (*WORD_FEATURES, PRIOR_FEATURE),
        _rounded(best.mean),
        _rounded(best.scale),
        _rounded(best.weights),
        round(best.bias, 6),
        {lemma: round(best.object_priors[lemma], 4) for lemma in sorted(best.object_priors)},
        round(best.default_prior, 4),
        {
            **(about or {}),
            "images": len({*images}),
            "words": len(images),
            "made_up": counts[0],
            "C": C,
            "cross_validated": scores,
        },
    )


def _choose_strength(
    features: np.ndarray, lemmas: np.ndarray, made_up: np.ndarray, folds: np.ndarray
) -> tuple[float, dict[str, float]]:
    """The strength with the highest log-likelihood on images that it was not fitted to, and its scores there."""
    best, highest, best_risk = STRENGTHS[0], -np.inf, np.zeros(len(made_up))
    for C in STRENGTHS:
        risk = np.zeros(len(made_up))
        for fold in range(FOLDS):
            test = folds == fold
            inner_folds = np.unique(folds[~test], return_inverse=True)[1]
            fitted = _fit(features[~test], lemmas[~test], made_up[~test], inner_folds, C)
            risk[test] = fitted(features[test], lemmas[test])
        likelihood = np.log(np.where(made_up, risk, 1 - risk).clip(1e-12)).mean()
        if likelihood > highest:
            best, highest, best_risk = C, likelihood, risk
    scores = {
        "auc": round(float(auc(best_risk, made_up)), 4),
        "ece": round(calibration(best_risk, made_up).ece, 4),
    }
    return best, scores


def _fit(features: np.ndarray, lemmas: np.ndarray, made_up: np.ndarray, folds: np.ndarray, C: float) -> _Fit:
    """A logistic regression; the object prior of each word comes from the other folds."""
    if made_up.all() or not made_up.any():
        raise TooFewWords("made-up words, or true words, are in too few images to fit a risk")
    prior = np.zeros(len(made_up))
    for fold in np.unique(folds):
        test = folds == fold
        prior[test] = _lookup(*object_priors(lemmas[~test], made_up[~test]), lemmas[test])
    inputs = np.column_stack([features, prior])
    mean, scale = inputs.mean(axis=0), inputs.std(axis=0)
    scale = np.where(scale > 0, scale, 1)  # a constant feature has no information
    weights, bias = _regression(scaled(inputs, mean, scale), made_up, C, LARGEST_COEFFICIENT * float(scale[-1]))
    return _Fit(mean, scale, weights, bias, *object_priors(lemmas, made_up))


def _regression(
    inputs: np.ndarray, made_up: np.ndarray, C: float, largest_prior_weight: float
) -> tuple[np.ndarray, float]:
    """The weights (F + 1,) and the bias.

    Features that only raise the risk are left out where they would lower it. A larger weight of the prior is replaced
    by the largest one, with the other weights as they are without a prior.
    """
    names = (*WORD_FEATURES, PRIOR_FEATURE)
    used = np.ones(len(names), bool)
    weights, bias = _plain_regression(inputs, made_up, C)
    while against := [i for i, name in enumerate(names) if name in ONLY_RAISES and weights[i] < 0]:
        used[against] = False
        weights, bias = _plain_regression(inputs * used, made_up, C)
    if weights[-1] > largest_prior_weight:
        used[-1] = False
        weights, _ = _plain_regression(inputs * used, made_up, C)
        weights[-1] = largest_prior_weight
        bias = _bias(inputs @ weights, made_up)
    return weights, bias


def _plain_regression(inputs: np.ndarray, made_up: np.ndarray, C: float) -> tuple[np.ndarray, float]:
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise UserError("fitting a risk needs scikit-learn: pip install 'saywhy[audit]'") from None
    regression = LogisticRegression(C=C, max_iter=1000).fit(inputs, made_up)
    return regression.coef_[0], float(regression.intercept_[0])


def _bias(log_odds: np.ndarray, made_up: np.ndarray) -> float:
    """The number to add to log odds (N,) for a mean risk that is the share of made-up words, by bisection.

    >>> round(_bias(np.zeros(4), np.array([False, True, True, True])), 4)
    1.0986
    """
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 / (1 + np.exp(-(log_odds + middle)))).mean() < made_up.mean():
            low = middle
        else:
            high = middle
    return (low + high) / 2


def object_priors(lemmas: np.ndarray, made_up: np.ndarray) -> tuple[dict[str, float], float]:
    """The log odds that each object was made up, and the default for objects that did not occur.

    >>> priors, default = object_priors(np.array(["dog", "dog", "car"]), np.array([False, False, True]))
    >>> priors["dog"] < default < priors["car"]
    True
    """
    share = (made_up.sum() + 1) / (len(made_up) + 2)
    generated, wrong = Counter(lemmas.tolist()), Counter(lemmas[made_up].tolist())
    default = _log_odds(share)
    shares = {lemma: (wrong[lemma] + PRIOR_COUNT * share) / (count + PRIOR_COUNT) for lemma, count in generated.items()}
    priors = {lemma: _log_odds(value) for lemma, value in shares.items()}
    lowest, highest = default - PRIOR_BOUND, default + PRIOR_BOUND
    return {lemma: min(max(prior, lowest), highest) for lemma, prior in priors.items()}, default


def _log_odds(share: float) -> float:
    return float(np.log(share / (1 - share)))


def _lookup(priors: Mapping[str, float], default: float, lemmas: np.ndarray) -> np.ndarray:
    return np.array([priors.get(lemma, default) for lemma in lemmas.tolist()])


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)
