"""Word ablation: without the earlier words a method points at, is the word still likely?

The LRP paper (https://arxiv.org/abs/2001.01037, section V-B1). For every word with at least six before it, the three
that a method weighs most are taken out of what was said; the rest is read in its order, the image stays, and the
word's probability is looked at again. Object words and stop words are told apart.

Grad-CAM, Guided Grad-CAM and guided backprop weigh words by the sum of the same gradients, and are one row, `gradient`;
`gradient-size` takes these sums without their sign. Of transformers they are zero, and the rows empty. Attention looks
at the image alone and has no weights for words; here an earlier word counts as much as what was looked at for it
resembles what is looked at now. `last` takes out the three words just before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from saywhy.audits.context import AuditContext, ImageBatch
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.image_ablation import random_of
from saywhy.audits.result_cache import Arrays
from saywhy.audits.results import Check, NotApplicable, audits, checks_of, estimates
from saywhy.audits.statistics import Bootstrap
from saywhy.data.datasets import CaptionedImage
from saywhy.data.stop_words import STOP_WORDS

FIRST = 6  # words before the first that is looked at
TAKEN = 3
WEIGHED = {"lrp": "lrp", "gradient": "gradcam", "gradient-size": "gradcam", "gradient-input": "gradient-input"}
RANKED = (*WEIGHED, "attention", "random", "last")
KINDS = ("object", "stop")


@audits.register("word-ablation")
def word_ablation(bench: AuditContext, cases: EvidenceSet) -> dict[str, Any]:
    """Take relevant words away, and look at the probability again."""
    kept = bench.kept("word-ablation", first=FIRST, taken=TAKEN, ranked=RANKED, stop_words=sorted(STOP_WORDS))
    ablation = _Ablation(bench, cases)
    long = [each for each, case in cases if _places(case)]
    if not long:
        raise NotApplicable(f"no object word or stop word of {len(cases)} captions has {FIRST} words before it")
    images = bench.through(kept, ablation, "leaving words out", long)
    found = [kept.load(bench.name_of(image)) for image in images]
    whose = np.array([image.name for image, each in zip(images, found, strict=True) for _ in each["kind"]])
    kinds, drops = (np.concatenate([each[name] for each in found]) for name in ("kind", "drops"))
    told: dict[str, Any] = {"first": FIRST, "taken": TAKEN, "checks": []}
    for number, kind in enumerate(KINDS):
        these = kinds == number
        sure, drop = Bootstrap(whose[these].tolist()), drops[these]
        rows = {"drop": drop, "dropped": np.where(np.isnan(drop), np.nan, drop > 0)}
        told[kind] = {"words": int(these.sum()), "methods": estimates(sure, RANKED, rows)}
        claims = [
            Check(f"{one} lowers the probability of {kind} words more than {other}", one, other)
            for one in WEIGHED
            for other in ("random", "attention")
        ]
        told["checks"] += checks_of(sure, claims, dict(zip(RANKED, drop.T, strict=True)))
    return told


class _Ablation:
    """What is left of a batch's captions, read again."""

    def __init__(self, bench: AuditContext, cases: EvidenceSet) -> None:
        self.bench, self.cases = bench, cases

    def __call__(self, seen: ImageBatch) -> Iterator[Arrays]:
        cases = [self.cases.of(image) for image in seen.images]
        features = self.bench.encode(seen)
        number = self.bench.model.vocabulary.numbers
        rows, said, words = [], [], []
        for row, (image, case) in enumerate(zip(seen.images, cases, strict=True)):
            numbers = [number[word] for word in case.words]
            for place, taken in zip(_places(case), _taken(image, case), strict=True):
                for out in taken:
                    rows.append(row)
                    said.append([each for i, each in enumerate(numbers[:place]) if i not in out])
                    words.append(numbers[place])
        p = self.bench.probabilities(features, rows, said, words)
        start = 0
        for case in cases:
            places = _places(case)
            after = p[start : start + len(places) * len(RANKED)].reshape(len(places), len(RANKED))
            start += after.size
            kinds = [0 if place in case.objects else 1 for place in places]
            drops = case.probability[places][:, None] - after
            drops[:, [name in WEIGHED and WEIGHED[name] not in case.earlier for name in RANKED]] = np.nan
            yield {"kind": np.array(kinds), "drops": drops}


def _places(case: ImageEvidence) -> list[int]:
    """Where words stand that are looked at: object words and stop words with enough before them."""
    late = range(FIRST, len(case.words))
    return [place for place in late if place in case.objects or case.words[place] in STOP_WORDS]


def _taken(image: CaptionedImage, case: ImageEvidence) -> Iterator[list[set[int]]]:
    """Of each place, the words that each method takes out."""
    chance, looked = random_of(image), case.alpha / np.linalg.norm(case.alpha, axis=1, keepdims=True)
    for place in _places(case):
        none = np.zeros_like(case.earlier["lrp"])
        weights = {name: case.earlier.get(method, none)[place, :place] for name, method in WEIGHED.items()}
        weights["gradient-size"] = np.abs(weights["gradient-size"])
        weights["attention"] = looked[:place] @ looked[place]
        weights["random"] = chance.random(place)
        weights["last"] = np.arange(place)
        yield [set(np.argsort(-weights[name], kind="stable")[:TAKEN].tolist()) for name in RANKED]
