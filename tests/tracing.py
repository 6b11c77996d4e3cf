"""Helpers for tests: relevance of small functions and of tiny captioners, and which operations a function calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import tiny
from saywhy import encoders
from saywhy.captioners import Captioner
from saywhy.explain.composites import Composite
from saywhy.explain.lrp import LRPMode, PixelInput
from saywhy.explain.passes import Forward, Relevance, Targets, run_lrp
from saywhy.explain.tracing import current

DOUBLE = torch.float64
ROUNDING = {torch.float32: 1e-3, DOUBLE: 1e-9}
"""Largest error of conservation by rounding; in float32 relative to max(1, |logit|)."""


def randn(*shape: int, seed: int = 0, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass(frozen=True)
class Propagation:
    """Relevance R_out of a function's output, propagated to its input x: R of x, absorbed, and of constants (B,)."""

    out: Tensor
    R_out: Tensor
    R: Tensor
    absorbed: Tensor
    initial_state: Tensor

    @property
    def conservation_error(self) -> float:
        """Relevance that is missing, in the worst row of the batch."""
        total, reached = (R.flatten(1).sum(dim=1) for R in (self.R_out, self.R))
        return float((total - reached - self.absorbed - self.initial_state).abs().max())


def propagate(
    function: Callable[[Tensor], Tensor],
    x: Tensor,
    composite: Composite | None = None,
    attention: str = "constant",
    bounds: tuple[Tensor, Tensor] | None = None,
) -> Propagation:
    """Run a function under `LRPMode` and propagate R_out = w · out for random w."""
    x = x.clone().requires_grad_()
    sink = torch.zeros_like(x, requires_grad=True)
    if bounds is not None:
        low, high = (bound.expand_as(x) for bound in bounds)
        x.pixel_input = PixelInput(sink, low, high, torch.ones_like(x))  # type: ignore[attr-defined]
    mode = LRPMode(composite or Composite(), x, attention)
    with mode:
        out = current(function(x))
    w = randn(*out.shape, seed=1, dtype=out.dtype)
    leaves = [x, sink, mode.absorbed, mode.initial_state]
    g, at_sink, absorbed, initial_state = torch.autograd.grad(out, leaves, w, allow_unused=True, materialize_grads=True)
    return Propagation(out.detach(), out.detach() * w, g * x.detach() + at_sink, absorbed, initial_state)


def make_targets(tokens: Tensor, positions: Sequence[int] = (0, 2, 4), words: Sequence[int] = (5, 7, 9)) -> Targets:
    """The same positions and words for every caption (B, T) from `<start>` on."""
    repeated = [torch.tensor([list(row)] * len(tokens)) for row in (positions, words)]
    return Targets(tokens, *repeated, torch.full_like(repeated[1], -1))


def inputs(captioner: Captioner, kind: str, images: int = 3, seed: int = 0) -> tuple[Tensor, Tensor | None]:
    """Pixels for a "grid"; for "regions" vectors and boxes, and the captioner gets an encoder that takes them."""
    if kind == "grid":
        return tiny.pixels(images, seed=seed), None
    dtype = next(captioner.parameters()).dtype
    captioner.encoder = encoders.build("features:256", weights=None).to(dtype)
    features = tiny.features(images, seed=seed, dtype=dtype, kind="regions")
    return features.vectors, features.boxes


def relevance_of(
    captioner: Captioner,
    pixels: Tensor,
    boxes: Tensor | None,
    targets: Targets,
    composite: Composite | None = None,
    words_per_pass: int = 1,
) -> tuple[Forward, Relevance]:
    return run_lrp(captioner, pixels, boxes, targets, composite or Composite(conv_bias=True), words_per_pass)


def conservation_errors(forward: Forward, relevance: Relevance) -> tuple[float, float]:
    """The largest errors in the decoder and in the encoder, divided by what rounding allows."""
    logits, image = forward.scores.detach().T, relevance.features.sum(dim=-1)  # (K, B)
    allowed = ROUNDING[logits.dtype] * (logits.abs().clamp(min=1) if logits.dtype == torch.float32 else 1)
    total = image + relevance.tokens.sum(dim=-1) + relevance.initial_state + relevance.absorbed
    in_decoder = float(((logits - total).abs() / allowed).max())
    if relevance.pixels is None:
        return in_decoder, 0.0
    reached = relevance.pixels.sum(dim=(-1, -2)) + relevance.absorbed_by_encoder
    return in_decoder, float(((image - reached).abs() / allowed).max())


def assert_close(actual: Any, expected: Any, within: float = 1e-9) -> None:
    """Equal up to rounding; `expected` may be nested lists."""
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=within, atol=within)


class Operations(TorchDispatchMode):
    """Records the names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))
