"""Picture ablation: without the patches a method points at, is the word still said?

The LRP paper (https://arxiv.org/abs/2001.01037, section V-B1). For every object word of a caption, the 20 patches of
8 × 8 pixels with the highest sums of a method's map are masked with the training mean, and the picture is captioned
again. A word has vanished where the new caption no longer names the thing ("dogs" for "dog" names it). Beside it, how
far the word's probability falls in its place, after the words that stood before it.

Deletion and insertion curves (Petsiuk et al. 2018, https://arxiv.org/abs/1806.07421) ask the same of every share of the
patches, for one drawn object word a picture: masked from the most relevant on, and shown from there on in a picture
that is all mask. Areas are under the curve of p, over shares from 0 to 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from saywhy.audits.bench import Bench, Seen
from saywhy.audits.cases import Case, Cases
from saywhy.audits.keeping import Arrays
from saywhy.audits.patches import MEAN, PATCH, highest, masked, patch_sums
from saywhy.audits.results import Check, audits, checks_of, estimates
from saywhy.audits.statistics import Bootstrap
from saywhy.data.datasets import Picture
from saywhy.encoders.annotations import Annotations
from saywhy.explain.methods import METHODS

PATCHES = 20
RANKED = (*METHODS, "random")
FRACTIONS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
BETWEEN = FRACTIONS[1:-1]


@audits.register("picture-ablation")
def picture_ablation(bench: Bench, cases: Cases) -> dict[str, Any]:
    """Mask what is relevant, and caption again."""
    ablation = _Ablation(bench, cases)
    kept = bench.kept("picture-ablation", patches=PATCHES, patch=PATCH, mean=MEAN, fractions=FRACTIONS, ranked=RANKED)
    pictures = bench.through(kept, ablation, "masking", cases.with_objects())
    found = [kept.load(bench.name_of(picture)) for picture in pictures]
    return {"patches": PATCHES, "patch": PATCH, **_words(pictures, found), "curves": _curves(pictures, found)}


class _Ablation:
    """The masked pictures of a batch, captioned."""

    def __init__(self, bench: Bench, cases: Cases) -> None:
        self.bench, self.cases = bench, cases

    def __call__(self, seen: Seen) -> Iterator[Arrays]:
        cases = [self.cases.of(picture) for picture in seen.pictures]
        ranks = [relevances(picture, case) for picture, case in zip(seen.pictures, cases, strict=True)]  # (J, M, P)
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
        self, seen: Seen, cases: Sequence[Case], ranks: Sequence[np.ndarray]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Of each picture, word and method: whether the word has vanished, and its probability, (J, M) each."""
        chosen = [highest(each, PATCHES, each[:, -1:]).reshape(-1, each.shape[-1]) for each in ranks]
        asked = [(row, j) for row, case in enumerate(cases) for j in range(len(case.objects)) for _ in RANKED]
        annotations = self._encode(seen, asked, np.concatenate(chosen))
        after = self._probabilities(annotations, cases, asked)
        named = [
            {each.lemma for each in self.bench.objects.mentions(said)} for said in self.bench.captions(annotations)
        ]
        gone = np.array([cases[row].lemmas[j] not in there for (row, j), there in zip(asked, named, strict=True)])
        ends = np.cumsum([len(each) for each in chosen])[:-1]
        return tuple([each.reshape(-1, len(RANKED)) for each in np.split(of, ends)] for of in (gone, after))  # type: ignore[return-value]

    def _curves(self, seen: Seen, cases: Sequence[Case], ranks: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Of one word a picture, p by method and share of patches, (B, M, shares), and at both ends, (B, 2)."""
        pairs = zip(seen.pictures, ranks, strict=True)
        drawn = [int(random_of(picture).integers(len(each))) for picture, each in pairs]
        values = np.stack([each[j] for each, j in zip(ranks, drawn, strict=True)])  # (B, M, P)
        B, P = len(cases), values.shape[-1]
        chance = values[:, -1:]
        first = np.stack([highest(values, round(share * P), chance) for share in BETWEEN], axis=2).reshape(B, -1, P)
        none, every = (np.full((B, 1, P), value) for value in (False, True))
        chosen = np.concatenate([first, ~first, none, every], axis=1)  # (B, 2 · M · shares + 2, P)
        asked = [(row, j) for row, j in enumerate(drawn) for _ in range(chosen.shape[1])]
        annotations = self._encode(seen, asked, chosen.reshape(-1, P))
        p = self._probabilities(annotations, cases, asked).reshape(B, -1)
        deleted, inserted = p[:, :-2].reshape(B, 2, len(RANKED), len(BETWEEN)).swapaxes(0, 1)
        return {"deleted": deleted, "inserted": inserted, "ends": p[:, -2:]}

    def _encode(self, seen: Seen, asked: Sequence[tuple[int, int]], chosen: np.ndarray) -> Annotations:
        """Annotations of the pictures asked about, each with its chosen patches masked."""
        patches = torch.from_numpy(chosen)
        return self.bench.encode(seen, [row for row, _ in asked], lambda pixels, some: masked(pixels, patches[some]))

    def _probabilities(
        self, annotations: Annotations, cases: Sequence[Case], asked: Sequence[tuple[int, int]]
    ) -> np.ndarray:
        """p of each object word asked about, after the words before it."""
        number = self.bench.model.vocabulary.numbers
        numbers = [[number[word] for word in case.words] for case in cases]
        places = [(row, cases[row].objects[j]) for row, j in asked]
        said, words = [numbers[row][:place] for row, place in places], [numbers[row][place] for row, place in places]
        return self.bench.probabilities(annotations, range(len(asked)), said, words)


def relevances(picture: Picture, case: Case) -> np.ndarray:
    """What each method, and at last chance, says of the patches, (J, M, P); of equal patches chance decides."""
    sums = np.stack([patch_sums(case.maps[method]) for method in METHODS], axis=1)
    chance = random_of(picture).random((len(sums), 1, sums.shape[-1]))
    return np.concatenate([sums, chance], axis=1)


def random_of(picture: Picture) -> np.random.Generator:
    """Chance that is the same for a picture whenever it is asked."""
    return np.random.default_rng(int.from_bytes(hashlib.blake2b(picture.name.encode(), digest_size=8).digest()))


def _words(pictures: Sequence[Picture], found: Sequence[Arrays]) -> dict[str, Any]:
    """How often words vanish, and how far their probabilities fall."""
    whose = [picture.name for picture, each in zip(pictures, found, strict=True) for _ in each["before"]]
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


def _curves(pictures: Sequence[Picture], found: Sequence[Arrays]) -> dict[str, Any]:
    sure = Bootstrap([picture.name for picture in pictures])
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
