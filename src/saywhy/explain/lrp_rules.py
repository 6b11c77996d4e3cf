"""Rules of layer-wise relevance propagation (LRP) as autograd functions, and the composites that choose among them.

The backward pass carries g = R / y, the relevance of a value divided by that value, so that R = y · g. In these terms
most rules are ordinary gradients, and relevance can run on the unchanged model:

    linear, z = Σ_i w_i y_i        R_i = w_i y_i g, so g_i = w_i g                  the gradient itself
    gate, z = σ y, σ constant      R_y = R_z, so g_y = σ g                          the gradient, σ detached
    tanh, ReLU, …, ŷ = f(z)        R_z = R_ŷ, so g_z = (ŷ / z) g                    `ActivationRule`
    ε-rule, z = Σ_i w_i y_i + b    R_i = w_i y_i R_z / (z + ε sign z)               `Epsilon`, then the gradient
    α1β0 and other αβ-rules, γ     for convolutions                                 `lrp_conv`

The ε-rule (eq. 20 of Sun et al. 2021, https://arxiv.org/abs/2001.01037) gives R_i = w_i y_i g' with
g' = g z / (z + ε sign z). The remaining relevance, b g' of the bias and ε sign(z) g' of the stabiliser, is absorbed.
Each rule takes a leaf tensor `absorbed` (B,) as an input and returns the absorbed relevance as its gradient, so that
autograd sums it per image over all layers. Absorbed relevance is never computed as a remainder.

The rules themselves are here and in `lrp_conv`; `composites` chooses among them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from saywhy.errors import UserError


def sum_per_image(g: Tensor, accumulator: Tensor, values: Tensor | float = 1.0) -> Tensor:
    """Σ values · g of each image of the batch, in the shape (B,) of the accumulator.

    The first axis of g is the batch, or its first rows where the other captions have ended, or the batch times the
    windows of an image.
    """
    if not isinstance(values, Tensor):
        rows = _sum_but_first_axis(g) * values
    elif values.ndim == 3 and values.shape[1:] == (1, 1) and g.ndim == 4:  # one value per channel
        rows = g.sum(dim=(2, 3)) @ values[..., 0, 0].expand(g.shape[1])
    else:
        rows = _sum_but_first_axis(g * values)
    if len(rows) < len(accumulator):
        return torch.cat([rows, rows.new_zeros(len(accumulator) - len(rows))])
    return rows if len(rows) == len(accumulator) else rows.unflatten(0, (len(accumulator), -1)).sum(dim=1)


def _sum_but_first_axis(values: Tensor) -> Tensor:
    if values.ndim == 1:  # torch sums over all axes where it is given none
        return values
    return values.sum(dim=tuple(range(1, values.ndim)))  # a reshape would copy tensors in channels-last layout


def stabiliser(z: Tensor, epsilon: float | Tensor) -> Tensor:
    """ε sign(z), with sign(0) = 1."""
    return torch.where(z < 0, -epsilon, epsilon)


def without_masked(values: Tensor) -> Tensor:
    """The values, 0 where they mask a position of a softmax: −∞, or the lowest number of their type or of float32."""
    return torch.where(is_masked(values), 0, values)


def is_masked(values: Tensor) -> Tensor:
    """Where values mask a position of a softmax; the lowest number may have been added to an ordinary one."""
    lowest = max(torch.finfo(values.dtype).min, torch.finfo(torch.float32).min)
    return values <= lowest / 2


class Epsilon(Function):
    """The ε-rule at the output z of a linear map or a sum: forward z, backward g' = g z / (z + ε sign z).

    `bias` is the constant part of z; its share and the stabiliser's are absorbed. With `relative`, ε is multiplied
    by the mean |z| over the last axis.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor | None, absorbed: Tensor, epsilon: float, relative: bool) -> Tensor:
        """Return z unchanged."""
        finite = without_masked(z)  # masked positions have no relevance
        size = epsilon * finite.abs().mean(dim=-1, keepdim=True) if relative else z.new_full((), epsilon)
        e = stabiliser(finite, size.clamp(min=torch.finfo(z.dtype).tiny))
        constant = e if bias is None else e + without_masked(bias)
        ctx.save_for_backward(finite / (finite + e), constant, absorbed)
        return z.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Return g' for z and the absorbed relevance."""
        factor, constant, absorbed = ctx.saved_tensors
        scaled = g * factor
        return scaled, None, sum_per_image(scaled, absorbed, constant), None, None


class ShareByMagnitude(Function):
    """The sum z = a + b of two signals, whose relevance is shared by |a| : |b|: backward g z sign(a) / (|a| + |b|).

    Unlike the ε-rule it absorbs nothing, and neither share can exceed the whole: a / (a + b) explodes where a and b
    cancel out.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        """Return a + b; both have the same shape."""
        total = a.abs() + b.abs()
        z = a + b
        ratio = z / total.clamp(min=torch.finfo(z.dtype).tiny)
        ctx.save_for_backward(ratio * a.sign(), ratio * b.sign())
        return z

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Return g of a and of b."""
        of_a, of_b = ctx.saved_tensors
        return g * of_a, g * of_b


class ActivationRule(Function):
    """An activation ŷ = f(z) passes all its relevance on: backward g ŷ / z, and 0 where z is 0."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, activated: Tensor) -> Tensor:
        """Return ŷ unchanged."""
        ctx.save_for_backward(torch.where(z == 0, 0, activated / z))
        return activated.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return g of z."""
        (slope,) = ctx.saved_tensors
        return g * slope, None


class SplitEqually(Function):
    """A factor y of a product of n signals gets 1/n of its relevance (the uniform rule of AttnLRP): backward g / n."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, n: int) -> Tensor:
        """Return y unchanged."""
        ctx.n = n
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        """Return this factor's share."""
        return g / ctx.n, None


class ConstantRule(Function):
    """A constant c that is used like a signal; its relevance c · g is credited to the leaf `source` (B,)."""

    @staticmethod
    def forward(ctx: Any, constant: Tensor, source: Tensor) -> Tensor:
        """Return c unchanged."""
        ctx.save_for_backward(constant, source)
        return constant.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        """Return the relevance of c, summed per image."""
        constant, source = ctx.saved_tensors
        return None, sum_per_image(without_masked(constant) * g, source)


class Softmax(Function):
    """The softmax s of x, linearised at x (AttnLRP: Achtibat et al. 2024, https://arxiv.org/abs/2402.05602, eq. 13).

    R_i = x_i (R_i^s − s_i Σ_j R_j^s), which is the gradient; the constant term of the linearisation is absorbed.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, absorbed: Tensor) -> Tensor:
        """Return the softmax."""
        s = x.softmax(dim)
        ctx.save_for_backward(x, s, absorbed)
        ctx.dim = dim
        return s

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Return the gradient of x and the absorbed relevance."""
        x, s, absorbed = ctx.saved_tensors
        gradient = s * (g - (s * g).sum(dim=ctx.dim, keepdim=True))
        gradient = torch.where(is_masked(x), 0, gradient)  # not 0 where all positions of a softmax are masked
        relevance = without_masked(x) * gradient
        return gradient, None, sum_per_image(s * g - relevance, absorbed)


class NoRule(Function):
    """The result y of a function that has no rule: relevance that reaches it raises a `UserError`."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, name: str) -> Tensor:
        """Return y unchanged."""
        ctx.name = name
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Refuse to propagate."""
        raise UserError(f"LRP has no rule for {ctx.name}, which this model calls: it cannot be explained")
