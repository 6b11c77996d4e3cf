"""Hallucination: do the explanations of made-up words look different?

The LRP paper (https://arxiv.org/abs/2001.01037, section V-C1, Table II). An object word is true if some reference of
its image has the word, in the singular or plural, a synonym, or a narrower word for it; else it is made up. Each
statistic is measured by its AUC: the chance that it is higher for a true word than for a made-up one. Every occurrence
of a word counts. The paper's list is the most frequent object words; all of them are told of beside it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.results import NotApplicable, audits, checked
from saywhy.audits.statistics import Bootstrap
from saywhy.explain.methods import METHODS
from saywhy.hallucination.labels import few_references, is_supported

FREQUENT = 20
STATISTICS = ("quantile 5 %", "quantile 50 %", "max", "mean")


@dataclass(frozen=True)
class Words:
    """All object words of a bench's captions.

    Attributes:
        images: whose caption each is from, N of them.
        lemmas: what each names.
        true: which are attested, (N,).
        others: by name, statistics that are no method's, (N,).
        statistics: of the methods' maps, (N, M, 4).
    """

    images: list[str]
    lemmas: np.ndarray
    true: np.ndarray
    others: dict[str, np.ndarray]
    statistics: np.ndarray


def gather(bench: AuditContext, cases: EvidenceSet) -> Words:
    """The object words of all captions; a `NotApplicable` where there is none."""
    there = {image.name for image in cases.with_objects()}
    found = [(image, case) for image, case in cases if image.name in there]
    counts = [len(case.objects) for _, case in found]
    images = [image.name for (image, _), n in zip(found, counts, strict=True) for _ in range(n)]
    lemmas = np.concatenate([case.lemmas for _, case in found])
    true = is_supported(bench.objects, bench.references, images, lemmas)
    others = {name: np.concatenate([of(case) for _, case in found]) for name, of in _others(bench).items()}
    others = {name: values for name, values in others.items() if not np.isnan(values).all()}  # not all have a gate
    statistics = np.concatenate([statistics_of(cases.of(image)) for image, _ in found])
    return Words(images, lemmas, true, others, statistics)


def _others(bench: AuditContext) -> dict[str, Any]:
    """What the model itself knows of an object word."""
    admits_words = bench.captioner.gate_admits == "words"

    def gate(case: ImageEvidence) -> np.ndarray:
        beta = case.beta[case.objects]
        return 1 - beta if admits_words else beta

    return {
        "1 − β" if admits_words else "β": gate,
        "attention entropy": lambda case: case.entropy[case.objects],
        "probability": lambda case: case.probability[case.objects],
        "image share": lambda case: case.share[case.objects],
    }


def statistics_of(case: ImageEvidence) -> np.ndarray:
    """Of each object word's maps, (J, M, 4)."""
    maps = np.stack([case.maps[method].reshape(len(case.objects), -1) for method in METHODS], axis=1)  # (J, M, S²)
    low, middle = np.quantile(maps, (0.05, 0.5), axis=-1)
    return np.stack([low, middle, maps.max(axis=-1), maps.mean(axis=-1)], axis=-1)


@audits.register("hallucination")
def hallucination(bench: AuditContext, cases: EvidenceSet) -> dict[str, Any]:
    """Tell made-up words from true ones by one statistic at a time."""
    words = gather(bench, cases)
    if words.true.all() or not words.true.any():
        kind = "true" if words.true.all() else "made up"
        raise NotApplicable(f"all {len(words.true)} object words are {kind}: there is nothing to tell apart")
    said_by_people = (words for each in bench.references.values() for words in each)
    named = Counter(mention.lemma for words in said_by_people for mention in bench.objects.mentions(words))
    frequent = [lemma for lemma, _ in named.most_common(FREQUENT)]
    every = _aucs(words, np.ones(len(words.true), bool))
    chosen = _aucs(words, np.isin(words.lemmas, frequent))
    said = Counter(words.lemmas.tolist())
    made_up = Counter(words.lemmas[~words.true].tolist())
    references = [len(each) for each in bench.references.values()]
    return {
        "words": len(words.true),
        "made_up": int((~words.true).sum()),
        "references": float(np.mean(references)),
        "notes": few_references(bench.references),
        "frequent": {"list": frequent, **chosen},
        "every": every,
        "by_word": [{"word": lemma, "said": n, "made_up": made_up[lemma]} for lemma, n in said.most_common(FREQUENT)],
        "checks": _checks(words, np.isin(words.lemmas, frequent)),
    }


def _aucs(words: Words, these: np.ndarray) -> dict[str, Any]:
    true = words.true[these]
    sure = Bootstrap([name for name, here in zip(words.images, these, strict=True) if here])
    statistics = words.statistics[these]
    return {
        "words": int(these.sum()),
        "made_up": int((~true).sum()),
        "statistics": {
            method: {name: sure.auc(statistics[:, m, s], true).as_dict() for s, name in enumerate(STATISTICS)}
            for m, method in enumerate(METHODS)
        },
        "others": {name: sure.auc(values[these], true).as_dict() for name, values in words.others.items()},
    }


def _checks(words: Words, these: np.ndarray) -> list[dict[str, Any]]:
    true, images = words.true[these], [name for name, here in zip(words.images, these, strict=True) if here]
    sure = Bootstrap(images)
    low = words.statistics[these, METHODS.index("lrp"), 0]
    half = np.zeros(len(low))  # a statistic that says nothing: AUC ½
    told = [checked("lrp's 5 % quantile is higher for true words", sure.auc_difference(low, half, true))]
    for name, values in words.others.items():
        if name.endswith("β"):
            told.append(checked(f"{name} is higher for true words", sure.auc_difference(values[these], half, true)))
            told.append(
                checked(
                    f"lrp's 5 % quantile tells them apart better than {name}",
                    sure.auc_difference(low, values[these], true),
                )
            )
    return told
