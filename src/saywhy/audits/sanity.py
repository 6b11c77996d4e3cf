"""Sanity checks: do maps depend on the trained weights, the image and the word, and on nothing else?

`randomised` (Adebayo et al. 2018, https://arxiv.org/abs/1810.03292): the values of every tensor are shuffled, first
those of the decoder, then those of the encoder from the last layers to the first. How similar are the maps to those of
the trained model? A method that explains the model should approach zero.
`constant_shift` (Kindermans et al. 2017, https://arxiv.org/abs/1711.00867): a constant is added to all pixels and
subtracted again before the first layer. The network computes the same, so its explanation should not change: 1 is best.
`translated`: the image is shifted to the right by the stride of the encoder. Maps should shift by as much.
`two_words`: the similarity of the maps of two object words of one caption. `agreement`: that of two methods.

Similarity is the rank correlation of the absolute values of maps, summed over patches of 8 × 8 pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saywhy.audits.audit import Audit, Plot, audits
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet, ImageEvidence, input_maps
from saywhy.audits.patches import PATCH, patch_sums
from saywhy.audits.statistics import Bootstrap, check, rank_correlation
from saywhy.cache import Arrays
from saywhy.captioners.base import Captioner
from saywhy.data.datasets import CaptionedImage
from saywhy.encoders.base import Encoder, Features
from saywhy.explain.methods import METHODS, attribute
from saywhy.explain.targets import Targets
from saywhy.inference.batches import ImageBatch
from saywhy.viz import plots
from saywhy.viz.method_styles import METHOD_STYLES
from saywhy.viz.tables import DOWN, UP, Table, decimal, in_order, method_table, value_of, value_table

IMAGES = 20
"""Images that every altered model explains."""
PARTS = ("¼", "½", "¾", "whole")
"""Parts of the encoder, counted in blocks from the last, that are randomised together with the decoder."""
COMPARED = ("absolute values", "positive parts")
SHIFT = 1.0  # added to normalised pixels
BODY = "encoder.body."


@audits.register("sanity")
class Sanity(Audit):
    """Explain again with altered weights and altered input."""

    title = "Sanity: do maps depend on the model, the image and the word?"
    description = (
        "All numbers are rank correlations of the absolute values of maps, summed over patches; *positive* of their "
        "positive parts, because a map whose sign flips is unchanged in absolute value. The model is "
        "*randomised*: the values of each tensor are shuffled, first those of the decoder, then those of the encoder "
        "from the last layers to the first. Its maps are compared with those of the trained model; maps that explain "
        "the model must change, so lower is better.\n\n"
        "*Constant shift*: a constant is added to all pixels and subtracted again before the first layer; "
        "*translated*: the image is shifted to the right by the stride of the encoder, and its map shifted back. The "
        "map should not change, so higher is better. *Two words*: maps of two object words of one caption, which "
        "should differ, so lower is better. Agreement is between the maps of two methods for the same word; it is "
        "neither good nor bad."
    )

    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """Compare the maps of altered models with those of the trained one."""
        images = evidence.images_with_objects()
        indices = np.linspace(0, len(images) - 1, min(IMAGES, len(images))).astype(int)
        altered = _AlteredModels(context, evidence)
        cache = context.stage_cache("sanity", shift=SHIFT, parts=PARTS, patch_size=PATCH, compared=COMPARED)
        chosen = context.compute_missing(cache, altered, "explaining altered models", [images[i] for i in indices])
        arrays = [cache.load(context.image_key(image))["similarity"] for image in chosen]  # (J, changes, M, parts) each
        bootstrap = Bootstrap([image.name for image, values in zip(chosen, arrays, strict=True) for _ in values])
        similarity, positive = np.moveaxis(np.concatenate(arrays), -1, 0)
        by_change, by_change_positive = (
            {
                name: {method: bootstrap.mean(values[:, i, m]).as_dict() for m, method in enumerate(METHODS)}
                for i, name in enumerate(altered.names)
            }
            for values in (similarity, positive)
        )
        translated, shifted = by_change.pop("translated"), by_change.pop("shifted")
        last = altered.names.index(f"{PARTS[-1]} encoder")
        checks = [
            check(
                f"{method}'s maps change when the whole model is randomised (correlation below ½)",
                bootstrap.mean(0.5 - similarity[:, last, m]),
            )
            for m, method in enumerate(METHODS)
            if method != "attention"
        ]
        return {
            "altered": {"images": len(chosen), "words": len(similarity)},
            "randomised": [
                {"down_to": name, "methods": methods, "positive": by_change_positive[name]}
                for name, methods in by_change.items()
            ],
            "constant_shift": shifted,
            "translated": translated,
            **_trained_similarities(evidence),
            "checks": checks,
        }

    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""
        altered = body["altered"]
        stages = {stage["down_to"]: stage["methods"] for stage in body["randomised"]}
        caption = f"Randomised models: {altered['words']:,} words of {altered['images']:,} images."
        columns = {
            "constant_shift": ("constant shift", UP),
            "translated": ("translated", UP),
            "two_words": ("two words", DOWN),
            "two_words_positive": ("two words, positive", DOWN),
        }
        parts = {key: body.get(key) or {} for key in columns}
        methods = {method for part in parts.values() for method in part}
        estimates = {method: {key: part.get(method) for key, part in parts.items()} for method in methods}
        positive = {stage["down_to"]: stage["positive"] for stage in body["randomised"] if "positive" in stage}
        return [
            value_table("randomised down to", stages, caption=caption),
            *([value_table("randomised down to", positive, caption="Positive parts.")] if positive else []),
            method_table(estimates, columns, "The trained model.", "n"),
        ]

    def summary(self, body: dict[str, Any]) -> Table:
        """The main numbers, for a terminal."""
        stages = body["randomised"]
        head = (
            "rank correlation",
            *(stage["down_to"] for stage in stages),
            "constant shift",
            "translated",
            "two words",
        )
        columns = [
            *(stage["methods"] for stage in stages),
            body["constant_shift"],
            body["translated"],
            body["two_words"],
        ]
        rows = [
            (METHOD_STYLES[method].name, *(_two_digits(column[method]) for column in columns))
            for method in stages[0]["methods"]
        ]
        return Table(head, rows)

    def model_plots(self, body: dict[str, Any]) -> list[Plot]:
        """Plots of one model."""
        drawings = {
            "stages": ("randomised", "Similarity of maps while the model is randomised", _draw_stages),
            "agreement": ("agreement", "Agreement between methods", _draw_agreement),
        }
        return [Plot(name, alt, partial(draw, body)) for name, (key, alt, draw) in drawings.items() if body.get(key)]


class _AlteredModels:
    """Explain the same words with altered models."""

    def __init__(self, context: AuditContext, evidence: EvidenceSet) -> None:
        self.context, self.evidence = context, evidence
        self.stages = randomisation_stages(context.captioner)
        self.names = [*self.stages, "shifted", "translated"]

    @cached_property
    def captioners(self) -> dict[str, Captioner]:
        """The altered models by name, made when the first image needs them."""
        captioner = self.context.captioner
        randomised = {name: shuffle_weights(captioner, first) for name, first in self.stages.items()}
        return {**randomised, "shifted": shift_input(captioner)}

    def __call__(self, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
        captioner = self.context.captioner
        captions = [self.evidence.load(image) for image in images]
        trained = [patch_relevance(caption) for caption in captions]  # (J, M, P) each
        similarity = [np.empty((len(caption.objects), len(self.names), len(METHODS), 2)) for caption in captions]
        stride = captioner.encoder.stride
        for i, name in enumerate(self.names):
            if name == "translated" and batch.boxes is not None:
                for values in similarity:  # regions would have to shift too, and some would leave the image
                    values[:, i] = np.nan
                continue
            if name == "translated":
                maps = self._maps(captioner, batch.pixels.roll(stride, dims=-1), batch, captions)
                maps = [np.roll(values, -stride, axis=-1) for values in maps]
            else:
                maps = self._maps(self.captioners[name], batch.pixels, batch, captions)
            for row, values in enumerate(maps):
                similarity[row][:, i] = similarities(patch_sums(values), trained[row])
        yield from ({"similarity": values} for values in similarity)

    def _maps(
        self, captioner: Captioner, pixels: Tensor, batch: ImageBatch, captions: Sequence[ImageEvidence]
    ) -> list[np.ndarray]:
        """Per image, the maps of its object words by every method, (J, M, S, S)."""
        context = self.context
        words, objects = (
            [caption.words.tolist() for caption in captions],
            [caption.objects.tolist() for caption in captions],
        )
        targets = Targets.of_captions(words, objects, context.model.vocabulary, context.device, style=context.style)
        attributions = attribute(  # activations of a randomised network can be too large for the conservation check
            captioner, pixels, batch.boxes, targets, METHODS, context.composite, check=False
        )
        maps = [input_maps(attributions, method, context.input_size) for method in METHODS]
        stacked = np.stack(maps, axis=2)  # (K, B, M, S, S)
        return [stacked[: len(caption.objects), row] for row, caption in enumerate(captions)]


def patch_relevance(caption: ImageEvidence) -> np.ndarray:
    """The maps, summed over patches, of each object word and method: (J, M, P)."""
    return np.stack([patch_sums(caption.maps[method]) for method in METHODS], axis=1)


def similarities(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The rank correlations of maps (…, P): of their absolute values, and of their positive parts, (…, 2)."""
    parts = ((part(first), part(second)) for part in (np.abs, lambda values: np.maximum(values, 0)))
    return np.stack([rank_correlation(*pair) for pair in parts], axis=-1)


def randomisation_stages(captioner: Captioner) -> dict[str, int]:
    """By the name of a stage, the first block of the encoder that is randomised."""
    count = len(captioner.encoder.blocks())
    first_blocks = [count - round(count * part / len(PARTS)) for part in range(1, len(PARTS) + 1)]
    return {"decoder": count, **dict(zip((f"{part} encoder" for part in PARTS), first_blocks, strict=True))}


def shuffle_weights(captioner: Captioner, first: int) -> Captioner:
    """A copy with the values of each tensor shuffled, in the decoder and in the encoder from block `first` on."""
    copy, random = deepcopy(captioner), torch.Generator().manual_seed(0)
    for name, values in [*copy.named_parameters(), *copy.named_buffers()]:
        part = name.removeprefix(BODY)
        if not values.is_floating_point():
            continue  # numbers of positions or tokens
        if not name.startswith("encoder.") or (part != name and copy.encoder.block_of(part) >= first):
            order = torch.randperm(values.numel(), generator=random).to(values.device)
            values.data.copy_(values.data.flatten()[order].view_as(values))
    return copy


class ShiftedEncoder(nn.Module):
    """An encoder that adds a constant to its normalised pixels and subtracts it before its first layer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def normalise(self, pixels: Tensor) -> Tensor:
        """The normalised pixels plus the constant."""
        return self.encoder.normalise(pixels) + SHIFT

    def encode_normalised(self, x: Tensor, boxes: Tensor | None = None) -> Features:
        """The features of the input without the constant."""
        return self.encoder.encode_normalised(x - SHIFT, boxes)

    def forward(self, pixels: Tensor, boxes: Tensor | None = None) -> Features:
        """The features of the encoder."""
        return self.encode_normalised(self.normalise(pixels), boxes)


def shift_input(captioner: Captioner) -> Captioner:
    """A captioner that computes the same from an input to which a constant is added."""
    copy = deepcopy(captioner)
    copy.encoder = ShiftedEncoder(copy.encoder)  # type: ignore[assignment]
    return copy


def _trained_similarities(evidence: EvidenceSet) -> dict[str, Any]:
    """Similarities between the maps of two words of a caption, and between those of two methods."""
    names, pairs, agreements = [], [], []
    for image in evidence.images_with_objects():
        relevance = patch_relevance(evidence.load(image))  # (J, M, P)
        strength = np.abs(relevance)
        for i, j in combinations(range(len(strength)), 2):
            names.append(image.name)
            pairs.append(similarities(relevance[i], relevance[j]))  # (M, 2)
        agreements += [rank_correlation(word[:, None], word[None]) for word in strength]  # (M, M) each
    bootstrap, similarity = Bootstrap(names), np.array(pairs).reshape(-1, len(METHODS), 2)
    words, agreement = Bootstrap(range(len(agreements)), samples=1), np.array(agreements)  # (N, M, M)
    return {
        **{
            name: {method: bootstrap.mean(similarity[:, m, i]).as_dict() for m, method in enumerate(METHODS)}
            for i, name in enumerate(("two_words", "two_words_positive"))
        },
        "agreement": {
            first: {second: words.mean(agreement[:, i, j]).as_dict()["value"] for j, second in enumerate(METHODS)}
            for i, first in enumerate(METHODS)
        },
    }


def _two_digits(estimate: Mapping[str, Any]) -> str:
    return decimal(estimate["value"], 2)


def _draw_stages(body: dict[str, Any]) -> Any:
    stages = body["randomised"]
    methods = in_order({method for stage in stages for method in stage["methods"]})
    figure = plots.new_figure(7.6, 3.6)
    axes = figure.subplots()
    ends = {}
    for method in methods:
        estimates = [stage["methods"].get(method) for stage in stages]
        points = [(0, 1.0)] + [(x, e["value"]) for x, e in enumerate(estimates, 1) if value_of(e) is not None]
        style = {"color": plots.colour_of(method), "linestyle": plots.DASHED.get(method, "-")}
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, **style)
        for x, estimate in enumerate(estimates, 1):
            if estimate and estimate["low"] is not None and estimate["high"] is not None:
                axes.plot([x, x], [estimate["low"], estimate["high"]], color=plots.colour_of(method), linewidth=1)
        ends[method] = points[-1]
    names = ["trained", *(stage["down_to"] for stage in stages)]
    axes.set_xticks(range(len(names)), names, **(plots.SLANTED if sum(map(len, names)) > 70 else {}))
    axes.set_xlabel("randomised down to")
    axes.set_ylabel(f"rank correlation with\nthe trained model's maps ({body['altered']['words']:,} words)")
    axes.axhline(0, color=plots.MUTED, linewidth=0.8)
    axes.grid(axis="x", visible=False)
    axes.set_ylim(axes.get_ylim())
    plots.label_line_ends(axes, ends, len(stages) * 1.06)
    axes.set_xlim(-0.2, len(stages) * 1.01)
    return figure


def _draw_agreement(body: dict[str, Any]) -> Any:
    agreement = body["agreement"]
    methods = in_order({*agreement, *(method for row in agreement.values() for method in row)})
    figure = plots.new_figure(len(methods) * 0.56 + 1.7, len(methods) * 0.36 + 1.25)
    axes = figure.subplots()
    values = [[_agreement(agreement, first, second) for second in methods] for first in methods]
    axes.set_facecolor("#eeeeee")
    cells = [[float("nan") if value is None else value for value in row] for row in values]
    axes.pcolormesh(cells, cmap="RdBu", vmin=-1, vmax=1, edgecolor="white", linewidth=1.5)
    for y, row in enumerate(values):
        for x, value in enumerate(row):
            colour = "white" if value is not None and abs(value) > 0.55 else plots.INK
            axes.text(x + 0.5, y + 0.5, decimal(value, 2), ha="center", va="center", color=colour, fontsize=8)
    centres, names = [i + 0.5 for i in range(len(methods))], [METHOD_STYLES[method].name for method in methods]
    axes.set_yticks(centres, names)
    axes.set_xticks(centres, names, **plots.SLANTED)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.set_title("Rank correlation of maps of the same word")
    return figure


def _agreement(agreement: Mapping[str, Mapping[str, float | None]], first: str, second: str) -> float | None:
    """The agreement of two methods, which may be given in either order; 1 for a method with itself."""
    value = agreement.get(first, {}).get(second, agreement.get(second, {}).get(first))
    return 1.0 if first == second else value
