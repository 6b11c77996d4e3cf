"""Specificity: does the map of a word show that word, rather than whatever is salient?

Every map of an object word is compared with the maps of other words of its caption. With inside(E, b) the share of a
map's positive part inside the boxes b of a word (see `object_boxes`), for an object word w, another object word o whose
boxes overlap with those of w by less than half of the smaller ones, and a function word f of the same caption:

    margin                 inside(E_w, b_w) − inside(E_o, b_w)            also of the highest pixel
    over a function word   inside(E_w, b_w) − inside(E_f, b_w)
    right order            how often the margin is above 0
    drop                   p(w) − p(w | the 10 % highest pixels of E_w are masked)
    spec                   p(w | those of E_o are masked) − p(w | those of E_w are masked)
    two words              rank correlation of |E_w| and |E_o|, and of their positive parts, summed over patches

The function word is drawn at random, the same for every method. For LRP, all maps of `explain.composites` are compared.
With `AuditContext.occlusion`, that method is compared too; it takes several times as long as all others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np
import torch

from saywhy.audits.audit import Audit, AuditResult, Plot, audits
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet, ImageEvidence, explain_words, input_maps, over_input
from saywhy.audits.object_boxes import Box, no_boxes, object_boxes, points, require_phrases, shares
from saywhy.audits.patches import PATCH, mask_pixels, patch_sums, select_highest
from saywhy.audits.statistics import Bootstrap, check, means_by_name, random_for, rank_correlation
from saywhy.cache import Arrays
from saywhy.data.datasets import CaptionedImage
from saywhy.data.stop_words import STOP_WORDS
from saywhy.explain.composites import COMPARING, less_others, lrp_map
from saywhy.explain.composites import MAPS as LRP_MAPS
from saywhy.explain.methods import METHODS
from saywhy.inference.batches import ImageBatch
from saywhy.viz import plots
from saywhy.viz.method_styles import METHOD_STYLES
from saywhy.viz.tables import DOWN, UP, Table, decimal, in_order, method_table, short_estimate, value_of

MASKED = 0.1
"""The share of pixels that is masked."""
OVERLAP = 0.5
"""The share of the smaller of two words' boxes from which on they are not compared."""
MAPS = (*METHODS, *(f"lrp-{kind}" for kind in LRP_MAPS))
OCCLUSION = "occlusion"
WORD_SCORES = ("inside", "highest", "over_function_word", "drop")
PAIR_SCORES = ("margin", "margin_highest", "right_order", "spec", "two_words", "two_words_positive")


@audits.register("specificity")
class Specificity(Audit):
    """Compare the maps of the words of a caption."""

    title = "Specificity: do maps tell the words of a caption apart?"
    description = (
        "*Inside* is the share of a map's positive relevance inside the boxes of its word, *highest* how often its "
        "highest pixel lies there. *Margin* is the inside share of the word's own map less that of the map of another "
        "object word of the caption, in the same boxes; *over function word* is the same for a word like “a” or “in”. "
        "*Right order* is how often the margin is above 0 (chance: 0.5). *Drop* is the fall of the word's probability "
        "when the 10 % highest pixels of its own map are masked; *spec* is by how much that is more than when those of "
        "the other word's map are masked. *Two words* is the rank correlation of their maps (absolute values, and "
        "positive parts). Boxes of two words that overlap by half or more are not compared. A map that shows what is "
        "salient has a large share inside and no margin."
    )

    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """Compare all maps of all words that have boxes."""
        phrases = require_phrases(context)
        maps = compared_maps(context)
        cache = context.stage_cache(
            "specificity", maps=maps, masked=MASKED, overlap=OVERLAP, patch_size=PATCH, phrases=phrases.key
        )
        compute = _Comparison(context, evidence)
        images = context.compute_missing(cache, compute, "comparing words", evidence.images_with_objects())
        arrays = [(image.name, cache.load(context.image_key(image))) for image in images]
        words, pairs = (_joined(arrays, key, len(maps)) for key in ("words", "pairs"))
        if not len(words.values):
            raise no_boxes(phrases, len(images))
        by_word, by_pair = (
            means_by_name(part.bootstrap, maps, {name: part.values[..., i] for i, name in enumerate(names)})
            for part, names in ((words, WORD_SCORES), (pairs, PAIR_SCORES))
        )
        return {
            "words": len(words.values),
            "pairs": len(pairs.values),
            "area": words.bootstrap.mean(np.concatenate([values["areas"] for _, values in arrays])).as_dict(),
            "methods": {method: {**by_word[method], **by_pair[method]} for method in maps},
            "checks": _checks(words, pairs),
        }

    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""
        area = f"the boxes cover {decimal(value_of(body['area']))} of the image"
        inside = {
            "inside": ("inside", UP),
            "highest": ("highest", UP),
            "over_function_word": ("over function word", UP),
            "drop": ("drop", UP),
        }
        pairs = {
            "margin": ("margin", UP),
            "margin_highest": ("margin, highest", UP),
            "right_order": ("right order", UP),
            "spec": ("spec", UP),
            "two_words": ("two words", DOWN),
            "two_words_positive": ("two words, positive", DOWN),
        }
        return [
            method_table(body["methods"], inside, f"{body['words']:,} words; {area}."),
            method_table(body["methods"], pairs, f"{body['pairs']:,} pairs of words.", "pairs"),
        ]

    def summary(self, body: dict[str, Any]) -> Table:
        """The main numbers, for a terminal."""
        keys = ("inside", "margin", "over_function_word", "right_order", "two_words_positive", "drop", "spec")
        rows = [
            (METHOD_STYLES[method].name, *(short_estimate(scores[key]) for key in keys))
            for method, scores in body["methods"].items()
        ]
        return Table((f"{body['pairs']:,} pairs", *(key.replace("_", " ") for key in keys)), rows)

    def plots(self, results: Sequence[AuditResult]) -> list[Plot]:
        """Plots that compare models."""
        return [Plot("", "Margin of a word's own map over another word's, by model", lambda: _draw_margins(results))]


@dataclass(frozen=True)
class _Scores:
    """Scores of words or pairs, (N, M, scores), and the bootstrap over their images."""

    values: np.ndarray
    bootstrap: Bootstrap


def compared_maps(context: AuditContext) -> tuple[str, ...]:
    """The maps that are compared."""
    return (*MAPS, OCCLUSION) if context.occlusion else MAPS


def _joined(arrays: Sequence[tuple[str, Arrays]], key: str, maps: int) -> _Scores:
    names = [name for name, values in arrays for _ in values[key]]
    count = len(WORD_SCORES if key == "words" else PAIR_SCORES)
    empty = np.zeros((0, maps, count))
    return _Scores(np.concatenate([empty, *(values[key] for _, values in arrays)]), Bootstrap(names))


def _checks(words: _Scores, pairs: _Scores) -> list[dict[str, Any]]:
    margin, spec, order = (pairs.values[..., PAIR_SCORES.index(name)] for name in ("margin", "spec", "right_order"))
    function = words.values[..., WORD_SCORES.index("over_function_word")]
    attention = margin[:, MAPS.index("attention")]
    return [
        check(
            "lrp lies in a word's boxes more than the map of another object word", pairs.bootstrap.mean(margin[:, 0])
        ),
        check("lrp lies in a word's boxes more than the map of a function word", words.bootstrap.mean(function[:, 0])),
        check(
            "masking by lrp removes its own word more than another word's map does", pairs.bootstrap.mean(spec[:, 0])
        ),
        check("lrp orders two words correctly more than half the time", pairs.bootstrap.mean(order[:, 0] - 0.5)),
        check("lrp has a larger margin than attention", pairs.bootstrap.difference(margin[:, 0], attention)),
    ]


@dataclass(frozen=True)
class _Comparison:
    """Compute the scores of the words of the images of a batch."""

    context: AuditContext
    evidence: EvidenceSet

    def __call__(self, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
        for row, image in enumerate(images):
            caption = self.evidence.load(image)
            boxes = object_boxes(self.context, image, caption)
            if boxes:
                yield self._scores(batch.select([row]), image, caption, boxes)
            else:
                counts = {"words": len(WORD_SCORES), "pairs": len(PAIR_SCORES)}
                empty = {key: np.zeros((0, len(compared_maps(self.context)), count)) for key, count in counts.items()}
                yield {**empty, "areas": np.zeros(0)}

    def _scores(
        self, batch: ImageBatch, image: CaptionedImage, caption: ImageEvidence, boxes: dict[int, Box]
    ) -> Arrays:
        """The scores of one image."""
        maps, of_function_word = self._maps(batch, image, caption)  # (J, M, S, S), (M, S, S) or None
        masks = {j: box.mask for j, box in boxes.items()}
        pairs = list(comparable(masks, caption.lemmas))
        p = self._masked_probabilities(batch, image, caption, maps, [*dict.fromkeys([*boxes, *sum(pairs, ())])])
        inside = {(j, b): shares(maps[j], masks[b]).positive for b in masks for j in range(len(maps))}
        highest = {(j, b): points(maps[j], masks[b]).astype(float) for b in masks for j in range(len(maps))}
        before, words, compared = caption.probability[caption.objects], [], []
        sums = patch_sums(maps)  # (J, M, P)
        for j, mask in masks.items():
            other = np.full(maps.shape[1], np.nan)
            if of_function_word is not None:
                other = shares(of_function_word, mask).positive
            words.append([inside[j, j], highest[j, j], inside[j, j] - other, before[j] - p[j, j]])
        for j, o in pairs:
            margin = inside[j, j] - inside[o, j]
            order = np.where(np.isnan(margin), np.nan, margin > 0)
            two = [rank_correlation(part[j], part[o]) for part in (np.abs(sums), np.maximum(sums, 0))]
            compared.append([margin, highest[j, j] - highest[o, j], order, p[o, j] - p[j, j], *two])
        return {
            "words": np.array(words).swapaxes(1, 2),
            "pairs": np.array(compared).reshape(-1, len(PAIR_SCORES), maps.shape[1]).swapaxes(1, 2),
            "areas": np.array([mask.mean() for mask in masks.values()]),
        }

    def _maps(
        self, batch: ImageBatch, image: CaptionedImage, caption: ImageEvidence
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """The maps of the object words, (J, M, S, S), and those of a function word, (M, S, S)."""
        context, words = self.context, caption.words.tolist()
        positions = [position for position, word in enumerate(words) if word in STOP_WORDS]
        drawn = [positions[random_for(image.name).integers(len(positions))]] if positions else []
        compared = [*caption.objects.tolist(), *drawn]
        others = self._other_maps(batch, words, compared)  # (J or J + 1, kinds, S, S)
        objects = np.stack([caption.maps[method] for method in METHODS], axis=1)
        objects = np.concatenate([objects, others[: len(caption.objects)]], axis=1)
        if not drawn:
            return objects, None
        attributions = explain_words(context, batch, [words], [drawn])
        of_methods = [input_maps(attributions, method, context.input_size)[0, 0] for method in METHODS]
        return objects, np.concatenate([np.stack(of_methods), others[-1]])

    def _other_maps(self, batch: ImageBatch, words: list[str], positions: Sequence[int]) -> np.ndarray:
        """The maps of the words at these positions by what is not among `METHODS`: (J, kinds, S, S)."""
        maps = self._lrp_maps(batch, words)[list(positions)]
        if not self.context.occlusion:
            return maps
        order = sorted(set(positions))
        attributions = explain_words(self.context, batch, [words], [order], (OCCLUSION,))
        occlusion = input_maps(attributions, OCCLUSION, self.context.input_size)[:, 0]
        return np.concatenate([maps, occlusion[[order.index(position) for position in positions]][:, None]], axis=1)

    def _lrp_maps(self, batch: ImageBatch, words: list[str]) -> np.ndarray:
        """All maps of LRP, of every word of a caption: (T, kinds, S, S)."""
        context = self.context
        rules = replace(context, composite=replace(context.composite, map="seen"))
        attributions = explain_words(rules, batch, [words], [range(len(words))], ("lrp",))
        relevance, maps, everywhere = attributions.relevance, [], torch.arange(len(words))[None]
        for kind in LRP_MAPS:
            values = lrp_map(kind, relevance.pixels, relevance.features, attributions.features)
            if kind in COMPARING:
                values = less_others(values, everywhere, values, [len(words)])
            maps.append(over_input(values.numpy(), "lrp", attributions, context.input_size)[:, 0])
        return np.stack(maps, axis=1)

    def _masked_probabilities(
        self,
        batch: ImageBatch,
        image: CaptionedImage,
        caption: ImageEvidence,
        maps: np.ndarray,
        words: Sequence[int],
    ) -> dict[tuple[int, int], np.ndarray]:
        """By the word i whose maps are masked and the word j whose probability is measured, p of each map, (M,)."""
        context, S, M = self.context, self.context.input_size, maps.shape[1]
        flat = maps[list(words)].reshape(-1, S * S)
        selected = select_highest(flat, round(MASKED * S * S), random_for(image.name).random(S * S))
        masks = torch.from_numpy(selected).view(-1, S, S)
        features = context.encode(batch, [0] * len(flat), lambda pixels, part: mask_pixels(pixels, masks[part]))
        tokens = caption.words.tolist()
        result: dict[tuple[int, int], np.ndarray] = {}
        for j in words:
            position = caption.objects[j]
            prefixes, targets = [tokens[:position]] * len(flat), [tokens[position]] * len(flat)
            p = context.probabilities(features, range(len(flat)), prefixes, targets).reshape(-1, M)
            result |= {(i, j): p[row] for row, i in enumerate(words)}
        return result


def comparable(masks: dict[int, np.ndarray], lemmas: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ordered pairs of words of different objects whose boxes overlap by less than half of the smaller ones.

    >>> masks = {j: np.arange(9) // 3 == third for j, third in enumerate((0, 0, 1))}
    >>> list(comparable(masks, np.array(["dog", "cat", "man"])))
    [(0, 2), (1, 2), (2, 0), (2, 1)]
    """
    for i, j in permutations(masks, 2):
        shared = (masks[i] & masks[j]).sum()
        if lemmas[i] != lemmas[j] and shared < OVERLAP * min(masks[i].sum(), masks[j].sum()):
            yield i, j


def _draw_margins(results: Sequence[AuditResult]) -> Any:
    columns = ("margin", "over_function_word")
    methods = in_order({method for result in results for method in result.body["methods"]})
    figure, axes = plots.panels(len(results), len(methods) * plots.ROW * 1.5 + 0.95)
    for result, panel in zip(results, axes, strict=True):
        for y, method in enumerate(methods):
            estimates = result.body["methods"].get(method, {})
            for offset, key in zip((-0.2, 0.2), columns, strict=True):
                plots.bar(panel, y + offset, estimates.get(key), plots.colour_of(method), 0.36, filled=key == "margin")
        plots.model_title(panel, result.title)
        panel.set_xlabel("share inside, more than another word's map\nfilled: object word, hollow: function word")
    plots.methods_on_y(axes[0], methods)
    plots.start_at_zero(
        axes[0], [scores.get(key) for r in results for scores in r.body["methods"].values() for key in columns]
    )
    for panel in axes[1:]:
        plots.hide_y_axis(panel)
    return figure
