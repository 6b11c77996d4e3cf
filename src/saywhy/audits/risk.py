"""Risk: is the predicted risk that an object word is made up accurate on images it was not fitted to?

The risk (`hallucination.risk_model`) is a logistic model of features of the word; `hallucination.fitting` fits it, on
another split than the one it is tested on. Its AUC is the probability that a made-up word has a higher risk than a true
one. It is calibrated if a share r of all words with risk r is made up; the expected calibration error (ECE) is the mean
distance from that, over ten bins.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from saywhy.audits.audit import Audit, Plot, audits
from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.audits.evidence import EvidenceSet, decoder_evidence
from saywhy.audits.statistics import Bootstrap, check
from saywhy.cache import Arrays
from saywhy.data.datasets import CaptionedImage
from saywhy.hallucination import fitting
from saywhy.hallucination.labels import few_references, is_supported
from saywhy.hallucination.risk_model import WORD_FEATURES, ObjectVocabulary, Risk, word_features
from saywhy.inference.batches import ImageBatch
from saywhy.metrics.classification import calibration
from saywhy.viz import plots
from saywhy.viz.tables import MISSING, UP, Table, bold_best, decimal, estimate_text, short_estimate, value_of


@audits.register("risk")
class RiskAudit(Audit):
    """Test the model's risk, or fit one first."""

    title = "Risk: how accurately are made-up words predicted?"
    description = (
        "The risk is a logistic model that predicts, from features of an object word, whether the word is made up. It "
        "is fitted on one split and tested on another. The AUC is the probability that a made-up word has a higher "
        "risk than a true one (0.5 is chance, 1 is best); ECE is the expected calibration error, the mean distance "
        "between predicted and observed frequencies over ten bins of the risk (0 is best). Weights apply to features "
        "in units of their standard deviation; positive weights raise the risk. *AUC alone* is that of a single "
        "feature, in its better direction.\n\n"
        "Features: p is the probability of the word; *synonyms* are all words that a reference could use for the "
        "object; *entropy* is that of the next word; *low relevance* is the 5 % quantile of LRP over the features of "
        "the image, and *negative relevance* its negative share; *object prior* is how often the object was made up "
        "in the data that the risk was fitted on."
    )

    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """Test a risk on words that it was not fitted to."""
        risk = fit(context.fit_context) if context.fit_context is not None else context.model.risk
        if risk is None:
            raise NotApplicable(
                f"model {context.model.name} has no risk.json, and the data has no other split to fit one on; "
                "give --fit SPLIT"
            )
        _check_independent(risk, context)
        evidence.images_with_objects()
        words = ObjectWordFeatures.compute(context)
        made_up = words.made_up(context)
        predicted = risk(words.features, words.lemmas.tolist())
        inputs = np.column_stack([words.features, [risk.prior(lemma) for lemma in words.lemmas.tolist()]])
        bootstrap, curve = Bootstrap(words.images), calibration(predicted, made_up)
        constant, surprise = np.zeros(len(predicted)), -words.features[:, WORD_FEATURES.index("log p")]
        single = {
            name: _single_feature_auc(bootstrap, values, made_up)
            for name, values in zip(risk.features, inputs.T, strict=True)
        }
        return {
            "words": len(made_up),
            "made_up": int(made_up.sum()),
            "notes": few_references(context.references),
            "fitted_on": {name: value for name, value in risk.about.items() if name != "cross_validated"},
            "cross_validated": risk.about.get("cross_validated"),
            "auc": bootstrap.auc(predicted, made_up).as_dict(),
            "ece": curve.ece,
            "calibration": [list(values) for values in curve.bins],
            "weights": dict(zip(risk.features, risk.weights, strict=True)),
            "single_feature_auc": single,
            "fitted_risk": risk.as_dict(),
            "checks": [
                check("the risk is higher for made-up words", bootstrap.auc_difference(predicted, constant, made_up)),
                check(
                    "the risk separates made-up from true words better than the probability",
                    bootstrap.auc_difference(predicted, surprise, made_up),
                ),
            ],
        }

    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""
        fitted, crossed = body["fitted_on"], body["cross_validated"] or {}
        tested = (body["split"], estimate_text(body["auc"]), decimal(body["ece"]))
        validated = (f"{fitted['split']}, cross-validated", decimal(crossed.get("auc")), decimal(crossed.get("ece")))
        rows = [
            (name, f"{part['words']:,}", f"{part['made_up']:,}", auc, ece)
            for part, (name, auc, ece) in ((body, tested), (fitted, validated))
        ]
        caption = f"Fitted on {fitted['images']:,} images of {fitted['split']}."
        weights, single = body["weights"], body["single_feature_auc"]
        features = sorted(weights, key=lambda feature: (-abs(weights[feature] or 0), feature))
        cells = [estimate_text(single.get(feature)) for feature in features]
        cells = bold_best([value_of(single.get(feature)) for feature in features], cells, UP)
        signed = [decimal(weights[feature], 2, sign=True) for feature in features]
        bins = [(decimal(risk), decimal(share), f"{count:,}") for risk, share, count in body["calibration"]]
        return [
            Table(("split", "words", "made up", "AUC ↑", "ECE ↓"), rows, caption=caption),
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
        fitted = body["fitted_on"]
        row = (
            "risk",
            short_estimate(body["auc"]),
            f"{body['ece']:.3f}",
            f"{body['words']:,}",
            f"{body['made_up']:,}",
            " ".join(str(fitted[name]) for name in ("data", "split") if name in fitted) or MISSING,
        )
        return Table(("", "AUC", "calibration error", "words", "made up", "fitted on"), [row])

    def model_plots(self, body: dict[str, Any]) -> list[Plot]:
        """Plots of one model."""
        if not body.get("calibration"):
            return []
        alt = "Calibration of the risk, and AUC of each feature alone"
        return [Plot("calibration", alt, lambda: _draw_risk(body))]


class ObjectWordFeatures(NamedTuple):
    """The object words of all captions.

    Attributes:
        images: the image of each word, N names.
        lemmas: the object that each word names, (N,).
        features: the word features, (N, F).
    """

    images: list[str]
    lemmas: np.ndarray
    features: np.ndarray

    @classmethod
    def compute(cls, context: AuditContext) -> ObjectWordFeatures:
        """The object words of a context's images, whose captions are explained down to the features only."""
        cache = context.stage_cache("word-features", features=WORD_FEATURES)
        images = context.compute_missing(cache, partial(_word_features, context), "computing word features")
        names, lemmas, features = [], [np.zeros(0, str)], [np.zeros((0, len(WORD_FEATURES)))]
        for image in images:
            arrays = cache.load(context.image_key(image))
            names += [image.name] * len(arrays["lemmas"])
            lemmas.append(arrays["lemmas"])
            features.append(arrays["features"])
        return cls(names, np.concatenate(lemmas), np.concatenate(features))

    def made_up(self, context: AuditContext) -> np.ndarray:
        """Whether no reference supports each word, (N,) bool."""
        return ~is_supported(context.object_words, context.references, self.images, self.lemmas)


def _word_features(context: AuditContext, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
    """The object words of each image of a batch."""
    objects = ObjectVocabulary(context.model.vocabulary, context.object_words)
    evidence = decoder_evidence(context, batch, ("lrp",))
    lemmas = [objects.lemmas(words) for words in evidence.captions]
    features = word_features(context.captioner, evidence.attributions, evidence.targets, lemmas, objects)
    for row, positions in enumerate(evidence.objects):
        yield {"lemmas": evidence.lemmas[row], "features": features[row][positions]}


def fit(context: AuditContext) -> Risk:
    """Fit a risk to all object words of a context's captions."""
    words = ObjectWordFeatures.compute(context)
    data, split = context.data.name, context.data.images[0].split
    about = {"data": data, "split": split, "object_words": context.object_words.key}
    try:
        return fitting.fit(words.features, words.lemmas, words.made_up(context), words.images, about)
    except fitting.TooFewWords as error:
        raise NotApplicable(f"{data} {split}: {error}") from None


def _check_independent(risk: Risk, context: AuditContext) -> None:
    """Raise `NotApplicable` if the risk was fitted on the audited split, or with another table of object words."""
    data, split = context.data.name, context.data.images[0].split
    if (risk.about.get("data"), risk.about.get("split")) == (data, split):
        raise NotApplicable(
            f"the risk of model {context.model.name} was fitted on {data} {split}; give another --split or --fit"
        )
    if risk.about.get("object_words") != context.object_words.key:
        raise NotApplicable(
            f"the risk of model {context.model.name} was fitted with another table of object words; give --fit"
        )


def _single_feature_auc(bootstrap: Bootstrap, values: np.ndarray, made_up: np.ndarray) -> dict[str, Any]:
    """The AUC of one feature, in its better direction."""
    estimate = bootstrap.auc(values, made_up)
    return (estimate if not estimate.value < 0.5 else bootstrap.auc(-values, made_up)).as_dict()


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
