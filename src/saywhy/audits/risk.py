"""Risk: is the predicted risk that an object word is made up accurate on images it was not fitted to?

The risk (`hallucination.risk_model`) is a logistic model of features of the word; `hallucination.fitting` fits it, on
one or several data sets, on another split than the one it is tested on. Its AUC is the probability that a made-up word
has a higher risk than a true one. It is calibrated if a share r of all words with risk r is made up; the expected
calibration error (ECE) is the mean distance from that, over ten bins, and the Brier score the mean squared distance of
the risk from 1 for made-up and 0 for true words. All three are compared with those of 1 − p, the plain probability.
Fitted on several data sets, the risk is also fitted without each of them: tested on the one that was left out, it shows
what a change of domain costs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from saywhy.audits.audit import Audit, Plot, audits
from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.risk_words import PRIMARY, REFERENCES_ONLY, ObjectWordFeatures, fit
from saywhy.audits.statistics import Bootstrap, check
from saywhy.hallucination.labels import few_references
from saywhy.hallucination.risk_model import WORD_FEATURES, Risk
from saywhy.metrics.classification import calibration
from saywhy.viz import plots
from saywhy.viz.tables import MISSING, UP, Table, bold_best, decimal, estimate_text, short_estimate, value_of

BINS = 10
RISK, PROBABILITY = "risk", "1 − p of the word"


@audits.register("risk")
class RiskAudit(Audit):
    """Test the model's risk, or fit one first."""

    title = "Risk: how accurately are made-up words predicted?"
    description = (
        "The risk is a logistic model that predicts, from features of an object word, whether the word is made up. It "
        "is fitted on one split and tested on another. The AUC is the probability that a made-up word has a higher "
        "risk than a true one (0.5 is chance, 1 is best); ECE is the expected calibration error, the mean distance "
        "between predicted and observed frequencies over ten bins of the risk (0 is best); the Brier score is the mean "
        "squared error of the risk (0 is best). Weights apply to features "
        "in units of their standard deviation; positive weights raise the risk. *AUC alone* is that of a single "
        "feature, in its better direction.\n\n"
        "A word is made up if neither a reference caption nor a box of its image supports it; without boxes, "
        "references alone decide. A risk that was fitted on several data sets is also fitted without each of them.\n\n"
        "Features: p is the probability of the word; *synonyms* are all words that a reference could use for the "
        "object; *entropy* is that of the next word; *prompted* is the log p of synonyms after short prompts, such as "
        '"a picture of a"; *mentions* is the share of sampled captions that mention the object; *unfamiliarity* tells '
        "how unlike the training photographs the image is; *object prior* is how often the object was made up "
        "in the data that the risk was fitted on. Of earlier risks: *low relevance* is the 5 % quantile of LRP over "
        "the features of the image, and *negative relevance* its negative share."
    )
    needs_evidence = False

    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """Test a risk on words that it was not fitted to."""
        risk = fit(context.fit_contexts) if context.fit_contexts else context.model.risk
        if risk is None:
            raise NotApplicable(
                f"model {context.model.name} has no risk.json, and the data has no other split to fit one on; "
                "give --fit SPLIT"
            )
        _check_independent(risk, context)
        words = ObjectWordFeatures.compute(context)
        if not words.images:
            raise NotApplicable(
                f"no object word in {len(context.data)} captions; give --object-words a table in the language of the "
                "captions"
            )
        made_up, predicted = words.made_up(context), risk(words.features, words.lemmas.tolist())
        return {
            "words": len(made_up),
            "made_up": int(made_up.sum()),
            "truth": PRIMARY if context.phrases else REFERENCES_ONLY,
            "notes": few_references(context.references),
            "fitted_on": {name: value for name, value in risk.about.items() if name != "cross_validated"},
            "cross_validated": risk.about.get("cross_validated"),
            **_scores(words, predicted, made_up),
            "other_truths": _other_truths(words, predicted, context),
            "without_a_data_set": _without_each(words, made_up, context),
            "calibration": [list(values) for values in calibration(predicted, made_up).bins],
            "weights": dict(zip(risk.features, risk.weights, strict=True)),
            "single_feature_auc": _single_feature_aucs(risk, words, made_up),
            "fitted_risk": risk.as_dict(),
            "checks": _checks(words, predicted, made_up),
        }

    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""
        fitted, weights, single = body["fitted_on"], body["weights"], body["single_feature_auc"]
        features = sorted(weights, key=lambda feature: (-abs(weights[feature] or 0), feature))
        cells = [estimate_text(single.get(feature)) for feature in features]
        cells = bold_best([value_of(single.get(feature)) for feature in features], cells, UP)
        signed = [decimal(weights[feature], 2, sign=True) for feature in features]
        bins = [(decimal(risk), decimal(share), f"{count:,}") for risk, share, count in body["calibration"]]
        return [
            Table(
                ("tested on", "risk", "words", "made up", "AUC ↑", "ECE ↓", "Brier ↓"),
                _score_rows(body),
                caption=f"Fitted on {fitted['images']:,} images of {_data_names(fitted)}.",
            ),
            Table(
                ("feature", "weight", "AUC alone ↑"),
                [*zip(features, signed, cells, strict=True)],
                caption="The features, by absolute weight.",
            ),
            Table(
                ("mean predicted", "share made up", "words"), bins, (), "Predicted and observed, by bin of the risk."
            ),
        ]

    def summary(self, body: dict[str, Any]) -> Table:
        """The main numbers, for a terminal."""
        head = ("", "AUC", "calibration error", "Brier", "words", "made up", "fitted on")
        parts = [(RISK, body, _data_names(body["fitted_on"])), (PROBABILITY, body["probability"], MISSING)]
        parts += [(RISK, part, f"without {part['left_out']}") for part in body["without_a_data_set"]]
        rows = [
            (name, short_estimate(part["auc"]), *_ece_and_brier(part, short_estimate), words, made_up, fitted)
            for name, part, fitted in parts
            for words, made_up in ((f"{body['words']:,}", f"{body['made_up']:,}"),)
        ]
        return Table(head, rows)

    def model_plots(self, body: dict[str, Any]) -> list[Plot]:
        """Plots of one model."""
        if not body.get("calibration"):
            return []
        alt = "Calibration of the risk, and AUC of each feature alone"
        return [Plot("calibration", alt, lambda: _draw_risk(body))]


def _scores(words: ObjectWordFeatures, predicted: np.ndarray, made_up: np.ndarray) -> dict[str, Any]:
    """AUC, ECE and Brier score of a risk (N,), those of 1 − p, and the difference of the AUCs."""
    bootstrap = Bootstrap(words.images)
    surprise = 1 - np.exp(words.features[:, WORD_FEATURES.index("log p")])
    risk, probability = (_accuracy(bootstrap, values, made_up) for values in (predicted, surprise))
    gain = bootstrap.auc_difference(predicted, surprise, made_up).as_dict()
    return {**risk, "probability": probability, "auc_over_probability": gain}


def _accuracy(bootstrap: Bootstrap, predicted: np.ndarray, made_up: np.ndarray) -> dict[str, Any]:
    bins = np.clip(predicted * BINS, 0, BINS - 1).astype(int)[:, None] == np.arange(BINS)  # (N, BINS)
    errors = np.where(bins, (predicted - made_up)[:, None], 0)
    counted = np.column_stack([errors, np.ones(len(errors))])
    ece = bootstrap.of_sums(counted, lambda sums: np.abs(sums[..., :-1]).sum(axis=-1) / np.maximum(sums[..., -1], 1))
    return {
        "auc": bootstrap.auc(predicted, made_up).as_dict(),
        "ece": ece.value,
        "ece_interval": ece.as_dict(),
        "brier": bootstrap.mean((predicted - made_up) ** 2).as_dict(),
    }


def _other_truths(words: ObjectWordFeatures, predicted: np.ndarray, context: AuditContext) -> list[dict[str, Any]]:
    """The same words by other rules of what is made up."""
    rows = []
    for rule, (covered, made_up) in words.made_up_by_other_rules(context).items():
        part = words.select(covered)
        counts = {"truth": rule, "words": len(part.images), "made_up": int(made_up[covered].sum())}
        rows.append({**counts, **_scores(part, predicted[covered], made_up[covered])})
    return rows


def _without_each(words: ObjectWordFeatures, made_up: np.ndarray, context: AuditContext) -> list[dict[str, Any]]:
    """The risk fitted without one of several data sets."""
    rows = []
    for left_out in context.fit_contexts if len(context.fit_contexts) > 1 else ():
        risk = fit([other for other in context.fit_contexts if other is not left_out])
        fitted = {name: value for name, value in risk.about.items() if name != "cross_validated"}
        scores = _scores(words, risk(words.features, words.lemmas.tolist()), made_up)
        rows.append({"left_out": left_out.data.name, "fitted_on": fitted, **scores})
    return rows


def _checks(words: ObjectWordFeatures, predicted: np.ndarray, made_up: np.ndarray) -> list[dict[str, Any]]:
    bootstrap, constant = Bootstrap(words.images), np.zeros(len(predicted))
    surprise = -words.features[:, WORD_FEATURES.index("log p")]
    return [
        check("the risk is higher for made-up words", bootstrap.auc_difference(predicted, constant, made_up)),
        check(
            "the risk separates made-up from true words better than the probability",
            bootstrap.auc_difference(predicted, surprise, made_up),
        ),
    ]


def _single_feature_aucs(risk: Risk, words: ObjectWordFeatures, made_up: np.ndarray) -> dict[str, Any]:
    """The AUC of each feature, in its better direction."""
    bootstrap = Bootstrap(words.images)
    inputs = np.column_stack([words.features, [risk.prior(lemma) for lemma in words.lemmas.tolist()]])
    aucs = {}
    for name, values in zip(risk.features, inputs.T, strict=True):
        estimate = bootstrap.auc(values, made_up)
        aucs[name] = (estimate if not estimate.value < 0.5 else bootstrap.auc(-values, made_up)).as_dict()
    return aucs


def _check_independent(risk: Risk, context: AuditContext) -> None:
    """Raise `NotApplicable` if the risk was fitted on the audited split, or with another table of object words."""
    data, split = context.data.name, context.data.images[0].split
    fitted = risk.about.get("data")
    if data in ([fitted] if isinstance(fitted, str) else fitted or ()) and risk.about.get("split") == split:
        raise NotApplicable(
            f"the risk of model {context.model.name} was fitted on {data} {split}; give another --split or --fit"
        )
    if risk.about.get("object_words") != context.object_words.key:
        raise NotApplicable(
            f"the risk of model {context.model.name} was fitted with another table of object words; give --fit"
        )


def _score_rows(body: dict[str, Any]) -> list[tuple[str, ...]]:
    """Rows of the table of scores; results of earlier versions have no 1 − p and no Brier score."""
    crossed = body["cross_validated"] or {}
    tested, rows = f"{body['data']} {body['split']}", [(RISK, body), (PROBABILITY, body.get("probability"))]
    rows += [(f"{RISK}, fitted without {part['left_out']}", part) for part in body.get("without_a_data_set", ())]
    counts = f"{body['words']:,}", f"{body['made_up']:,}"
    cells = [(tested, name, *counts, *_cells(part)) for name, part in rows if part]
    for part in body.get("other_truths", ()):
        label, counts = f"{tested}, truth by {part['truth']}", (f"{part['words']:,}", f"{part['made_up']:,}")
        cells += [
            (label, name, *counts, *_cells(scores))
            for name, scores in ((RISK, part), (PROBABILITY, part["probability"]))
        ]
    fitted = body["fitted_on"]
    scores = decimal(crossed.get("auc")), decimal(crossed.get("ece")), MISSING
    counts = f"{fitted['words']:,}", f"{fitted['made_up']:,}"
    return [*cells, (f"{_data_names(fitted)}, cross-validated", RISK, *counts, *scores)]


def _cells(part: dict[str, Any]) -> tuple[str, str, str]:
    return estimate_text(part["auc"]), *_ece_and_brier(part, estimate_text)


def _ece_and_brier(part: dict[str, Any], text: Any) -> tuple[str, str]:
    interval = part.get("ece_interval")
    return decimal(part["ece"]) if interval is None else text(interval), text(part.get("brier"))


def _data_names(fitted: dict[str, Any]) -> str:
    """ "coco and flickr8k dev"."""
    names = fitted.get("data") or ()
    joined = names if isinstance(names, str) else " and ".join(names)
    return " ".join(filter(None, (joined, fitted.get("split")))) or MISSING


def _draw_risk(body: dict[str, Any]) -> Any:
    figure = plots.new_figure(plots.WIDTH, max(3.9, len(body["single_feature_auc"]) * plots.ROW + 1.2))
    left, right = figure.subfigures(1, 2, width_ratios=[1, 1.25])
    curve, counts = left.subplots(2, 1, sharex=True, height_ratios=[3.2, 1])
    bins = [values for values in body["calibration"] if None not in values]
    curve.plot([0, 1], [0, 1], color=plots.MUTED, linewidth=1, linestyle=(0, (3, 2)))
    curve.annotate("dashed: perfect calibration", (0.97, 0.04), ha="right", color=plots.MUTED, fontsize=7.5)
    curve.plot([risk for risk, _, _ in bins], [share for _, share, _ in bins], "o-", color=plots.ACCENT, markersize=4.5)
    curve.set(xlim=(0, 1), ylim=(0, 1), ylabel="share made up")
    curve.set_title(f"Calibration, ECE {decimal(body['ece'])}")
    counts.bar([risk for risk, _, _ in bins], [count for _, _, count in bins], 0.05, color=plots.MUTED)
    counts.set(xlabel="predicted risk", ylabel="words")
    _draw_single_features(right.subplots(), body)
    return figure


def _draw_single_features(axes: Any, body: dict[str, Any]) -> None:
    single = body["single_feature_auc"]
    features = sorted(single, key=lambda feature: (-(value_of(single[feature]) or 0), feature))
    plots.dot(axes, 0, body["auc"], plots.ACCENT, size=6)
    for y, feature in enumerate(features, 1):
        plots.dot(axes, y, single[feature], plots.MUTED)
    plots.labels_on_y(axes, ["all together", *features])
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.axvline(0.5, color=plots.INK, linewidth=1, linestyle=(0, (3, 2)), zorder=0.9)
    axes.spines["left"].set_visible(False)
    axes.set_title("Features alone and together")
    axes.set_xlabel(f"AUC, 0.5 is chance ({body['words']:,} words, {body['made_up']:,} made up)")
