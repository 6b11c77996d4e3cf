"""The risk that an object word is made up: fitted on one split, tested on another.

A logistic regression (scikit-learn) of the facts in `explain.risk`. How strongly it is held back is chosen by
cross-validation over the images of the split it is fitted on. A thing's habit, how often it was made up, is counted
on other images than those it is a fact of. A risk r means something if, of all words with risk r,
a share r is made up; the expected calibration error is the mean distance from that, over ten bins.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from saywhy.audits.context import AuditContext, ImageBatch
from saywhy.audits.evidence import EvidenceSet, decoder_evidence
from saywhy.audits.result_cache import Arrays
from saywhy.audits.results import NotApplicable, audits, checked
from saywhy.audits.statistics import Bootstrap, auc, calibration
from saywhy.errors import UserError
from saywhy.hallucination.labels import few_references, is_supported
from saywhy.hallucination.risk import PRIOR_FEATURE, WORD_FEATURES, Risk

FOLDS = 5
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0)
PRIOR = 5
"""Times that a thing counts as met before it is: things met once or twice have no habit yet."""
FEWEST = 20
"""Words of either kind that there must be to fit to."""


@audits.register("risk")
def risk(bench: AuditContext, cases: EvidenceSet) -> dict[str, Any]:
    """Test the model's risk or, where it has none, or another is asked for, fit one first."""
    fitted = fit(bench.fitting) if bench.fitting is not None else bench.model.risk
    if fitted is None:
        raise NotApplicable(
            f"model {bench.model.name} has no risk.json, and the data no split it could be fitted on: "
            "give --fit SPLIT, another than the one that is audited"
        )
    _refuse_unfit(fitted, bench)
    cases.with_objects()
    images, lemmas, facts = of_cases(cases)
    made_up = ~is_supported(bench.objects, bench.references, images, lemmas)
    predicted = fitted(facts, lemmas.tolist())
    object_priors = [fitted.object_priors.get(lemma, fitted.usual) for lemma in lemmas.tolist()]
    known = np.column_stack([facts, object_priors])
    sure = Bootstrap(images)
    found = calibration(predicted, made_up)
    half = np.zeros(len(predicted))
    log_p = -facts[:, WORD_FEATURES.index("log p")]
    return {
        "words": len(images),
        "made_up": int(made_up.sum()),
        "notes": few_references(bench.references),
        "fitted_on": {name: value for name, value in fitted.about.items() if name != "cross_validated"},
        "cross_validated": fitted.about.get("cross_validated"),
        "auc": sure.auc(predicted, made_up).as_dict(),
        "ece": found.ece,
        "calibration": [list(each) for each in found.bins],
        "weights": dict(zip(fitted.facts, fitted.weights, strict=True)),
        "alone": {name: _alone(sure, values, made_up) for name, values in zip(fitted.facts, known.T, strict=True)},
        "fitted": fitted.as_dict(),
        "checks": [
            checked("the risk is higher for made-up words", sure.auc_difference(predicted, half, made_up)),
            checked("the risk tells better than the probability", sure.auc_difference(predicted, log_p, made_up)),
        ],
    }


def _refuse_unfit(fitted: Risk, bench: AuditContext) -> None:
    """A `NotApplicable` where the risk was fitted on the very split that is audited, or with another table of words."""
    data, split = bench.data.name, bench.data.images[0].split
    if (fitted.about.get("data"), fitted.about.get("split")) == (data, split):
        raise NotApplicable(
            f"the risk of model {bench.model.name} was fitted on {data} {split}: give another --split or --fit"
        )
    if fitted.about.get("objects") != bench.objects.key:
        raise NotApplicable(
            f"the risk of model {bench.model.name} was fitted with another table of object words: give --fit"
        )


def _alone(sure: Bootstrap, values: np.ndarray, made_up: np.ndarray) -> dict[str, Any]:
    """AUC of one fact, in its better direction."""
    found = sure.auc(values, made_up)
    return (found if not found.value < 0.5 else sure.auc(-values, made_up)).as_dict()


def of_cases(cases: EvidenceSet) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Of all object words: whose they are, what they name, and their facts (N, F)."""
    found = [(image.name, case) for image, case in cases if len(case.objects)]
    images = [name for name, case in found for _ in case.objects]
    lemmas = [case.lemmas for _, case in found]
    facts = [case.facts for _, case in found]
    return (
        images,
        np.concatenate([np.zeros(0, str), *lemmas]),
        np.concatenate([np.zeros((0, len(WORD_FEATURES))), *facts]),
    )


def fit(bench: AuditContext) -> Risk:
    """Fit a risk to all object words of a bench's captions."""
    images, lemmas, facts = _told(bench)
    made_up = ~is_supported(bench.objects, bench.references, images, lemmas) if images else np.zeros(0, bool)
    split = bench.data.images[0].split
    if min(made_up.sum(), (~made_up).sum()) < FEWEST:
        raise NotApplicable(
            f"{bench.data.name} {split}: {int(made_up.sum())} made-up and {int((~made_up).sum())} true object words "
            f"are too few to fit a risk to; it takes {FEWEST} of each"
        )
    folds = np.unique(images, return_inverse=True)[1] % FOLDS
    best, measured = _chosen(facts, lemmas, made_up, folds)
    mean, scale, weights, bias, object_priors = _logistic(facts, lemmas, made_up, folds, best)
    about = {
        "data": bench.data.name,
        "split": split,
        "images": len({*images}),
        "words": len(images),
        "made_up": int(made_up.sum()),
        "C": best,
        "objects": bench.objects.key,
        "cross_validated": measured,
    }
    usual = object_priors.pop("")
    odds = {lemma: round(object_priors[lemma], 4) for lemma in sorted(object_priors)}
    known = (*WORD_FEATURES, PRIOR_FEATURE)
    return Risk(known, _rounded(mean), _rounded(scale), _rounded(weights), round(bias, 6), odds, round(usual, 4), about)


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(float(each), 6) for each in values)


def _told(bench: AuditContext) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Whose object words, what they name and their facts, without a look at pixels."""

    def compute(seen: ImageBatch) -> Iterator[Arrays]:
        for heard in decoder_evidence(bench, seen, ("lrp",)):
            yield {"lemmas": heard.named, "facts": heard.facts}

    kept = bench.kept("facts", facts=WORD_FEATURES)
    names, lemmas, facts = [], [np.zeros(0, str)], [np.zeros((0, len(WORD_FEATURES)))]
    for image in bench.through(kept, compute, "reading facts"):
        told = kept.load(bench.name_of(image))
        names += [image.name] * len(told["lemmas"])
        lemmas.append(told["lemmas"])
        facts.append(told["facts"])
    return names, np.concatenate(lemmas), np.concatenate(facts)


def _chosen(
    facts: np.ndarray, lemmas: np.ndarray, made_up: np.ndarray, folds: np.ndarray
) -> tuple[float, dict[str, float]]:
    """The strength with the best log-likelihood on images it was not fitted to, and how well it does on them."""
    best, likeliest, found = STRENGTHS[0], -np.inf, np.zeros(len(made_up))
    for C in STRENGTHS:
        predicted = np.zeros(len(made_up))
        for fold in range(FOLDS):
            out = folds == fold
            within = np.unique(folds[~out], return_inverse=True)[1]
            mean, scale, weights, bias, object_priors = _logistic(facts[~out], lemmas[~out], made_up[~out], within, C)
            known = (np.column_stack([facts[out], _of(object_priors, lemmas[out])]) - mean) / scale
            predicted[out] = 1 / (1 + np.exp(-(bias + known @ weights)))
        likelihood = np.log(np.where(made_up, predicted, 1 - predicted).clip(1e-12)).mean()
        if likelihood > likeliest:
            best, likeliest, found = C, likelihood, predicted
    return best, {"auc": round(float(auc(found, made_up)), 4), "ece": round(calibration(found, made_up).ece, 4)}


def _logistic(
    facts: np.ndarray, lemmas: np.ndarray, made_up: np.ndarray, folds: np.ndarray, C: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, dict[str, float]]:
    """Means, scales, weights and bias, and the object_priors of things; those it learns from are of other folds."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise UserError("fitting a risk needs scikit-learn: pip install 'saywhy[audit]'") from None
    if made_up.all() or not made_up.any():
        raise NotApplicable("made-up words, or true ones, stand in too few images to fit a risk to")
    habit = np.zeros(len(made_up))
    for fold in np.unique(folds):
        here = folds == fold
        habit[here] = _of(_habits(lemmas[~here], made_up[~here]), lemmas[here])
    known = np.column_stack([facts, habit])
    mean, scale = known.mean(axis=0), known.std(axis=0)
    scale = np.where(scale > 0, scale, 1)  # a fact that is always the same says nothing
    found = LogisticRegression(C=C, max_iter=1000).fit((known - mean) / scale, made_up)
    return mean, scale, found.coef_[0], float(found.intercept_[0]), _habits(lemmas, made_up)


def _habits(lemmas: np.ndarray, made_up: np.ndarray) -> dict[str, float]:
    """Log odds of having been made up by thing, as if each had been met `PRIOR` times more; under "", of any thing."""
    usual = (made_up.sum() + 1) / (len(made_up) + 2)
    said, count = Counter(lemmas.tolist()), Counter(lemmas[made_up].tolist())
    shares = {lemma: (count[lemma] + PRIOR * usual) / (n + PRIOR) for lemma, n in said.items()} | {"": usual}
    return {lemma: float(np.log(share / (1 - share))) for lemma, share in shares.items()}


def _of(object_priors: dict[str, float], lemmas: np.ndarray) -> np.ndarray:
    return np.array([object_priors.get(lemma, object_priors[""]) for lemma in lemmas.tolist()])
