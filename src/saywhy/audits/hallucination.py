"""Hallucination: do the explanations of hallucinated words differ from those of true words?

The LRP paper (https://arxiv.org/abs/2001.01037, section V-C1, Table II). An object word is true if a reference caption
of its image has the word, in the singular or plural, a synonym, or a narrower word; otherwise it is made up. Each
statistic of a map is scored by its AUC: the probability that it is higher for a true word than for a made-up one. Every
occurrence of a word counts. The paper uses the most frequent object words; results for all object words are given too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhy.audits.audit import Audit, AuditResult, Plot, audits
from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.statistics import Bootstrap, check
from saywhy.explain.methods import METHODS
from saywhy.hallucination.labels import few_references, is_supported
from saywhy.viz import plots
from saywhy.viz.method_styles import METHOD_STYLES
from saywhy.viz.tables import (
    UP,
    Estimate,
    Table,
    bold,
    estimate_text,
    in_order,
    method_table,
    short_estimate,
    word_count,
)

FREQUENT = 20
STATISTICS = ("quantile 5 %", "quantile 50 %", "max", "mean")
PARTS = {"frequent_words": "The most frequent object words", "all_words": "All object words"}
PUBLISHED = Table(
    ("method", *STATISTICS),
    [
        ("LRP", bold("0.6022"), bold("0.5821"), "0.5168", "0.5798"),
        ("Grad-CAM", "0.5936", "0.5730", "0.5580", bold("0.5857")),
        ("Guided Grad-CAM", "0.4392", "0.5358", bold("0.5743"), "0.4319"),
        ("Guided backprop", "0.4621", "0.5168", "0.5575", "0.4648"),
        ("Attention", "0.5598", "0.5136", "0.5169", "0.5308"),
    ],
    caption=(
        "Not measured here: Table II of Sun et al. 2021, Ada-LSTM on Flickr30K, the 20 most frequent object words, "
        "1,027 true and 715 made up. There, 1 − β has an AUC of 0.6005."
    ),
)


@audits.register("hallucination")
class Hallucination(Audit):
    """Separate made-up words from true words by one statistic at a time."""

    title = "Hallucination: do explanations separate made-up words from true ones?"
    description = (
        "An object word is made up if no reference caption of the image has it, its singular or plural, a synonym or a "
        "narrower word. For a statistic of a word's map, the AUC is the probability that the statistic is higher for a "
        "true word than for a made-up one: 0.5 is chance, 1 is perfect separation, and below 0.5 made-up words have "
        "the higher values. The same is measured for statistics that do not come from a map: the gate's share of the "
        "image (1 − β if β is the share of the words, else β), the entropy of attention, the word's probability, and "
        "the image's share of the evidence."
    )
    published = PUBLISHED

    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """The AUC of every statistic."""
        words = object_word_statistics(context, evidence)
        if words.true.all() or not words.true.any():
            kind = "true" if words.true.all() else "made up"
            raise NotApplicable(f"all {len(words.true)} object words are {kind}: there are no two groups to compare")
        references = [words for captions in context.references.values() for words in captions]
        mentions = Counter(mention.lemma for words in references for mention in context.object_words.mentions(words))
        frequent = [lemma for lemma, _ in mentions.most_common(FREQUENT)]
        frequent_words = words.select(np.isin(words.lemmas, frequent))
        generated, made_up = Counter(words.lemmas.tolist()), Counter(words.lemmas[~words.true].tolist())
        return {
            "words": len(words.true),
            "made_up": int((~words.true).sum()),
            "references_per_image": float(np.mean([len(captions) for captions in context.references.values()])),
            "notes": few_references(context.references),
            "frequent_words": {"lemmas": frequent, **_aucs(frequent_words)},
            "all_words": _aucs(words),
            "by_word": [
                {"word": lemma, "generated": count, "made_up": made_up[lemma]}
                for lemma, count in generated.most_common(FREQUENT)
            ],
            "checks": _checks(frequent_words),
        }

    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""
        tables = []
        for key, title in PARTS.items():
            part = body[key]
            lemmas = f" ({', '.join(part['lemmas'])})" if part.get("lemmas") else ""
            caption = f"{title}{lemmas}: {part['words']:,} generated, {part['made_up']:,} of them made up."
            tables.append(method_table(part["statistics"], {name: (name, UP) for name in STATISTICS}, caption))
            rows = [
                (name, estimate_text(estimate), word_count([estimate]))
                for name, estimate in part["other_statistics"].items()
            ]
            tables.append(Table(("other statistics", "AUC ↑", "words"), rows))
        if rows := [(row["word"], f"{row['generated']:,}", f"{row['made_up']:,}") for row in _most_generated(body)]:
            tables.append(Table(("word", "generated", "made up"), rows, caption="The words generated most often."))
        return tables

    def summary(self, body: dict[str, Any]) -> Table:
        """The main numbers, for a terminal."""
        part = body["frequent_words"] if body["frequent_words"]["words"] else body["all_words"]
        head = (f"AUC, {part['words']:,} words, {part['made_up']:,} made up", *STATISTICS)
        rows = [
            (METHOD_STYLES[method].name, *map(short_estimate, estimates.values()))
            for method, estimates in part["statistics"].items()
        ]
        padding = [""] * (len(STATISTICS) - 1)
        rows += [(name, short_estimate(estimate), *padding) for name, estimate in part["other_statistics"].items()]
        return Table(head, rows)

    def plots(self, results: Sequence[AuditResult]) -> list[Plot]:
        """Plots that compare models."""
        alt = "AUC of separating true words from made-up words, by model"
        return [Plot("", alt, lambda: _draw_aucs(results))]

    def model_plots(self, body: dict[str, Any]) -> list[Plot]:
        """Plots of one model."""
        if not body.get("by_word"):
            return []
        return [Plot("words", "How often frequent words are made up", lambda: _draw_words(body))]


@dataclass(frozen=True)
class ObjectWordStatistics:
    """The object words of all captions.

    Attributes:
        images: the image of each word, N names.
        lemmas: the object that each word names, (N,).
        true: whether a reference supports it, (N,).
        other_statistics: by name, statistics that do not come from a map, (N,).
        statistics: of the maps of all methods, (N, M, 4).
    """

    images: list[str]
    lemmas: np.ndarray
    true: np.ndarray
    other_statistics: dict[str, np.ndarray]
    statistics: np.ndarray

    def select(self, selected: np.ndarray) -> ObjectWordStatistics:
        """The words where `selected` (N,) is true."""
        images = [name for name, keep in zip(self.images, selected, strict=True) if keep]
        others = {name: values[selected] for name, values in self.other_statistics.items()}
        return ObjectWordStatistics(
            images, self.lemmas[selected], self.true[selected], others, self.statistics[selected]
        )


def object_word_statistics(context: AuditContext, evidence: EvidenceSet) -> ObjectWordStatistics:
    """The object words of all captions; raises `NotApplicable` if there are none."""
    names = {image.name for image in evidence.images_with_objects()}
    captions = [(image, caption) for image, caption in evidence if image.name in names]
    images = [image.name for image, caption in captions for _ in caption.objects]
    lemmas = np.concatenate([caption.lemmas for _, caption in captions])
    true = is_supported(context.object_words, context.references, images, lemmas)
    others = {
        name: np.concatenate([statistic(caption) for _, caption in captions])
        for name, statistic in _other_statistics(context).items()
    }
    others = {name: values for name, values in others.items() if not np.isnan(values).all()}  # some models have no gate
    statistics = np.concatenate([map_statistics(evidence.load(image)) for image, _ in captions])
    return ObjectWordStatistics(images, lemmas, true, others, statistics)


def _other_statistics(context: AuditContext) -> dict[str, Callable[[ImageEvidence], np.ndarray]]:
    """Functions of a caption's object words that need no map."""
    admits_words = context.captioner.beta_admits == "words"

    def gate(caption: ImageEvidence) -> np.ndarray:
        beta = caption.beta[caption.objects]
        return 1 - beta if admits_words else beta

    return {
        "1 − β" if admits_words else "β": gate,
        "attention entropy": lambda caption: caption.attention_entropy[caption.objects],
        "probability": lambda caption: caption.probability[caption.objects],
        "image share": lambda caption: caption.image_share[caption.objects],
    }


def map_statistics(caption: ImageEvidence) -> np.ndarray:
    """The statistics of the maps of each object word, (J, M, 4)."""
    maps = np.stack(
        [caption.maps[method].reshape(len(caption.objects), -1) for method in METHODS], axis=1
    )  # (J, M, S²)
    low, median = np.quantile(maps, (0.05, 0.5), axis=-1)
    return np.stack([low, median, maps.max(axis=-1), maps.mean(axis=-1)], axis=-1)


def _aucs(words: ObjectWordStatistics) -> dict[str, Any]:
    bootstrap = Bootstrap(words.images)
    return {
        "words": len(words.true),
        "made_up": int((~words.true).sum()),
        "statistics": {
            method: {
                name: bootstrap.auc(words.statistics[:, m, s], words.true).as_dict()
                for s, name in enumerate(STATISTICS)
            }
            for m, method in enumerate(METHODS)
        },
        "other_statistics": {
            name: bootstrap.auc(values, words.true).as_dict() for name, values in words.other_statistics.items()
        },
    }


def _checks(words: ObjectWordStatistics) -> list[dict[str, Any]]:
    bootstrap, true = Bootstrap(words.images), words.true
    low = words.statistics[:, METHODS.index("lrp"), 0]
    constant = np.zeros(len(low))  # a statistic without information: AUC ½
    checks = [check("lrp's 5 % quantile is higher for true words", bootstrap.auc_difference(low, constant, true))]
    for name, values in words.other_statistics.items():
        if name.endswith("β"):
            checks.append(check(f"{name} is higher for true words", bootstrap.auc_difference(values, constant, true)))
            claim = f"lrp's 5 % quantile separates true from made-up words better than {name}"
            checks.append(check(claim, bootstrap.auc_difference(low, values, true)))
    return checks


def _most_generated(body: dict[str, Any]) -> list[dict[str, Any]]:
    return sorted(body.get("by_word") or (), key=lambda row: (-row["generated"], row["word"]))[:FREQUENT]


def _draw_aucs(results: Sequence[AuditResult]) -> Any:
    """One strip per model: one panel per statistic, and one for those without a map."""
    bodies = [result.body for result in results]
    methods = in_order({method for body in bodies for part in PARTS for method in body[part]["statistics"]})
    figure = plots.new_figure(plots.WIDTH, len(results) * (len(methods) * plots.ROW + 0.95) + 0.3)
    panels = []
    for body, strip in zip(bodies, plots.strips(figure, [result.title for result in results]), strict=True):
        left, right = strip.subfigures(1, 2, width_ratios=[2.7, 1.15])
        axes, others = left.subplots(1, 4, sharey=True), right.subplots()
        for panel, name in zip(axes, STATISTICS, strict=True):
            columns = [
                {method: estimates.get(name) for method, estimates in body[part]["statistics"].items()}
                for part in PARTS
            ]
            _draw_panel(panel, methods, *columns)
            plots.subtitle(panel, name)
        names = [*body["frequent_words"]["other_statistics"]]
        _draw_panel(others, names, *(body[part]["other_statistics"] for part in PARTS))
        plots.methods_on_y(axes[0], methods)
        plots.labels_on_y(others, names)
        plots.subtitle(others, "other statistics")
        panels += [*axes, others]
    plots.same_scale(panels)
    text = "AUC, 0.5 is chance; filled: the most frequent object words, hollow: all object words"
    figure.supxlabel(text, fontsize=8.5, color=plots.MUTED)
    return figure


def _draw_panel(
    panel: Any,
    rows: Sequence[str],
    frequent_words: Mapping[str, Estimate | None],
    all_words: Mapping[str, Estimate | None],
) -> None:
    for y, row in enumerate(rows):
        colour = METHOD_STYLES[row].colour if row in METHOD_STYLES else plots.INK
        plots.dot(panel, y - 0.16, frequent_words.get(row), colour)
        plots.dot(panel, y + 0.16, all_words.get(row), colour, filled=False)
    panel.axvline(0.5, color=plots.INK, linewidth=1, linestyle=(0, (3, 2)), zorder=0.9)
    panel.spines["left"].set_visible(False)
    panel.grid(axis="y", visible=False)


def _draw_words(body: dict[str, Any]) -> Any:
    rows = _most_generated(body)
    figure = plots.new_figure(6.0, len(rows) * 0.19 + 0.75)
    axes = figure.subplots()
    shares = [row["made_up"] / row["generated"] if row["generated"] else 0.0 for row in rows]
    axes.barh(range(len(rows)), shares, 0.7, color=plots.ACCENT)
    for y, (row, share) in enumerate(zip(rows, shares, strict=True)):
        text = f"{row['made_up']:,} of {row['generated']:,}"
        axes.annotate(text, (share, y), (4, 0), textcoords="offset points", va="center", fontsize=7.5)
    plots.labels_on_y(axes, [row["word"] for row in rows])
    axes.set_xlim(0, max([0.01, *shares]) * 1.18)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("share of occurrences that are made up")
    return figure
