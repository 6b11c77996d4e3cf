"""Localisation: does the map of an object word lie where the thing is?

The LRP paper (https://arxiv.org/abs/2001.01037, section V-B2), on boxes that people drew for the phrases of the
references. A word takes part if the last thing that some phrase with boxes names is what the word names: "dog" has
the boxes of "a brown dog" and of "two puppies", and not those of "the dog's mouth". Its correctness is the share of the
map's positive part inside these boxes, of all references together (eqs. 23–24); beside it, the same of the negative
part, and whether the highest, or lowest, pixel lies inside (the pointing game). `uniform` is a map that is the same
everywhere: what the area of the boxes alone gives.

Where heads of attention can be heard alone (MH-FC), each gives a map of its own, and the best of them (eq. 25) and
their mean are told beside the map of all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from saywhy.audits.boxes import box_mask, points, shares
from saywhy.audits.context import AuditContext, ImageBatch
from saywhy.audits.evidence import EvidenceSet, ImageEvidence, about, on_square, squared
from saywhy.audits.result_cache import Arrays
from saywhy.audits.results import NotApplicable, audits, checked, estimates
from saywhy.audits.statistics import Bootstrap
from saywhy.data.datasets import CaptionedImage
from saywhy.data.images import upright_size
from saywhy.explain.methods import METHODS, explain
from saywhy.explain.request import question

MAPPED = (*METHODS, "uniform")
SCORES = ("positive", "negative", "pointing", "pointing_negative")
SIZES = {"under 5 %": 0.05, "5 to 15 %": 0.15, "15 to 40 %": 0.4, "over 40 %": 1.01}


@audits.register("localisation")
def localisation(bench: AuditContext, cases: EvidenceSet) -> dict[str, Any]:
    """Hold maps against boxes."""
    if bench.phrases is None:
        raise NotApplicable(
            f"{bench.data.name} has no boxes: put boxes.jsonl.gz beside its captions, or give --boxes FILE"
        )
    located = _Located(bench, cases)
    rows = [row for image in cases.with_objects() for row in located.rows(image, cases.of(image))]
    skipped = {"no reference phrase with boxes names it": located.without}
    if not rows:
        raise NotApplicable(
            f"{bench.phrases.path}: no phrase with boxes names an object word of the {len(cases)} captions"
        )
    sure = Bootstrap([row["image"] for row in rows])
    scores = np.stack([row["scores"] for row in rows])  # (N, M, 4)
    areas, kinds = np.array([row["area"] for row in rows]), [row["kind"] for row in rows]
    sizes = [next(name for name, most in SIZES.items() if area < most) for area in areas]
    return {
        "words": len(rows),
        "skipped": skipped,
        "methods": estimates(sure, MAPPED, {name: scores[..., i] for i, name in enumerate(SCORES)}),
        "by_kind": _by(kinds, [kind for kind, _ in Counter(kinds).most_common()], rows, scores, areas),
        "by_size": _by(sizes, list(SIZES), rows, scores, areas),
        "heads": _heads(bench, cases, located, rows) if bench.captioner.heads > 1 else None,
        "checks": _checks(sure, scores),
    }


class _Located:
    """Object words with the boxes of what they name."""

    def __init__(self, bench: AuditContext, cases: EvidenceSet) -> None:
        self.bench, self.cases = bench, cases
        self.without = 0

    def masks(self, image: CaptionedImage, case: ImageEvidence) -> dict[int, tuple[np.ndarray, str]]:
        """By the number of an object word, the pixels inside its boxes and the kind of thing they are of."""
        assert self.bench.phrases is not None
        objects, found = self.bench.objects, {}
        told = [(objects.mentions(each.words), each) for each in self.bench.phrases.of(image.name)]
        heads = [(mentions[-1].lemma, each) for mentions, each in told if mentions]
        size = upright_size(image.path)
        for j, lemma in enumerate(case.lemmas):
            kinds = objects.kinds_of(str(lemma))
            of_word = [each for head, each in heads if head in kinds]
            if of_word:
                boxes = np.concatenate([each.boxes for each in of_word])
                mask = box_mask(boxes, size, self.bench.model.preprocessing, self.bench.side)
                if mask.any():  # a crop may have cut the boxes away
                    found[j] = mask, Counter(each.kind for each in of_word).most_common(1)[0][0]
        return found

    def rows(self, image: CaptionedImage, case: ImageEvidence) -> Iterator[dict[str, Any]]:
        """What is measured of each word that has boxes."""
        masks = self.masks(image, case)
        self.without += len(case.objects) - len(masks)
        for j, (mask, kind) in masks.items():
            maps = np.stack([*(case.maps[method][j] for method in METHODS), np.ones_like(case.maps["lrp"][j])])
            yield {"image": image.name, "kind": kind, "area": mask.mean(), "scores": located(maps, mask)}


def located(maps: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The scores of maps (M, S, S): (M, 4); NaN where a map has nothing of that sign. A flat map points by chance."""
    inside = shares(maps, mask)
    flat = np.ptp(maps, axis=(1, 2)) == 0
    up, down = points(maps, mask).astype(float), points(-maps, mask).astype(float)
    up[np.isnan(inside.positive)], down[np.isnan(inside.negative)] = np.nan, np.nan
    for found in (up, down):
        found[flat & ~np.isnan(found)] = mask.mean()
    return np.stack([inside.positive, inside.negative, up, down], axis=-1)


def _by(
    names: Sequence[str], order: Sequence[str], rows: Sequence[Any], scores: np.ndarray, areas: np.ndarray
) -> dict[str, Any]:
    """The positive share of words of each kind, or size."""
    told = {}
    for name in order:
        these = np.array([each == name for each in names])
        if these.any():
            sure = Bootstrap([row["image"] for row, here in zip(rows, these, strict=True) if here])
            columns = {method: sure.mean(scores[these, m, 0]).as_dict() for m, method in enumerate(MAPPED)}
            told[name] = {"words": int(these.sum()), "area": sure.mean(areas[these]).as_dict(), "methods": columns}
    return told


def _checks(sure: Bootstrap, scores: np.ndarray) -> list[dict[str, Any]]:
    positive, negative = (dict(zip(MAPPED, scores[..., sign].T, strict=True)) for sign in (0, 1))
    told = [
        checked(f"{method} lies inside the boxes more than the uniform map", sure.difference(p, positive["uniform"]))
        for method, p in positive.items()
        if method != "uniform"
    ]
    by_sign, of_attention = (
        sure.difference(positive["lrp"], each) for each in (negative["lrp"], positive["attention"])
    )
    told.append(checked("lrp's positive part lies inside more than its negative", by_sign))
    told.append(checked("lrp lies inside more than attention", of_attention))
    return told


def _heads(bench: AuditContext, cases: EvidenceSet, where: _Located, rows: Sequence[Any]) -> dict[str, Any]:
    """The best head, the mean of heads, and all heads together, of the positive share."""
    kept = bench.kept("heads", phrases=bench.phrases.key if bench.phrases else None)
    named = {row["image"] for row in rows}
    every = [each for each in cases.images if each.name in named]
    images = bench.through(kept, _by_head(bench, cases, where), "hearing heads", every)
    whose, found = [], []
    for image in images:
        values = kept.load(bench.name_of(image))["positive"]  # (N, heads, M)
        whose += [image.name] * len(values)
        found.append(values)
    values = np.concatenate(found)
    together = np.stack([row["scores"][: len(METHODS), 0] for row in rows])  # (N, M)
    empty = np.isnan(values).all(axis=1)
    counts = np.maximum((~np.isnan(values)).sum(axis=1), 1)
    best = np.where(empty, np.nan, np.nanmax(np.nan_to_num(values, nan=-1.0), axis=1))
    mean = np.where(empty, np.nan, np.nansum(values, axis=1) / counts)
    tables = {"best": best, "mean": mean, "all": together}
    sure = Bootstrap(whose)
    return {"words": len(values), "heads": bench.captioner.heads, "methods": estimates(sure, METHODS, tables)}


def _by_head(bench: AuditContext, cases: EvidenceSet, where: _Located) -> Callable[[ImageBatch], Iterator[Arrays]]:
    def compute(seen: ImageBatch) -> Iterator[Arrays]:
        heard = [cases.of(image) for image in seen.images]
        masks = [where.masks(*each) for each in zip(seen.images, heard, strict=True)]
        these = []
        for case, of_row in zip(heard, masks, strict=True):
            these.append(about(case.words.tolist(), [int(case.objects[j]) for j in of_row]))
        asked = question(these, bench.model.vocabulary, None, bench.device)
        found = [np.zeros((len(each), bench.captioner.heads, len(METHODS))) for each in masks]
        for head in range(bench.captioner.heads):
            with bench.captioner.isolate_head(head):
                told = explain(bench.captioner, seen.pixels, seen.boxes, asked, METHODS, bench.rules, bench.chunk)
            for m, method in enumerate(METHODS):
                if method == "attention":
                    squares = on_square(told.maps[method][:, :, head].numpy(), method, told, bench.side)
                else:
                    squares = squared(told, method, bench.side)
                for row, of_row in enumerate(masks):
                    for k, (mask, _) in enumerate(of_row.values()):
                        found[row][k, head, m] = shares(squares[k, row], mask).positive
        yield from ({"positive": each} for each in found)

    return compute
