"""Word ablation: without the earlier words that a method marks as relevant, is the word still probable?

The LRP paper (https://arxiv.org/abs/2001.01037, section V-B1). For every object word and stop word with at least six
words before it, the three earlier words with the highest weight of a method are removed. The decoder reads the other
words in their order, with the same image, and the word's probability is measured again.

Grad-CAM, Guided Grad-CAM and guided backprop weigh earlier words by the same sum of gradients, and are one row,
`gradient`; `gradient-size` is the absolute value of that sum. For transformers the sum is zero: these rows are empty.
Attention has no weights for words; here, an earlier word counts as much as its attention resembles the attention of the
word in question. `last` removes the three words just before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhy.audits.audit import Audit, AuditResult, Plot, audits
from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.statistics import Bootstrap, check, means_by_name, random_for
from saywhy.cache import Arrays
from saywhy.data.datasets import CaptionedImage
from saywhy.data.stop_words import STOP_WORDS
from saywhy.inference.batches import ImageBatch
from saywhy.viz import plots
from saywhy.viz.method_styles import METHOD_STYLES
from saywhy.viz.tables import UP, Table, in_order, method_table, short_estimate

MIN_EARLIER_WORDS = 6
REMOVED_WORDS = 3
WEIGHTS = {"lrp": "lrp", "gradient": "gradcam", "gradient-size": "gradcam", "gradient-input": "gradient-input"}
"""Rankings by a method's weights, and the method."""
RANKINGS = (*WEIGHTS, "attention", "random", "last")
KINDS = ("object", "stop")
COLUMNS = {"probability_drop": "mean drop of p", "share_dropped": "share whose p dropped"}


@audits.register("word-ablation")
class WordAblation(Audit):
    """Remove relevant earlier words and measure the probability again."""

    title = "Word ablation: does a word depend on the earlier words that are marked as relevant?"
    description = (
        "For words with six or more words before them, the three earlier words with the highest relevance are removed; "
        "the image stays, and the decoder reads the remaining words. *Mean drop of p* is the word's probability before "
        "minus after; *dropped* is the share of words whose probability decreased. Higher is better in both.\n\n"
        "*Gradient* stands for Grad-CAM, Guided Grad-CAM and guided backprop, which weigh earlier words by the sum of "
        "their gradients; *unsigned gradient* is the absolute value of that sum. *Attention* weighs an earlier word by "
        "how much its attention resembles that of the word in question. *Last three words* removes the three words "
        "just before, *random* any three."
    )

    def run(self, context: AuditContext, evidence: EvidenceSet) -> dict[str, Any]:
        """Remove words by every ranking, and measure the probability."""
        cache = context.stage_cache(
            "word-ablation",
            min_earlier_words=MIN_EARLIER_WORDS,
            removed_words=REMOVED_WORDS,
            rankings=RANKINGS,
            stop_words=sorted(STOP_WORDS),
        )
        images = [image for image, caption in evidence if _positions(caption)]
        if not images:
            raise NotApplicable(
                f"no object word or stop word of {len(evidence)} captions has {MIN_EARLIER_WORDS} words before it"
            )
        images = context.compute_missing(cache, _Ablation(context, evidence), "removing words", images)
        arrays = [cache.load(context.image_key(image)) for image in images]
        names = np.array([image.name for image, values in zip(images, arrays, strict=True) for _ in values["kind"]])
        kinds, drops = (np.concatenate([values[name] for values in arrays]) for name in ("kind", "drops"))
        results: dict[str, Any] = {"min_earlier_words": MIN_EARLIER_WORDS, "removed_words": REMOVED_WORDS, "checks": []}
        for number, kind in enumerate(KINDS):
            selected = kinds == number
            bootstrap, drop = Bootstrap(names[selected].tolist()), drops[selected]
            tables = {"probability_drop": drop, "share_dropped": np.where(np.isnan(drop), np.nan, drop > 0)}
            results[f"{kind}_words"] = {
                "words": int(selected.sum()),
                "methods": means_by_name(bootstrap, RANKINGS, tables),
            }
            results["checks"] += _checks(bootstrap, drop, kind)
        return results

    def tables(self, body: dict[str, Any]) -> list[Table]:
        """The tables of one model."""
        columns = {"probability_drop": ("mean drop of p", UP), "share_dropped": ("dropped", UP)}
        captions = {
            f"{kind}_words": f"{kind.capitalize()} words: {body[f'{kind}_words']['words']:,}." for kind in KINDS
        }
        return [method_table(body[key]["methods"], columns, caption) for key, caption in captions.items()]

    def summary(self, body: dict[str, Any]) -> Table:
        """The main numbers, for a terminal."""
        parts = [body[f"{kind}_words"] for kind in KINDS]
        titles = [f"{part['words']:,} {kind} words" for part, kind in zip(parts, KINDS, strict=True)]
        head = ("drop of p, share that drops", titles[0], "", titles[1], "")
        rows = [
            (
                METHOD_STYLES[method].name,
                *(short_estimate(part["methods"][method][key]) for part in parts for key in COLUMNS),
            )
            for method in parts[0]["methods"]
        ]
        return Table(head, rows)

    def plots(self, results: Sequence[AuditResult]) -> list[Plot]:
        """Plots that compare models."""
        alt = "Drop of a word's probability when its three most relevant earlier words are removed, by model"
        return [Plot("", alt, lambda: _draw_drops(results))]


def _checks(bootstrap: Bootstrap, drops: np.ndarray, kind: str) -> list[dict[str, Any]]:
    by_ranking = dict(zip(RANKINGS, drops.T, strict=True))
    return [
        check(
            f"{ranking} lowers the probability of {kind} words more than {baseline}",
            bootstrap.difference(by_ranking[ranking], by_ranking[baseline]),
        )
        for ranking in WEIGHTS
        for baseline in ("random", "attention")
    ]


@dataclass(frozen=True)
class _Ablation:
    """Remove words from the captions of a batch, and measure the probabilities again."""

    context: AuditContext
    evidence: EvidenceSet

    def __call__(self, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
        captions = [self.evidence.load(image) for image in images]
        rows, prefixes, words = [], [], []
        for row, (image, caption) in enumerate(zip(images, captions, strict=True)):
            tokens = caption.words.tolist()
            for position, removals in zip(_positions(caption), _removals(image, caption), strict=True):
                for removed in removals:
                    rows.append(row)
                    prefixes.append([token for i, token in enumerate(tokens[:position]) if i not in removed])
                    words.append(tokens[position])
        p = self.context.probabilities(self.context.encode(batch), rows, prefixes, words)
        start = 0
        for caption in captions:
            positions = _positions(caption)
            after = p[start : start + len(positions) * len(RANKINGS)].reshape(len(positions), len(RANKINGS))
            start += after.size
            kinds = [0 if position in caption.objects else 1 for position in positions]
            drops = caption.probability[positions][:, None] - after
            drops[:, [name in WEIGHTS and WEIGHTS[name] not in caption.earlier_words for name in RANKINGS]] = np.nan
            yield {"kind": np.array(kinds), "drops": drops}


def _positions(caption: ImageEvidence) -> list[int]:
    """Positions of the object words and stop words that have enough words before them."""
    late = range(MIN_EARLIER_WORDS, len(caption.words))
    return [position for position in late if position in caption.objects or caption.words[position] in STOP_WORDS]


def _removals(image: CaptionedImage, caption: ImageEvidence) -> Iterator[list[set[int]]]:
    """For each position, the earlier words that each ranking removes."""
    random = random_for(image.name)
    direction = caption.alpha / np.linalg.norm(caption.alpha, axis=1, keepdims=True)
    for position in _positions(caption):
        zeros = np.zeros_like(caption.earlier_words["lrp"])
        weights = {
            name: caption.earlier_words.get(method, zeros)[position, :position] for name, method in WEIGHTS.items()
        }
        weights["gradient-size"] = np.abs(weights["gradient-size"])
        weights["attention"] = direction[:position] @ direction[position]
        weights["random"] = random.random(position)
        weights["last"] = np.arange(position)
        yield [set(np.argsort(-weights[name], kind="stable")[:REMOVED_WORDS].tolist()) for name in RANKINGS]


def _draw_drops(results: Sequence[AuditResult]) -> Any:
    """Figure 5 of the LRP paper: one row per model; drop and frequency, for object words and stop words."""
    columns = [(f"{kind}_words", key) for key in COLUMNS for kind in KINDS]
    methods = in_order({method for result in results for part, _ in columns for method in result.body[part]["methods"]})
    figure = plots.new_figure(plots.WIDTH, len(results) * (len(methods) * plots.ROW + 1.1))
    for result, strip in zip(results, plots.strips(figure, [result.title for result in results]), strict=True):
        axes = strip.subplots(1, len(columns), sharey=True)
        for panel, (part, key) in zip(axes, columns, strict=True):
            estimates = {method: scores[key] for method, scores in result.body[part]["methods"].items()}
            for y, method in enumerate(methods):
                digits = 3 if key == "probability_drop" else 2  # drops are small
                plots.bar(panel, y, estimates.get(method), plots.colour_of(method), digits=digits)
            plots.subtitle(panel, f"{part.replace('_', ' ')} ({result.body[part]['words']:,})")
            panel.set_xlabel(COLUMNS[key])
            plots.hide_y_axis(panel)
            plots.start_at_zero(panel, _all_estimates(results, key), room=1.3)
        plots.methods_on_y(axes[0], methods)
    return figure


def _all_estimates(results: Sequence[AuditResult], key: str) -> list[dict[str, Any]]:
    """The estimates of all models and kinds of words, which share one scale."""
    parts = [result.body[f"{kind}_words"]["methods"] for result in results for kind in KINDS]
    return [scores[key] for methods in parts for scores in methods.values()]
