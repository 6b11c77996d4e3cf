"""Sanity: do maps depend on what was learnt, and on the image alone?

`randomised` (Adebayo et al. 2018, https://arxiv.org/abs/1810.03292): the numbers of every tensor are put in another
order, first the decoder's, then the encoder's from the last layers to the first; how far are the maps still those of
the trained model? A method that explains the model should come near zero.
`constant_shift` (Kindermans et al. 2017, https://arxiv.org/abs/1711.00867): a constant is added to all pixels and taken
off again before the first layer. The network says the same, and so should its explanation: one is best.
`moved`: the image is moved by one place to the right. Maps should move along.
`two_words`: how alike the maps of two object words of one caption are. `agreement`: how alike those of two methods.

All are rank correlations of the strength of the maps, summed over patches of 8 × 8 pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from saywhy.audits.context import AuditContext, ImageBatch
from saywhy.audits.evidence import EvidenceSet, ImageEvidence, about, squared
from saywhy.audits.patches import PATCH, patch_sums
from saywhy.audits.result_cache import Arrays
from saywhy.audits.results import audits, checked
from saywhy.audits.statistics import Bootstrap, rank_correlation
from saywhy.captioners.base import Captioner
from saywhy.encoders.base import Encoder
from saywhy.encoders.features import Features
from saywhy.explain.methods import METHODS, explain
from saywhy.explain.request import question

IMAGES = 20
"""Images that are explained again by every altered model."""
PARTS = ("¼", "½", "¾", "whole")
"""Of the encoder, counted by its blocks from the last: what is randomised with the decoder."""
SHIFT = 1.0  # of normalised pixels
BODY = "encoder.body."


@audits.register("sanity")
def sanity(bench: AuditContext, cases: EvidenceSet) -> dict[str, Any]:
    """Explain again with altered weights and altered input."""
    with_objects = cases.with_objects()
    every = np.linspace(0, len(with_objects) - 1, min(IMAGES, len(with_objects))).astype(int)
    chosen = [with_objects[i] for i in every]
    again = _Again(bench, cases)
    kept = bench.kept("sanity", shift=SHIFT, parts=PARTS, patch=PATCH)
    images = bench.through(kept, again, "altering the model", chosen)
    found = [kept.load(bench.name_of(image))["alike"] for image in images]  # (J, changes, M) each
    sure = Bootstrap([each.name for each, values in zip(images, found, strict=True) for _ in values])
    alike = np.concatenate(found)
    table = {
        name: {method: sure.mean(alike[:, i, m]).as_dict() for m, method in enumerate(METHODS)}
        for i, name in enumerate(again.names)
    }
    moved, shifted = table.pop("moved"), table.pop("shifted")
    lowest = again.names.index(f"{PARTS[-1]} encoder")
    checks = [
        checked(f"{method} forgets when all is randomised (correlation below ½)", sure.mean(0.5 - alike[:, lowest, m]))
        for m, method in enumerate(METHODS)
        if method != "attention"
    ]
    return {
        "altered": {"images": len(images), "words": len(alike)},
        "randomised": [{"down_to": name, "methods": methods} for name, methods in table.items()],
        "constant_shift": shifted,
        "moved": moved,
        **_untouched(cases),
        "checks": checks,
    }


class _Again:
    """The same words, explained by altered models."""

    def __init__(self, bench: AuditContext, cases: EvidenceSet) -> None:
        self.bench, self.cases = bench, cases
        self.stages = randomised(bench.captioner)
        self.names = [*self.stages, "shifted", "moved"]

    @cached_property
    def altered(self) -> dict[str, Captioner]:
        """The altered models by name, made when the first image needs them."""
        captioner = self.bench.captioner
        stages = {name: shuffled(captioner, first) for name, first in self.stages.items()}
        return {**stages, "shifted": shifted(captioner)}

    def __call__(self, seen: ImageBatch) -> Iterator[Arrays]:
        bench = self.bench
        heard = [self.cases.of(image) for image in seen.images]
        before = [strengths(case) for case in heard]  # (J, M, P) each
        found = [np.empty((len(case.objects), len(self.names), len(METHODS))) for case in heard]
        step = bench.captioner.encoder.stride
        for i, name in enumerate(self.names):
            if name == "moved" and seen.boxes is not None:
                for each in found:  # boxes would have to move along, and some to leave the image
                    each[:, i] = np.nan
                continue
            if name == "moved":
                maps = self._maps(bench.captioner, seen, heard, lambda pixels: pixels.roll(step, dims=-1))
                maps = [np.roll(each, -step, axis=-1) for each in maps]
            else:
                maps = self._maps(self.altered[name], seen, heard)
            for row, each in enumerate(maps):
                found[row][:, i] = rank_correlation(np.abs(patch_sums(each)), before[row])
        yield from ({"alike": each} for each in found)

    def _maps(
        self,
        captioner: Captioner,
        seen: ImageBatch,
        heard: Sequence[ImageEvidence],
        change: Callable[[Tensor], Tensor] = lambda pixels: pixels,
    ) -> list[np.ndarray]:
        """Of each image, the maps of its object words by every method, (J, M, S, S)."""
        bench = self.bench
        asked = [about(case.words.tolist(), case.objects.tolist()) for case in heard]
        wanted = question(asked, bench.model.vocabulary, None, bench.device)
        told = explain(  # numbers of a network in disorder may be beyond what books can balance in
            captioner, change(seen.pixels), seen.boxes, wanted, METHODS, bench.rules, bench.chunk, refuse=False
        )
        maps = np.stack([squared(told, method, bench.side) for method in METHODS], axis=2)  # (K, B, M, S, S)
        return [maps[: len(case.objects), row] for row, case in enumerate(heard)]


def strengths(case: ImageEvidence) -> np.ndarray:
    """Of each object word and method, the strength of the map over patches, (J, M, P)."""
    return np.abs(np.stack([patch_sums(case.maps[method]) for method in METHODS], axis=1))


def randomised(captioner: Captioner) -> dict[str, int]:
    """By how far down it is randomised, the first of the encoder's blocks that is."""
    count = len(captioner.encoder.blocks())
    ends = [count - round(count * part / len(PARTS)) for part in range(1, len(PARTS) + 1)]
    return {"decoder": count, **dict(zip((f"{part} encoder" for part in PARTS), ends, strict=True))}


def shuffled(captioner: Captioner, first: int) -> Captioner:
    """A copy with each tensor's numbers in another order: the decoder's, and the encoder's from block `first` on."""
    copy, random = deepcopy(captioner), torch.Generator().manual_seed(0)
    for name, values in [*copy.named_parameters(), *copy.named_buffers()]:
        part = name.removeprefix(BODY)
        if not name.startswith("encoder.") or (part != name and copy.encoder.block_of(part) >= first):
            mixed = values.data.flatten()[torch.randperm(values.numel(), generator=random).to(values.device)]
            values.data.copy_(mixed.view_as(values))
    return copy


class Shifted(nn.Module):
    """An encoder whose normalised pixels have a constant added, and taken off before its first layer."""

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder

    def normalise(self, pixels: Tensor) -> Tensor:
        """As the encoder's, and the constant."""
        return self.encoder.normalise(pixels) + SHIFT

    def encode_normalised(self, x: Tensor, boxes: Tensor | None = None) -> Features:
        """As the encoder's, without the constant."""
        return self.encoder.encode_normalised(x - SHIFT, boxes)

    def forward(self, pixels: Tensor, boxes: Tensor | None = None) -> Features:
        """As the encoder's."""
        return self.encode_normalised(self.normalise(pixels), boxes)


def shifted(captioner: Captioner) -> Captioner:
    """A captioner that says the same of the same images, with a constant added to its input."""
    copy = deepcopy(captioner)
    copy.encoder = Shifted(copy.encoder)  # type: ignore[assignment]
    return copy


def _untouched(cases: EvidenceSet) -> dict[str, Any]:
    """Two words of a caption, and two methods, held against one another."""
    whose, pairs, between = [], [], []
    for image in cases.with_objects():
        values = strengths(cases.of(image))  # (J, M, P)
        for i, j in combinations(range(len(values)), 2):
            whose.append(image.name)
            pairs.append(rank_correlation(values[i], values[j]))  # (M,)
        between += [rank_correlation(each[:, None], each[None]) for each in values]  # (M, M) each
    sure = Bootstrap(whose)
    alike = np.array(pairs).reshape(-1, len(METHODS))
    each_word = Bootstrap(range(len(between)), draws=1)
    agreement = np.array(between)  # (N, M, M)
    return {
        "two_words": {method: sure.mean(alike[:, m]).as_dict() for m, method in enumerate(METHODS)},
        "agreement": {
            one: {other: each_word.mean(agreement[:, i, j]).as_dict()["value"] for j, other in enumerate(METHODS)}
            for i, one in enumerate(METHODS)
        },
    }
