"""From a batch's evidence to one explanation an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from saywhy.data.regions import has_area
from saywhy.explain.explanation import Budget, Explanation, Word
from saywhy.explain.methods import OVER_PLACES, Evidence
from saywhy.explain.request import Asked


def explanation_of(
    row: int,
    asked: Asked,
    evidence: Evidence,
    instead: str | None,
    methods: Sequence[str],
    risks: Sequence[float | None],
    **about: Any,
) -> Explanation:
    """The explanation of the image in this row of the batch; `risks` are those of its words."""
    K = len(asked.words)
    maps = {method: _numpy(values[:K, row]) for method, values in evidence.maps.items()}
    boxes = None
    if evidence.features.boxes is not None:
        boxes = _numpy(evidence.features.boxes[row])
        there = has_area(boxes)
        boxes = boxes[there]
        is_over_places = {*OVER_PLACES} | ({*maps} if evidence.relevances.pixels is None else set())
        maps |= {method: maps[method][..., there] for method in maps if method in is_over_places}
    words = tuple(_word(k, row, asked, evidence, instead, risks[k]) for k in range(K))
    return Explanation(
        tokens=asked.tokens,
        words=words,
        methods=tuple(method for method in methods if method in maps),
        maps=maps,
        grid=evidence.features.grid,
        boxes=boxes,
        **about,
    )


def _word(k: int, row: int, asked: Asked, evidence: Evidence, instead: str | None, risk: float | None) -> Word:
    place, told = asked.places[k], evidence.relevances
    said = told.said[k, row]
    earlier = {method: values[k, row, 1 : place + 1].tolist() for method, values in evidence.earlier.items()}
    return Word(
        word=asked.words[k],
        position=place,
        said=asked.tokens[place],
        instead=instead,
        logit=float(evidence.scores[row, k]),
        probability=float(evidence.probabilities[row, k]),
        budget=Budget(
            image=float(told.places[k, row].double().sum()),
            words=float(said[1:].double().sum()),
            start=float(said[0] + told.start[k, row]),
            absorbed=float(told.absorbed[k, row]),
        ),
        pixels=None if told.pixels is None else float(told.pixels[k, row].double().sum()),
        absorbed_by_encoder=float(told.absorbed_by_encoder[k, row]),
        earlier=earlier,
        beta=None if evidence.beta is None else float(evidence.beta[row, k]),
        risk=risk,
    )


def _numpy(values: Tensor) -> np.ndarray:
    return values.detach().float().cpu().numpy()
