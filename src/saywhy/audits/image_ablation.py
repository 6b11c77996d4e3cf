"""Image ablation: if the patches that a method marks as relevant are masked, is the word still generated?

The LRP paper (https://arxiv.org/abs/2001.01037, section V-B1). For every object word of a caption, the 20 patches of
8 × 8 pixels with the highest sums of a method's map are masked with the mean colour, and the image is captioned again.
The word is no longer generated if the new caption does not name its object ("dogs" names a dog). Also measured: by how
much the word's probability drops at its position, after the same words.

Deletion and insertion curves (Petsiuk et al. 2018, https://arxiv.org/abs/1806.07421) vary the number of patches, for
one object word per image, chosen at random: patches are masked in the order of relevance, or uncovered in that order in
an image that is fully masked. Areas are under the curve of the probability, over shares of patches from 0 to 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from saywhy.audits.audit import Audit, AuditResult, Plot, audits
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.patches import PATCH, mask_patches, patch_sums, select_highest
from saywhy.audits.statistics import Bootstrap, check, means_by_name, random_for
from saywhy.cache import Arrays
from saywhy.data.datasets import CaptionedImage
from saywhy.encoders.base import Features
from saywhy.explain.methods import METHODS
from saywhy.explain.occlusion import MEAN
from saywhy.inference.batches import ImageBatch
from saywhy.viz import plots
from saywhy.viz.method_styles import METHOD_STYLES
from saywhy.viz.tables import DOWN, UP, Table, decimal, in_order, method_table, short_estimate, value_of

PATCHES = 20
RANKINGS = (*METHODS, "random")
FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
INNER_FRACTIONS = FRACTIONS[1:-1]
COMPARISONS = (("lrp", "random"), ("lrp", "attention"), ("guided-gradcam", "random"), ("attention", "random"))
CURVES = ("deletion", "insertion")


@audits.register("image-ablation")
class ImageAblation(Audit):
    """Mask relevant patches and caption again."""

    title = "Image ablation: does a word disappear when its evidence is masked?"
    description = (
        "For each object word of the model's own caption, the patches of the image with the highest relevance are "
        "masked with ImageNet's mean colour, and the image is captioned again. *No longer generated* is the share of "
        "words whose object the new caption does not name; *mean drop of p* is the word's probability before minus "
        "after masking, at its position and after the same words; *dropped* is the share of words whose probability "
        "decreased. Higher is better in all three. *Random* masks as many patches at random. Twenty patches are a "
        "smaller share of a larger input, so models with different input sizes are not comparable.\n\n"
        "The curves show the probability of one object word per image while patches are masked in the order of "
        "relevance (deletion: a small area is better), or uncovered in that order in a fully masked image (insertion: "
        "a large area is better)."
    )

    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """Mask patches by every ranking, and caption again."""
        cache = context.stage_cache(
            "image-ablation", patches=PATCHES, patch_size=PATCH, mean=MEAN, fractions=FRACTIONS, rankings=RANKINGS
        )
        compute = _Ablation(context, evidence)
        images = context.compute_missing(cache, compute, "masking patches", evidence.images_with_objects())
        arrays = [cache.load(context.image_key(image)) for image in images]
        return {
            "patches": PATCHES,
            "patch_size": PATCH,
            **_word_results(images, arrays),
            "curves": _curve_results(images, arrays),
        }

    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""
        side = body["patch_size"]
        columns = {
            "no_longer_generated": ("no longer generated", UP),
            "probability_drop": ("mean drop of p", UP),
            "share_dropped": ("dropped", UP),
        }
        caption = f"{body['words']:,} object words; {body['patches']} patches of {side} × {side} pixels masked."
        tables = [method_table(body["methods"], columns, caption)]
        if curves := body.get("curves"):
            areas = {
                method: {name: curves[name].get(method, {}).get("area") for name in CURVES}
                for method in {**curves["deletion"], **curves["insertion"]}
            }
            caption = f"Areas under the curves of {curves['words']:,} object words, one per image."
            tables.append(
                method_table(areas, {"deletion": ("deletion", DOWN), "insertion": ("insertion", UP)}, caption)
            )
        return tables

    def summary(self, body: dict[str, Any]) -> Table:
        """The main numbers, for a terminal."""
        head = (f"{body['words']:,} words", "no longer generated", "drop of p", "deletion area ↓", "insertion area ↑")
        rows = []
        for method, scores in body["methods"].items():
            areas = [body["curves"][name][method]["area"] for name in CURVES]
            estimates = (scores["no_longer_generated"], scores["probability_drop"], *areas)
            rows.append((METHOD_STYLES[method].name, *map(short_estimate, estimates)))
        return Table(head, rows)

    def plots(self, results: Sequence[AuditResult]) -> list[Plot]:
        """Plots that compare models."""
        alt = "Share of words no longer generated when the most relevant patches are masked, by model"
        return [Plot("", alt, lambda: _draw_no_longer_generated(results))]

    def model_plots(self, body: dict[str, Any]) -> list[Plot]:
        """Plots of one model."""
        return (
            [Plot("curves", "Deletion and insertion curves", lambda: _draw_curves(body))] if body.get("curves") else []
        )


class _Target(NamedTuple):
    """An object word whose probability is measured: the row of its image in a batch, and its index j."""

    row: int
    j: int


@dataclass(frozen=True)
class _Ablation:
    """Mask patches of the images of a batch, and caption them again."""

    context: AuditContext
    evidence: EvidenceSet

    def __call__(self, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
        captions = [self.evidence.load(image) for image in images]
        relevance = [patch_relevance(image, caption) for image, caption in zip(images, captions, strict=True)]
        missing, after = self._without_highest(batch, captions, relevance)
        curves = self._curves(batch, images, captions, relevance)
        for row, caption in enumerate(captions):
            yield {
                "before": caption.probability[caption.objects],
                "no_longer_generated": missing[row],
                "after": after[row],
                **{name: values[row] for name, values in curves.items()},
            }

    def _without_highest(
        self, batch: ImageBatch, captions: Sequence[ImageEvidence], relevance: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Per image, word and ranking: whether the word is no longer generated, and its probability; (J, M) each."""
        selected = [
            select_highest(values, PATCHES, values[:, -1:]).reshape(-1, values.shape[-1]) for values in relevance
        ]
        targets = [
            _Target(row, j)
            for row, caption in enumerate(captions)
            for j in range(len(caption.objects))
            for _ in RANKINGS
        ]
        features = self._encode(batch, targets, np.concatenate(selected))
        after = self._probabilities(features, captions, targets)
        mentions = self.context.object_words.mentions
        named = [{mention.lemma for mention in mentions(words)} for words in self.context.captions(features)]
        missing = np.array(
            [captions[row].lemmas[j] not in lemmas for (row, j), lemmas in zip(targets, named, strict=True)]
        )
        ends = np.cumsum([len(rows) for rows in selected])[:-1]
        by_image = [[part.reshape(-1, len(RANKINGS)) for part in np.split(array, ends)] for array in (missing, after)]
        return by_image[0], by_image[1]

    def _curves(
        self,
        batch: ImageBatch,
        images: Sequence[CaptionedImage],
        captions: Sequence[ImageEvidence],
        relevance: Sequence[np.ndarray],
    ) -> dict[str, np.ndarray]:
        """For one word per image: p by ranking and share of patches, (B, M, shares), and at both ends, (B, 2)."""
        pairs = zip(images, relevance, strict=True)
        drawn = [int(random_for(image.name).integers(len(values))) for image, values in pairs]
        values = np.stack([words[j] for words, j in zip(relevance, drawn, strict=True)])  # (B, M, P)
        B, P = len(captions), values.shape[-1]
        tie_break = values[:, -1:]
        counts = [round(share * P) for share in INNER_FRACTIONS]
        highest = np.stack([select_highest(values, count, tie_break) for count in counts], axis=2).reshape(B, -1, P)
        none, everything = (np.full((B, 1, P), value) for value in (False, True))
        selected = np.concatenate([highest, ~highest, none, everything], axis=1)  # (B, 2 · M · shares + 2, P)
        targets = [_Target(row, j) for row, j in enumerate(drawn) for _ in range(selected.shape[1])]
        features = self._encode(batch, targets, selected.reshape(-1, P))
        p = self._probabilities(features, captions, targets).reshape(B, -1)
        deleted, inserted = p[:, :-2].reshape(B, 2, len(RANKINGS), len(INNER_FRACTIONS)).swapaxes(0, 1)
        return {"deleted": deleted, "inserted": inserted, "ends": p[:, -2:]}

    def _encode(self, batch: ImageBatch, targets: Sequence[_Target], selected: np.ndarray) -> Features:
        """The features of the targets' images, each with its selected patches masked."""
        patches, rows = torch.from_numpy(selected), [row for row, _ in targets]
        return self.context.encode(batch, rows, lambda pixels, part: mask_patches(pixels, patches[part]))

    def _probabilities(
        self, features: Features, captions: Sequence[ImageEvidence], targets: Sequence[_Target]
    ) -> np.ndarray:
        """The probability of each target after the words before it, (N,)."""
        tokens = [caption.words.tolist() for caption in captions]
        positions = [(row, captions[row].objects[j]) for row, j in targets]
        prefixes = [tokens[row][:position] for row, position in positions]
        words = [tokens[row][position] for row, position in positions]
        return self.context.probabilities(features, range(len(targets)), prefixes, words)


def patch_relevance(image: CaptionedImage, caption: ImageEvidence) -> np.ndarray:
    """The relevance of each patch by every method and, last, at random: (J, M, P). Random values also break ties."""
    sums = np.stack([patch_sums(caption.maps[method]) for method in METHODS], axis=1)
    random = random_for(image.name).random((len(sums), 1, sums.shape[-1]))
    return np.concatenate([sums, random], axis=1)


def _word_results(images: Sequence[CaptionedImage], arrays: Sequence[Arrays]) -> dict[str, Any]:
    """How many words are no longer generated, and by how much their probabilities drop."""
    names = [image.name for image, values in zip(images, arrays, strict=True) for _ in values["before"]]
    missing, after, before = (_joined(arrays, name) for name in ("no_longer_generated", "after", "before"))
    drops = before.reshape(-1, 1) - after.reshape(len(before), -1)  # (N, M)
    missing = missing.astype(float)
    tables = {
        "no_longer_generated": missing,
        "probability_drop": drops,
        "share_dropped": (drops > 0).astype(float),
    }
    bootstrap, by_ranking = Bootstrap(names), dict(zip(RANKINGS, missing.T, strict=True))
    return {
        "words": len(before),
        "methods": means_by_name(bootstrap, RANKINGS, tables),
        "checks": [
            check(
                f"masking by {first} removes more words than masking by {second}",
                bootstrap.difference(by_ranking[first], by_ranking[second]),
            )
            for first, second in COMPARISONS
        ],
    }


def _curve_results(images: Sequence[CaptionedImage], arrays: Sequence[Arrays]) -> dict[str, Any]:
    bootstrap = Bootstrap([image.name for image in images])
    ends = np.stack([values["ends"] for values in arrays]) if arrays else np.zeros((0, 2))
    empty = np.zeros((0, len(RANKINGS), len(INNER_FRACTIONS)))
    results: dict[str, Any] = {"words": len(arrays), "fractions": FRACTIONS}
    for name, key, (first, last) in (("deletion", "deleted", (0, 1)), ("insertion", "inserted", (1, 0))):
        inner = np.stack([values[key] for values in arrays]) if arrays else empty
        edges = [np.repeat(ends[:, [column]], len(RANKINGS), 1)[..., None] for column in (first, last)]
        p = np.concatenate([edges[0], inner, edges[1]], axis=-1)  # (N, M, F)
        areas = np.trapezoid(p, FRACTIONS, axis=-1)
        means = p.mean(axis=0) if len(p) else np.full(p.shape[1:], np.nan)
        results[name] = {
            method: {"curve": means[m].tolist(), "area": bootstrap.mean(areas[:, m]).as_dict()}
            for m, method in enumerate(RANKINGS)
        }
    return results


def _joined(arrays: Sequence[Arrays], name: str) -> np.ndarray:
    parts = [values[name] for values in arrays]
    return np.concatenate(parts) if parts else np.zeros((0, len(RANKINGS)) if name != "before" else 0)


def _draw_no_longer_generated(results: Sequence[AuditResult]) -> Any:
    """Figure 6, left, of the LRP paper."""
    models = [
        {method: scores["no_longer_generated"] for method, scores in result.body["methods"].items()}
        for result in results
    ]
    methods = in_order({method for estimates in models for method in estimates})
    figure, axes = plots.panels(len(results), len(methods) * plots.ROW + 0.85)
    for result, panel, estimates in zip(results, axes, models, strict=True):
        for y, method in enumerate(methods):
            plots.bar(panel, y, estimates.get(method), plots.colour_of(method))
        plots.model_title(panel, result.title)
        panel.set_xlabel(f"share of words no longer generated\n({result.body['words']:,} object words)")
    plots.methods_on_y(axes[0], methods)
    plots.start_at_zero(axes[0], [estimate for estimates in models for estimate in estimates.values()])
    for panel in axes[1:]:
        plots.hide_y_axis(panel)
    return figure


def _draw_curves(body: dict[str, Any]) -> Any:
    curves = body["curves"]
    figure = plots.new_figure(plots.WIDTH, 3.1)
    axes = figure.subplots(1, 2, sharey=True)
    titles = {"deletion": ("Deletion", "masked", 1), "insertion": ("Insertion", "uncovered", -1)}
    for panel, (key, (title, verb, sign)) in zip(axes, titles.items(), strict=True):
        areas = {method: value_of(curves[key][method]["area"]) for method in in_order(curves[key])}
        for method in sorted(areas, key=lambda method: sign * (areas[method] or 0)):
            label = f"{METHOD_STYLES[method].name}  {decimal(areas[method])}"
            style = {"color": plots.colour_of(method), "linestyle": plots.DASHED.get(method, "-"), "label": label}
            panel.plot(curves["fractions"], curves[key][method]["curve"], **style)
        panel.set_title(title)
        panel.set_xlabel(f"share of the image {verb}")
        panel.set_xlim(0, 1)
        panel.set_ylim(bottom=0)
        panel.legend(title="area, best first", **plots.LEGEND_BESIDE)
    axes[0].set_ylabel(f"probability of the word ({curves['words']:,} words)")
    return figure
