"""CaptionedImage ablation: without the patches a method points at, is the word still said?

The LRP paper (https://arxiv.org/abs/2001.01037, section V-B1). For every object word of a caption, the 20 patches of
8 × 8 pixels with the highest sums of a method's map are masked with the training mean, and the image is captioned
again. A word has vanished where the new caption no longer names the thing ("dogs" for "dog" names it). Beside it, how
far the word's probability falls in its place, after the words that stood before it.

Deletion and insertion curves (Petsiuk et al. 2018, https://arxiv.org/abs/1806.07421) ask the same of every share of the
patches, for one drawn object word an image: masked from the most relevant on, and shown from there on in an image
that is all mask. Areas are under the curve of p, over shares from 0 to 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from saywhy.audits.context import AuditContext, ImageBatch
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.patches import MEAN, PATCH, highest, masked, patch_sums
from saywhy.audits.result_cache import Arrays
from saywhy.audits.results import Check, audits, checks_of, estimates
from saywhy.audits.statistics import Bootstrap
from saywhy.data.datasets import CaptionedImage
from saywhy.encoders.features import Features
from saywhy.explain.methods import METHODS

PATCHES = 20
RANKED = (*METHODS, "random")
FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
BETWEEN = FRACTIONS[1:-1]


@audits.register("image-ablation")
def image_ablation(bench: AuditContext, cases: EvidenceSet) -> dict[str, Any]:
    """Mask what is relevant, and caption again."""
    ablation = _Ablation(bench, cases)
    kept = bench.kept("image-ablation", patches=PATCHES, patch=PATCH, mean=MEAN, fractions=FRACTIONS, ranked=RANKED)
    images = bench.through(kept, ablation, "masking", cases.with_objects())
    found = [kept.load(bench.name_of(image)) for image in images]
    return {"patches": PATCHES, "patch": PATCH, **_words(images, found), "curves": _curves(images, found)}


class _Ablation:
    """The masked images of a batch, captioned."""

    def __init__(self, bench: AuditContext, cases: EvidenceSet) -> None:
        self.bench, self.cases = bench, cases

    def __call__(self, seen: ImageBatch) -> Iterator[Arrays]:
        cases = [self.cases.of(image) for image in seen.images]
        ranks = [relevances(image, case) for image, case in zip(seen.images, cases, strict=True)]  # (J, M, P)
        vanished, after = self._without_highest(seen, cases, ranks)
        curves = self._curves(seen, cases, ranks)
        for row, case in enumerate(cases):
            yield {
                "before": case.probability[case.objects],
                "vanished": vanished[row],
                "after": after[row],
                **{name: values[row] for name, values in curves.items()},
            }

    def _without_highest(
        self, seen: ImageBatch, cases: Sequence[ImageEvidence], ranks: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Of each image, word and method: whether the word has vanished, and its probability, (J, M) each."""
        chosen = [highest(each, PATCHES, each[:, -1:]).reshape(-1, each.shape[-1]) for each in ranks]
        asked = [(row, j) for row, case in enumerate(cases) for j in range(len(case.objects)) for _ in RANKED]
        features = self._encode(seen, asked, np.concatenate(chosen))
        after = self._probabilities(features, cases, asked)
        named = [{each.lemma for each in self.bench.objects.mentions(said)} for said in self.bench.captions(features)]
        gone = np.array([cases[row].lemmas[j] not in there for (row, j), there in zip(asked, named, strict=True)])
        ends = np.cumsum([len(each) for each in chosen])[:-1]
        return tuple([each.reshape(-1, len(RANKED)) for each in np.split(of, ends)] for of in (gone, after))  # type: ignore[return-value]

    def _curves(
        self, seen: ImageBatch, cases: Sequence[ImageEvidence], ranks: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Of one word an image, p by method and share of patches, (B, M, shares), and at both ends, (B, 2)."""
        pairs = zip(seen.images, ranks, strict=True)
        drawn = [int(random_of(image).integers(len(each))) for image, each in pairs]
        values = np.stack([each[j] for each, j in zip(ranks, drawn, strict=True)])  # (B, M, P)
        B, P = len(cases), values.shape[-1]
        chance = values[:, -1:]
        first = np.stack([highest(values, round(share * P), chance) for share in BETWEEN], axis=2).reshape(B, -1, P)
        none, every = (np.full((B, 1, P), value) for value in (False, True))
        chosen = np.concatenate([first, ~first, none, every], axis=1)  # (B, 2 · M · shares + 2, P)
        asked = [(row, j) for row, j in enumerate(drawn) for _ in range(chosen.shape[1])]
        features = self._encode(seen, asked, chosen.reshape(-1, P))
        p = self._probabilities(features, cases, asked).reshape(B, -1)
        deleted, inserted = p[:, :-2].reshape(B, 2, len(RANKED), len(BETWEEN)).swapaxes(0, 1)
        return {"deleted": deleted, "inserted": inserted, "ends": p[:, -2:]}

    def _encode(self, seen: ImageBatch, asked: Sequence[tuple[int, int]], chosen: np.ndarray) -> Features:
        """Features of the images asked about, each with its chosen patches masked."""
        patches = torch.from_numpy(chosen)
        return self.bench.encode(seen, [row for row, _ in asked], lambda pixels, some: masked(pixels, patches[some]))

    def _probabilities(
        self, features: Features, cases: Sequence[ImageEvidence], asked: Sequence[tuple[int, int]]
    ) -> np.ndarray:
        """p of each object word asked about, after the words before it."""
        number = self.bench.model.vocabulary.numbers
        numbers = [[number[word] for word in case.words] for case in cases]
        places = [(row, cases[row].objects[j]) for row, j in asked]
        said, words = [numbers[row][:place] for row, place in places], [numbers[row][place] for row, place in places]
        return self.bench.probabilities(features, range(len(asked)), said, words)


def relevances(image: CaptionedImage, case: ImageEvidence) -> np.ndarray:
    """What each method, and at last chance, says of the patches, (J, M, P); of equal patches chance decides."""
    sums = np.stack([patch_sums(case.maps[method]) for method in METHODS], axis=1)
    chance = random_of(image).random((len(sums), 1, sums.shape[-1]))
    return np.concatenate([sums, chance], axis=1)


def random_of(image: CaptionedImage) -> np.random.Generator:
    """Chance that is the same for an image whenever it is asked."""
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(image.name.encode(), digest_size=8).digest()))


def _words(images: Sequence[CaptionedImage], found: Sequence[Arrays]) -> dict[str, Any]:
    """How often words vanish, and how far their probabilities fall."""
    whose = [image.name for image, each in zip(images, found, strict=True) for _ in each["before"]]
    vanished, after, before = (_joined(found, name) for name in ("vanished", "after", "before"))
    drops = before.reshape(-1, 1) - after.reshape(len(before), -1)  # (N, M)
    rows = {"vanished": vanished.astype(float), "drop": drops, "dropped": (drops > 0).astype(float)}
    sure = Bootstrap(whose)
    pairs = (("lrp", "random"), ("lrp", "attention"), ("guided-gradcam", "random"), ("attention", "random"))
    claims = [Check(f"{one} makes more words vanish than {other}", one, other) for one, other in pairs]
    return {
        "words": len(before),
        "methods": estimates(sure, RANKED, rows),
        "checks": checks_of(sure, claims, dict(zip(RANKED, rows["vanished"].T, strict=True))),
    }


def _curves(images: Sequence[CaptionedImage], found: Sequence[Arrays]) -> dict[str, Any]:
    sure = Bootstrap([image.name for image in images])
    ends = np.stack([each["ends"] for each in found]) if found else np.zeros((0, 2))
    told: dict[str, Any] = {"words": len(found), "fractions": FRACTIONS}
    for name, key, (first, last) in (("deletion", "deleted", (0, 1)), ("insertion", "inserted", (1, 0))):
        inner = np.stack([each[key] for each in found]) if found else np.zeros((0, len(RANKED), len(BETWEEN)))
        edges = [np.repeat(ends[:, [which]], len(RANKED), 1)[..., None] for which in (first, last)]
        p = np.concatenate([edges[0], inner, edges[1]], axis=-1)  # (N, M, F)
        areas = np.trapezoid(p, FRACTIONS, axis=-1)
        means = p.mean(axis=0) if len(p) else np.full(p.shape[1:], np.nan)
        told[name] = {
            method: {"curve": means[m].tolist(), "area": sure.mean(areas[:, m]).as_dict()}
            for m, method in enumerate(RANKED)
        }
    return told


def _joined(found: Sequence[Arrays], name: str) -> np.ndarray:
    parts = [each[name] for each in found]
    return np.concatenate(parts) if parts else np.zeros((0, len(RANKED)) if name != "before" else 0)
