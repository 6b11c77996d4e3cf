"""Relevance of small functions and of tiny captioners, in few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tiny
from saywhy import encoders
from saywhy.captioners import Captioner
from saywhy.explain.composites import Composite
from saywhy.explain.lrp import Pixels, Relevance
from saywhy.explain.passes import Forward, Question, Relevances, run_relevance

DOUBLE = torch.float64
ROUNDING = {torch.float32: 1e-3, DOUBLE: 1e-9}
"""How far the books of a word may be out of balance, by |logit| where that is above 1 and in float32."""


def random(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass(frozen=True)
class TracingMode:
    """What became of relevance R(out) on its way back through a function of x: R(x) and the accounts (B,)."""

    out: Tensor
    R_out: Tensor
    R: Tensor
    absorbed: Tensor
    start: Tensor

    @property
    def imbalance(self) -> float:
        """What is missing on the books of the worst row."""
        given, found = (each.flatten(1).sum(dim=1) for each in (self.R_out, self.R))
        return float((given - found - self.absorbed - self.start).abs().max())


def traced(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    rules: Composite | None = None,
    attention: str = "constant",
    box: tuple[Tensor, Tensor] | None = None,
) -> TracingMode:
    """Trainer a function under `Relevance` and send relevance back, w · out for random w."""
    x = x.clone().requires_grad_()
    sink = torch.zeros_like(x, requires_grad=True)
    if box is not None:
        low, high = (edge.expand_as(x) for edge in box)
        x.pixels = Pixels(sink, low, high, torch.ones_like(x))  # type: ignore[attr-defined]
    mode = Relevance(rules or Composite(), x, attention)
    with mode:
        out = function(x)
    w = random(*out.shape, seed=1, dtype=out.dtype)
    wanted = [x, sink, mode.absorbed, mode.start]
    g, at_sink, absorbed, start = torch.autograd.grad(out, wanted, w, allow_unused=True, materialize_grads=True)
    return TracingMode(out.detach(), out.detach() * w, g * x.detach() + at_sink, absorbed, start)


def asked(said: Tensor, places: Sequence[int] = (0, 2, 4), words: Sequence[int] = (5, 7, 9)) -> Question:
    """The same places and words of every caption (B, T) from `<start>` on, in question."""
    at, which = (torch.tensor([list(each)] * len(said)) for each in (places, words))
    return Question(said, at, which, torch.full_like(which, -1))


def inputs(captioner: Captioner, kind: str, images: int = 3, seed: int = 0) -> tuple[Tensor, Tensor | None]:
    """Pixels for a "grid"; for "regions" vectors and boxes, and the captioner gets an encoder that takes them."""
    if kind == "grid":
        return tiny.pixels(images, seed=seed), None
    dtype = next(captioner.parameters()).dtype
    captioner.encoder = encoders.build("features:256", weights=None).to(dtype)
    given = tiny.features(images, seed=seed, dtype=dtype, kind="regions")
    return given.vectors, given.boxes


def relevances(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    question: Question,
    rules: Composite | None = None,
    chunk: int = 1,
) -> tuple[Forward, Relevances]:
    return run_relevance(captioner, pixels, boxes, question, rules or Composite(conv_bias=True), chunk)


def unbalanced(forward: Forward, found: Relevances) -> tuple[float, float]:
    """What is missing on the decoder's books and on the encoder's, of the worst word and by what is allowed."""
    logits, image = forward.scores.detach().T, found.places.sum(dim=-1)  # (K, B)
    allowed = ROUNDING[logits.dtype] * (logits.abs().clamp(min=1) if logits.dtype == torch.float32 else 1)
    total = image + found.said.sum(dim=-1) + found.start + found.absorbed
    of_decoder = float(((logits - total).abs() / allowed).max())
    if found.pixels is None:
        return of_decoder, 0.0
    reached = found.pixels.sum(dim=(-1, -2)) + found.absorbed_by_encoder
    return of_decoder, float(((image - reached).abs() / allowed).max())


def close(found: Any, expected: Any, within: float = 1e-9) -> None:
    """Equal but for rounding; what was expected may be nested lists."""
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), rtol=within, atol=within)
