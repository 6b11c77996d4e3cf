"""Localisation: does the map of an object word lie on the object?

The LRP paper (https://arxiv.org/abs/2001.01037, section V-B2), with boxes that people drew for phrases of the reference
captions (`object_boxes`). Correctness is the share of a map inside the boxes of its word (eqs. 23–24), for either sign.
The pointing game (Zhang et al. 2018, https://arxiv.org/abs/1608.00507) asks whether the highest pixel lies inside.
`uniform` is a constant map: its share is the area of the boxes. `centre` is a Gaussian around the centre of the image,
where photographers place objects. The maps of other object words of the caption, in the boxes of this word, are the
baseline of the wrong word: what is inside because the map shows whatever is salient (see `specificity`).

For models with several attention heads (MH-FC), each head is also explained alone; the best head (eq. 25) and the mean
of the heads are reported beside the map of all heads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhy.audits.audit import Audit, AuditResult, Plot, audits
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet, ImageEvidence, explain_words, input_maps, over_input
from saywhy.audits.object_boxes import no_boxes, object_boxes, points, require_phrases, shares
from saywhy.audits.statistics import Bootstrap, check, means_by_name
from saywhy.cache import Arrays
from saywhy.data.datasets import CaptionedImage
from saywhy.explain.methods import METHODS
from saywhy.inference.batches import ImageBatch
from saywhy.viz import plots
from saywhy.viz.method_styles import METHOD_STYLES
from saywhy.viz.tables import (
    DOWN,
    NEITHER,
    UP,
    Estimate,
    Table,
    decimal,
    in_order,
    method_table,
    short_estimate,
    value_of,
    value_table,
)

MAPS = (*METHODS, "uniform", "centre")
SCORES = ("positive", "negative", "pointing", "pointing_negative", "wrong_word")
CENTRE_WIDTH = 0.25
"""The standard deviation of the Gaussian `centre`, as a share of the side of the image."""
BASELINES = ("uniform", "centre")
COLUMNS = ("positive", "negative", "pointing", "wrong_word")
SIZES = {"under 5 %": 0.05, "5 to 15 %": 0.15, "15 to 40 %": 0.4, "over 40 %": 1.01}
"""Classes of object sizes, and the share of the image that each ends below."""


@audits.register("localisation")
class Localisation(Audit):
    """Compare maps with boxes."""

    title = "Localisation: does relevance lie on the object that is named?"
    description = (
        "For each object word for which people drew boxes in the image, *positive inside* is the share of a map's "
        "positive relevance inside the boxes, and *negative inside* the share of its negative relevance. *Uniform* is "
        "a constant map: its share is the area of the boxes; *centre* is a Gaussian around the centre of the image. "
        "*Wrong word* is the share of the maps of the caption's other object words inside the boxes of this one: what "
        "is above it depends on the word. If the sign of a method is meaningful, its positive "
        "share is above that of *uniform* and its negative share below. *Highest inside* is how often the map's "
        "highest pixel lies in a box (the pointing game), *lowest inside* how often its lowest pixel does. Area is "
        "the share of the image that the boxes cover. A map without positive (or negative) values has no such share "
        "and is not counted; the checks compare words that have both values."
    )

    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """Score all maps against the boxes."""
        phrases = require_phrases(context)
        words, skipped = measure(context, evidence)
        if not words:
            raise no_boxes(phrases, len(evidence))
        bootstrap = Bootstrap([word.image for word in words])
        scores = np.stack([word.scores for word in words])  # (N, M, 5)
        kinds, sizes = [word.kind for word in words], [size_class(word.area) for word in words]
        return {
            "words": len(words),
            "skipped": {"no reference phrase with boxes names it": skipped},
            "methods": means_by_name(bootstrap, MAPS, {name: scores[..., i] for i, name in enumerate(SCORES)}),
            "by_kind": _by_group(words, kinds, [kind for kind, _ in Counter(kinds).most_common()]),
            "by_size": _by_group(words, sizes, list(SIZES)),
            "heads": HeadLocalisation(context, evidence).run(words) if context.captioner.heads > 1 else None,
            "checks": _checks(bootstrap, scores),
        }

    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""
        columns = {
            "positive": ("positive inside", UP),
            "negative": ("negative inside", NEITHER),
            "pointing": ("highest inside", UP),
            "pointing_negative": ("lowest inside", NEITHER),
            "wrong_word": ("wrong word", DOWN),
        }
        skipped = "".join(
            f" Not counted: {count:,} ({reason})." for reason, count in (body.get("skipped") or {}).items()
        )
        tables = [method_table(body["methods"], columns, f"{body['words']:,} words with boxes.{skipped}")]
        for key, title, caption in (("by_kind", "kind", "kind of object"), ("by_size", "boxes", "area of the boxes")):
            if groups := body.get(key):
                counts = {
                    "words": [f"{group['words']:,}" for group in groups.values()],
                    "area": [decimal(value_of(group["area"])) for group in groups.values()],
                }
                values = {name: group["methods"] for name, group in groups.items()}
                tables.append(value_table(title, values, counts, f"Positive relevance inside the boxes, by {caption}."))
        if heads := body.get("heads"):
            columns = {"best": ("best head", UP), "mean": ("mean of heads", UP), "all": ("all together", UP)}
            caption = f"Each of the {heads['heads']} heads alone, {heads['words']:,} words: positive relevance inside."
            tables.append(method_table(heads["methods"], columns, caption))
        return tables

    def summary(self, body: dict[str, Any]) -> Table:
        """The main numbers, for a terminal."""
        head = (f"{body['words']:,} words", "positive inside", "negative inside", "highest inside", "wrong word")
        rows = [
            (METHOD_STYLES[method].name, *(short_estimate(scores[key]) for key in COLUMNS))
            for method, scores in body["methods"].items()
        ]
        for method, scores in (body["heads"] or {"methods": {}})["methods"].items():
            rows.append((f"{METHOD_STYLES[method].name}, best head", short_estimate(scores["best"]), "", "", ""))
        return Table(head, rows)

    def plots(self, results: Sequence[AuditResult]) -> list[Plot]:
        """Plots that compare models."""
        return [Plot("", "Share of relevance inside the boxes, by model", lambda: _draw_shares(results))]

    def model_plots(self, body: dict[str, Any]) -> list[Plot]:
        """Plots of one model."""
        if not body.get("by_kind"):
            return []
        alt = "Positive relevance inside the boxes, by kind of object and area of the boxes"
        return [Plot("kinds", alt, lambda: _draw_groups(body))]


@dataclass(frozen=True)
class LocatedWord:
    """An object word with boxes.

    Attributes:
        image: the name of its image.
        kind: the kind of object.
        area: the share of the encoder's input inside the boxes.
        scores: of `MAPS`, (M, 5), as `SCORES`.
    """

    image: str
    kind: str
    area: float
    scores: np.ndarray


def measure(context: AuditContext, evidence: EvidenceSet) -> tuple[list[LocatedWord], int]:
    """The object words that have boxes, and the number of those that have none."""
    words, skipped = [], 0
    for image in evidence.images_with_objects():
        caption = evidence.load(image)
        boxes = object_boxes(context, image, caption)
        skipped += len(caption.objects) - len(boxes)
        for j, (mask, kind) in boxes.items():
            maps = [caption.maps[method][j] for method in METHODS]
            scores = map_scores(np.stack([*maps, np.ones_like(maps[0]), centre_map(len(mask))]), mask)
            scores = np.column_stack([scores, wrong_word_scores(caption, j, mask)])
            words.append(LocatedWord(image.name, kind, mask.mean(), scores))
    return words, skipped


def centre_map(side: int) -> np.ndarray:
    """A Gaussian around the centre, (side, side)."""
    density = np.exp(-0.5 * (((np.arange(side) + 0.5) / side - 0.5) / CENTRE_WIDTH) ** 2)
    return density[:, None] * density


def wrong_word_scores(caption: ImageEvidence, j: int, mask: np.ndarray) -> np.ndarray:
    """The mean positive share, inside the boxes of word j, of the maps of words that name other objects, (M,).

    NaN if there are none, and for maps that do not depend on the word.
    """
    others = np.flatnonzero(caption.lemmas != caption.lemmas[j])
    result = np.full(len(MAPS), np.nan)
    for m, method in enumerate(METHODS if len(others) else ()):
        positive = shares(caption.maps[method][others], mask).positive
        result[m] = np.nan if np.isnan(positive).all() else np.nanmean(positive)
    return result


def map_scores(maps: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The scores of maps (M, S, S): (M, 4), as the first of `SCORES`; NaN if a map has no values of that sign.

    A constant map has no highest pixel; its pointing score is that of a pixel drawn at random.
    """
    inside = shares(maps, mask)
    constant = np.ptp(maps, axis=(1, 2)) == 0
    highest, lowest = points(maps, mask).astype(float), points(-maps, mask).astype(float)
    highest[np.isnan(inside.positive)], lowest[np.isnan(inside.negative)] = np.nan, np.nan
    for pointing in (highest, lowest):
        pointing[constant & ~np.isnan(pointing)] = mask.mean()
    return np.stack([inside.positive, inside.negative, highest, lowest], axis=-1)


def size_class(area: float) -> str:
    """The class of an object's area, a key of `SIZES`."""
    return next(name for name, end in SIZES.items() if area < end)


def _by_group(words: Sequence[LocatedWord], groups: Sequence[str], order: Sequence[str]) -> dict[str, Any]:
    """The positive share of the words of each group."""
    results = {}
    for name in order:
        members = [word for word, group in zip(words, groups, strict=True) if group == name]
        if members:
            bootstrap = Bootstrap([word.image for word in members])
            positive = np.stack([word.scores[:, 0] for word in members])  # (N, M)
            results[name] = {
                "words": len(members),
                "area": bootstrap.mean(np.array([word.area for word in members])).as_dict(),
                "methods": {method: bootstrap.mean(positive[:, m]).as_dict() for m, method in enumerate(MAPS)},
            }
    return results


def _checks(bootstrap: Bootstrap, scores: np.ndarray) -> list[dict[str, Any]]:
    positive, negative = (dict(zip(MAPS, scores[..., sign].T, strict=True)) for sign in (0, 1))
    checks = [
        check(f"{method} lies inside the boxes more than the uniform map", bootstrap.difference(p, positive["uniform"]))
        for method, p in positive.items()
        if method not in BASELINES
    ]
    by_sign, with_attention = (
        bootstrap.difference(positive["lrp"], other) for other in (negative["lrp"], positive["attention"])
    )
    checks.append(check("lrp's positive part lies inside the boxes more than its negative part", by_sign))
    checks.append(check("lrp lies inside the boxes more than attention", with_attention))
    with_centre = bootstrap.difference(positive["lrp"], positive["centre"])
    checks.append(check("lrp lies inside the boxes more than a Gaussian at the centre", with_centre))
    return checks


@dataclass(frozen=True)
class HeadLocalisation:
    """The positive shares when a single attention head is explained."""

    context: AuditContext
    evidence: EvidenceSet

    def run(self, words: Sequence[LocatedWord]) -> dict[str, Any]:
        """The best head, the mean of the heads, and all heads together."""
        context = self.context
        cache = context.stage_cache("heads", phrases=context.phrases.key if context.phrases else None)
        names = {word.image for word in words}
        images = [image for image in self.evidence.images if image.name in names]
        images = context.compute_missing(cache, self._compute, "explaining single heads", images)
        by_image = [cache.load(context.image_key(image))["positive"] for image in images]  # (N, heads, M) each
        bootstrap = Bootstrap([image.name for image, values in zip(images, by_image, strict=True) for _ in values])
        values = np.concatenate(by_image)
        empty = np.isnan(values).all(axis=1)
        counts = np.maximum((~np.isnan(values)).sum(axis=1), 1)
        tables = {
            "best": np.where(empty, np.nan, np.nanmax(np.nan_to_num(values, nan=-1.0), axis=1)),
            "mean": np.where(empty, np.nan, np.nansum(values, axis=1) / counts),
            "all": np.stack([word.scores[: len(METHODS), 0] for word in words]),  # (N, M)
        }
        methods = means_by_name(bootstrap, METHODS, tables)
        return {"words": len(values), "heads": context.captioner.heads, "methods": methods}

    def _compute(self, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
        context, heads = self.context, self.context.captioner.heads
        captions = [self.evidence.load(image) for image in images]
        boxes = [object_boxes(context, image, caption) for image, caption in zip(images, captions, strict=True)]
        words = [caption.words.tolist() for caption in captions]
        positions = [
            [int(caption.objects[j]) for j in image_boxes] for caption, image_boxes in zip(captions, boxes, strict=True)
        ]
        positive = [np.zeros((len(image_boxes), heads, len(METHODS))) for image_boxes in boxes]
        for head in range(heads):
            with context.captioner.isolate_head(head):
                attributions = explain_words(context, batch, words, positions)
            for m, method in enumerate(METHODS):
                if method == "attention":
                    alpha = attributions.maps[method][:, :, head].numpy()
                    maps = over_input(alpha, method, attributions, context.input_size)
                else:
                    maps = input_maps(attributions, method, context.input_size)
                for row, image_boxes in enumerate(boxes):
                    for k, (mask, _) in enumerate(image_boxes.values()):
                        positive[row][k, head, m] = shares(maps[k, row], mask).positive
        yield from ({"positive": values} for values in positive)


def _draw_shares(results: Sequence[AuditResult]) -> Any:
    """Figure 6, right, of the LRP paper."""
    positive, negative = (
        [{method: scores[key] for method, scores in result.body["methods"].items()} for result in results]
        for key in ("positive", "negative")
    )
    methods = in_order({method for model in positive for method in model} - set(BASELINES))
    figure, axes = plots.panels(len(results), len(methods) * plots.ROW * 1.5 + 0.95)
    for result, panel, inside, inside_negative in zip(results, axes, positive, negative, strict=True):
        for y, method in enumerate(methods):
            signed, colour = value_of(inside_negative.get(method)) is not None, plots.colour_of(method)
            plots.bar(panel, y - 0.2 * signed, inside.get(method), colour, 0.36)
            if signed:
                plots.bar(panel, y + 0.2, inside_negative[method], colour, 0.36, filled=False)
        _draw_uniform(panel, inside.get("uniform"))
        plots.model_title(panel, result.title, pad=14)
        words = f"({result.body['words']:,} words)"
        panel.set_xlabel(f"share inside the boxes {words}\nfilled: positive, hollow: negative")
    plots.methods_on_y(axes[0], methods)
    plots.start_at_zero(axes[0], [estimate for model in (*positive, *negative) for estimate in model.values()])
    for panel in axes[1:]:
        plots.hide_y_axis(panel)
    return figure


def _draw_uniform(panel: Any, estimate: Estimate | None) -> None:
    """A line at the share of a constant map."""
    if (uniform := value_of(estimate)) is None:
        return
    panel.axvline(uniform, color=plots.INK, linewidth=1, linestyle=(0, (3, 2)))
    panel.annotate(
        f"uniform {decimal(uniform, 2)}",
        *((uniform, 1), (3, 2)),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        **{"fontsize": 7.5, "color": plots.MUTED},
    )


def _draw_groups(body: dict[str, Any]) -> Any:
    """One panel for kinds of objects, and one for areas of boxes."""
    titles = {"by_kind": "By kind of object", "by_size": "By area of the boxes"}
    keys = [key for key in titles if body.get(key)]
    groups = [group for key in keys for group in body[key].values()]
    methods = in_order({method for group in groups for method in group["methods"]} - set(BASELINES))
    rows = max(len(body[key]) for key in keys)
    figure = plots.new_figure(plots.WIDTH if len(keys) > 1 else 5.6, rows * (len(methods) * 0.075 + 0.16) + 1.0)
    axes = figure.subplots(1, len(keys), sharex=True, squeeze=False)[0]
    for panel, key in zip(axes, keys, strict=True):
        for y, group in enumerate(body[key].values()):
            _draw_group(panel, y, group, methods)
        plots.labels_on_y(panel, [f"{name}\n{group['words']:,} words" for name, group in body[key].items()])
        panel.set_ylim(len(body[key]) - 0.5, -0.5)
        panel.spines["left"].set_visible(False)
        panel.set_title(titles[key])
        panel.set_xlabel("positive relevance inside the boxes")
    axes[0].set_xlim(left=0)
    plots.legend_below(figure, axes[0], methods, {"area of the boxes": plots.INK})
    return figure


def _draw_group(panel: Any, y: int, group: dict[str, Any], methods: Sequence[str]) -> None:
    for place, method in enumerate(methods):
        offset = (place - (len(methods) - 1) / 2) * 0.8 / len(methods)
        plots.dot(panel, y + offset, group["methods"].get(method), plots.colour_of(method), size=3.8)
    if (area := value_of(group["area"])) is not None:
        panel.plot([area, area], [y - 0.45, y + 0.45], color=plots.INK, linewidth=1.2)
    panel.axhline(y + 0.5, color=plots.FAINT, linewidth=0.6)
