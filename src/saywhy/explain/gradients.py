"""Gradients of a captioner, plain and guided.

Guided backpropagation (Springenberg et al. 2015, https://arxiv.org/abs/1412.6806): on its way back through a ReLU a
gradient is also stopped where it is negative. As in the LRP paper, the encoder's ReLUs are guided, and nothing else is.

The modes see torch functions, not modules: a ReLU counts whether it is a module, a function, in place, or one module
used many times, and nothing is left behind when an error is raised. Gradients are the model's own: attention and
gates are differentiated like everything else.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from saywhy.explain.tracing import TracingMode, signals, variants

CELLS = frozenset(variants("lstm_cell"))
RECTIFIERS = frozenset(variants("relu", "relu_", "relu6", "hardtanh", "hardtanh_"))


class GradientMode(TracingMode):
    """Gradients reach word embeddings and stop there.

    Attributes:
        embedded: the word embeddings that were looked up, one after another.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedded: list[Tensor] = []

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The function's own result."""
        if func in CELLS:
            return _lstm_cell(*args, **kwargs)
        out = func(*args, **kwargs)
        if func is F.embedding:
            self.embedded.append(out.requires_grad_())
        return out


def _lstm_cell(
    x: Tensor, state: tuple[Tensor, Tensor], W: Tensor, U: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The cell in plain operations: a GPU's fused one cannot go back for many words at once."""
    h, c = state
    i, f, g, o = (F.linear(x, W, b_x) + F.linear(h, U, b_h)).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class GuidedMode(TracingMode):
    """Backward passes after a forward pass under this mode can be guided.

    Attributes:
        is_guided: whether they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_guided = False

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The function's own result."""
        if func in RECTIFIERS and signals(args):
            x, *rest = args
            return Rectified.apply(x, func(x.detach(), *rest, **kwargs), self)
        return func(*args, **kwargs)

    @contextmanager
    def guided(self) -> Iterator[None]:
        """Guide the backward passes in this block."""
        self.is_guided = True
        try:
            yield
        finally:
            self.is_guided = False


class Rectified(Function):
    """A rectifier that has run, x ↦ y: its gradient is 1 where y follows x, and 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, mode: GuidedMode) -> Tensor:
        """Y unchanged."""
        ctx.save_for_backward((x == y) & (y != 0))
        ctx.mode = mode
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """The gradient, guided if the mode says so."""
        (follows,) = ctx.saved_tensors
        return (g.clamp(min=0) if ctx.mode.is_guided else g) * follows, None, None


def grad_cam(vectors: Tensor, g: Tensor) -> Tensor:
    """Grad-CAM over features (B, L, D) with gradients (K, B, L, D): (K, B, L), not negative.

    Selvaraju et al. 2017 (https://arxiv.org/abs/1610.02391): ReLU(Σ_d w_d a_d), w_d the mean gradient of channel d.
    """
    weights = g.mean(dim=2)  # (K, B, D)
    return torch.einsum("kbd,bld->kbl", weights, vectors.detach()).clamp(min=0)
