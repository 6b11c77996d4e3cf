"""The rules of layer-wise relevance propagation, as autograd functions.

What flows backward in place of a gradient is g = R / y: the relevance of a number by that number, so that R = y · g. In
these terms most rules are ordinary gradients, which is why the model that is explained can be the model:

    linear, z = Σ_i w_i y_i        R_i = w_i y_i g, so g_i = w_i g                  the gradient itself
    gate, z = σ y, σ constant      R_y = R_z, so g_y = σ g                          the gradient, σ detached
    tanh, ReLU, …, ŷ = f(z)        R_z = R_ŷ, so g_z = (ŷ / z) g                    `ActivationRule`
    ε-rule, z = Σ_i w_i y_i + b    R_i = w_i y_i R_z / (z + ε sign z)               `Epsilon`, then the gradient
    α1β0 and its kin               their own, for convolutions                      `convolutions`

The ε-rule (eq. 20 of Sun et al. 2021, https://arxiv.org/abs/2001.01037) gives R_i = w_i y_i g' with
g' = g z / (z + ε sign z). What it does not give on is b g' to the bias and ε sign(z) g' to the stabiliser. Every such
share is sent to an account: a leaf (B,) that each function takes in and whose gradient it returns, so autograd adds up
what was absorbed, row by row and layer by layer, and nothing is ever taken as a remainder.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from saywhy.errors import UserError


def by_row(g: Tensor, account: Tensor, values: Tensor | float = 1.0) -> Tensor:
    """Σ values · g of each row of the batch, (B,).

    The first axis is the batch, or its first rows (the others have ended), or the batch times windows of an image.
    """
    if not isinstance(values, Tensor):
        rows = _of_all_but_the_first(g) * values
    elif values.ndim == 3 and values.shape[1:] == (1, 1) and g.ndim == 4:  # of channels
        rows = g.sum(dim=(2, 3)) @ values[..., 0, 0].expand(g.shape[1])
    else:
        rows = _of_all_but_the_first(g * values)
    if len(rows) < len(account):
        return torch.cat([rows, rows.new_zeros(len(account) - len(rows))])
    return rows if len(rows) == len(account) else rows.unflatten(0, (len(account), -1)).sum(dim=1)


def _of_all_but_the_first(values: Tensor) -> Tensor:
    return values.sum(dim=tuple(range(1, values.ndim)))  # no reshape: it would copy where channels come last


def away_from_zero(z: Tensor, epsilon: float | Tensor) -> Tensor:
    """ε sign(z), with sign(0) = 1."""
    return torch.where(z < 0, -epsilon, epsilon)


class Epsilon(Function):
    """z ↦ z, and g ↦ g' = g z / (z + ε sign z): the ε-rule at the output of a linear map or a sum.

    `bias` is what z has of constants; its share and the stabiliser's go to the account. With `relative`, ε is a share
    of the mean |z| over the last axis.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor | None, account: Tensor, epsilon: float, relative: bool) -> Tensor:
        """Z unchanged."""
        finite = torch.nan_to_num(z, neginf=0.0)  # −∞ hides a place from a softmax, and has no relevance
        size = epsilon * finite.abs().mean(dim=-1, keepdim=True) if relative else z.new_tensor(epsilon)
        e = away_from_zero(finite, size.clamp(min=torch.finfo(z.dtype).tiny))
        rest = e if bias is None else e + torch.nan_to_num(bias, neginf=0.0)
        ctx.save_for_backward(finite / (finite + e), rest, account)
        return z.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The share that goes on, and the sum of what does not."""
        factor, rest, account = ctx.saved_tensors
        kept = g * factor
        return kept, None, by_row(kept, account, rest), None, None


class ActivationRule(Function):
    """(z, ŷ) ↦ ŷ, and g ↦ g ŷ / z: an activation hands its relevance on whole; where z is 0, so is ŷ's relevance."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, activated: Tensor) -> Tensor:
        """Ŷ unchanged."""
        ctx.save_for_backward(torch.where(z == 0, 0, activated / z))
        return activated.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """The same relevance before the activation."""
        (slope,) = ctx.saved_tensors
        return g * slope, None


class SplitEqually(Function):
    """y ↦ y, and g ↦ g / n: of a product of n signals each gets the same (the uniform rule of AttnLRP)."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, n: int) -> Tensor:
        """Y unchanged."""
        ctx.n = n
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Its share."""
        return g / ctx.n, None


class ConstantRule(Function):
    """A constant c ↦ c, whose relevance c · g goes to an account."""

    @staticmethod
    def forward(ctx: Any, constant: Tensor, account: Tensor) -> Tensor:
        """C unchanged."""
        ctx.save_for_backward(constant, account)
        return constant.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        """Its relevance."""
        constant, account = ctx.saved_tensors
        return None, by_row(torch.nan_to_num(constant, neginf=0.0) * g, account)


class Softmax(Function):
    """softmax by its tangent (Achtibat et al. 2024, https://arxiv.org/abs/2402.05602, eq. 13).

    R_i = x_i (R_i^s − s_i Σ_j R_j^s), the gradient's way; what the tangent has of a constant is absorbed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, account: Tensor) -> Tensor:
        """The softmax."""
        s = x.softmax(dim)
        ctx.save_for_backward(x, s, account)
        ctx.dim = dim
        return s

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """The tangent's slopes, and its constant."""
        x, s, account = ctx.saved_tensors
        slopes = s * (g - (s * g).sum(dim=ctx.dim, keepdim=True))
        reached = torch.where(x.isfinite(), x, 0) * slopes  # −∞ is where nothing may be looked at
        return slopes, None, by_row(s * g - reached, account)


class NoRule(Function):
    """Y ↦ y; relevance that comes here is stopped, loudly."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, name: str) -> Tensor:
        """Y unchanged."""
        ctx.name = name
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """No relevance gets through."""
        raise UserError(f"LRP has no rule for {ctx.name}, which this model calls: use other methods, such as gradcam")
