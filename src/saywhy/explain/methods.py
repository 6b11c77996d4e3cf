"""The methods, and what each says of a batch of words.

| method | pixels | earlier words |
| --- | --- | --- |
| `lrp` | relevance, signed | relevance, the sum over the embedding |
| `gradcam` | ReLU of features weighted by their mean gradients | the sum of the embedding's gradients |
| `guided-backprop` | the gradient, the encoder's ReLUs guided | the same |
| `guided-gradcam` | the two multiplied | the same |
| `gradient-input` | gradient × pixel | gradient × embedding, summed |
| `attention` | α, each head and the mean | none: attention looks at the image alone |

Of transformers the sum of an embedding's gradients is zero, and there is no weight for earlier words by it.

As the LRP paper (Sun et al. 2021, section IV) defines them for captioners.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.data.preprocess import enlarged, in_boxes
from saywhy.decoding.config import log_probabilities
from saywhy.encoders.features import Features
from saywhy.errors import UserError, closest
from saywhy.explain.composites import Composite
from saywhy.explain.gradients import GuidedMode, grad_cam
from saywhy.explain.passes import Forward, Question, Relevances, run_gradients, run_relevance

METHODS = ("lrp", "gradcam", "guided-gradcam", "guided-backprop", "gradient-input", "attention")
OVER_PLACES = ("gradcam", "attention")
"""Methods whose maps are over places, not over pixels."""


@dataclass(frozen=True)
class Evidence:
    """What the methods say of K words of B images.

    Attributes:
        scores: the logits, or their differences, that were explained, (B, K).
        probabilities: of the words, (B, K).
        log_p: of every word of the vocabulary in their places, (B, K, V).
        alpha: attention at each word, (B, K, [heads,] L).
        beta: the gate at each word, (B, K), or None.
        features: what was looked at.
        maps: by method, (K, B, S, S), or over places (K, B, [heads,] L).
        earlier: by method, a weight for each word read, (K, B, T), `<start>` first.
        relevances: LRP in full: the evidence budget is made of it.
    """

    scores: Tensor
    probabilities: Tensor
    log_p: Tensor
    alpha: Tensor
    beta: Tensor | None
    features: Features
    maps: dict[str, Tensor]
    earlier: dict[str, Tensor]
    relevances: Relevances


def known(methods: Iterable[str]) -> tuple[str, ...]:
    """The methods, each once; a `UserError` where there is no such method."""
    methods = methods.split(",") if isinstance(methods, str) else methods
    methods = tuple(dict.fromkeys(each.strip() for each in methods))
    if not methods:
        raise UserError(f"name a method to explain with, of {', '.join(METHODS)}")
    for each in methods:
        if each not in METHODS:
            raise UserError(f"unknown method {each!r}: {closest(each, METHODS)}")
    return methods


def explain(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    question: Question,
    methods: Sequence[str],
    composite: Composite,
    chunk: int,
    to_pixels: bool = True,
    refuse: bool = True,
) -> Evidence:
    """Explain K words of each of B images (B, 3, S, S).

    LRP always runs: the budget comes from it. `chunk` words go back at a time. Without `to_pixels` nothing goes back
    through the encoder: earlier words, budgets and maps over places are the same, maps over pixels are left out.
    Books that do not balance are refused, unless `refuse` is off.
    """
    forward, relevances = run_relevance(captioner, pixels, boxes, question, composite, chunk, to_pixels, refuse)
    forward = forward.detached()  # its graph is large, and gradients have one of their own
    alpha = question.at_places(forward.attention.alpha).cpu()
    maps: dict[str, Tensor] = {}
    earlier = {"lrp": relevances.said}
    if "lrp" in methods and (to_pixels or pixels.ndim < 4):
        maps["lrp"] = relevances.places if relevances.pixels is None else relevances.pixels
    if "attention" in methods:
        maps["attention"] = alpha.transpose(0, 1)
    if set(methods) - {"lrp", "attention"}:
        there = run_gradients(captioner, pixels, boxes, question, chunk, to_pixels)
        _gradients(*there, methods, maps, earlier, to_pixels, sums_tell=not captioner.propagates_through_attention)
    log_p = log_probabilities(question.at_places(forward.logits))
    p = log_p.gather(-1, question.words.unsqueeze(-1)).squeeze(-1).exp().cpu()
    log_p = log_p.cpu()
    beta = None if forward.attention.beta is None else question.at_places(forward.attention.beta).cpu()
    ordered = {method: maps[method] for method in methods if method in maps}
    return Evidence(forward.scores.cpu(), p, log_p, alpha, beta, forward.features, ordered, earlier, relevances)


def _gradients(
    forward: Forward,
    mode: GuidedMode,
    methods: Sequence[str],
    maps: dict[str, Tensor],
    earlier: dict[str, Tensor],
    to_pixels: bool,
    sums_tell: bool,
) -> None:
    """Fill in the maps and weights of the gradient methods.

    A transformer's layer norm takes a constant off again that is added to an embedding, so the sum of an embedding's
    gradients is zero and tells nothing: such a captioner has no weights for words by these methods.
    """
    vectors, x, has_pixels = forward.features.vectors, forward.x, forward.x.ndim == 4
    g, of_embedded, _ = forward.from_words()
    if sums_tell:
        plain = forward.by_word(of_embedded)
        earlier |= {method: plain for method in methods if method in ("gradcam", "guided-gradcam", "guided-backprop")}
    cam = grad_cam(vectors, g)  # (K, B, L)
    maps["gradcam"] = cam
    if "gradient-input" in methods:
        pairs = zip(of_embedded, forward.embedded, strict=True)
        earlier["gradient-input"] = forward.by_word([each * E.detach() for each, E in pairs])
    if has_pixels and not to_pixels:
        return
    if "gradient-input" in methods:
        gx = forward.traced(vectors, (x,), g)[0] if has_pixels else g
        maps["gradient-input"] = (gx * x.detach()).sum(dim=2 if has_pixels else -1)
    if not {"guided-backprop", "guided-gradcam"} & set(methods):
        return
    with mode.guided():
        gx = forward.traced(vectors, (x,), g)[0] if has_pixels else g
    guided = gx.sum(dim=2 if has_pixels else -1)  # (K, B, S, S), or (K, B, L) of given features
    maps["guided-backprop"] = guided
    maps["guided-gradcam"] = guided * (_over_pixels(cam, forward) if has_pixels else cam)


def _over_pixels(cam: Tensor, forward: Forward) -> Tensor:
    """A map over places on the encoder's square, (K, B, S, S)."""
    grid, S = forward.features.grid, forward.x.shape[-1]
    if grid is not None:
        return torch.from_numpy(enlarged(cam.unflatten(-1, grid).cpu().numpy(), S)).to(cam)
    assert forward.features.boxes is not None
    boxes = forward.features.boxes.float().cpu().numpy()  # (B, L, 4)
    rows = [zip(of_word, boxes, strict=True) for of_word in cam.cpu().numpy()]
    squares = [[in_boxes(values, where, (S, S), (0, 0, S, S)) for values, where in row] for row in rows]
    return torch.from_numpy(np.array(squares)).to(cam)
