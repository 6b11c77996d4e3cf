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

A composite names the rule of each kind of layer:

| name | linear layers and sums | convolutions | first convolution |
| --- | --- | --- | --- |
| `epsilon-plus` | ε = 0.01 | α1β0, biases take their share (z⁺) | the same |
| `paper` | ε = 0.01 | α1β0, biases get nothing, as in the LRP paper's code | the same |
| `epsilon-plus-flat` | ε = 0.01 | α1β0, biases take their share | flat |
| `epsilon-plus-box` | ε = 0.01 | α1β0, biases take their share | box (z^B) |
| `epsilon-gamma-box` | ε = 0.01 | γ = 0.25 | box (z^B) |
| `alpha2-beta1` | ε = 0.01 | α2β1, biases take their share | the same |
| `epsilon` | ε = 0.01 | ε = 0.01 | the same |

Attention weights are constants, as in the LRP paper, except in transformers, where AttnLRP's rules propagate through
them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from saywhy.errors import UserError, did_you_mean

CHOICES = {
    "convolution": ("epsilon", "alpha-beta", "gamma"),
    "first": (None, "flat", "box"),
    "attention": (None, "constant", "attnlrp"),
}
RANGES = {"epsilon": (0, 1e6), "gamma": (0, 1e6), "alpha": (1, 1e6)}


@dataclass(frozen=True)
class Composite:
    """A choice of rules.

    Attributes:
        epsilon: ε of linear layers and sums.
        relative_epsilon: multiply ε by the layer's mean |z|.
        convolution: "epsilon", "alpha-beta" or "gamma".
        alpha: α of the αβ-rule; β = α − 1.
        gamma: γ of the γ-rule.
        conv_bias: biases of convolutions take their share, as in zennit; without, as in the LRP paper's code, all
            relevance goes to the inputs (the ε-rule always gives biases their share).
        first: the rule of the first convolution: None for that of the others, "flat", or "box".
        attention: "constant" or "attnlrp" for every model; None chooses by architecture (see above).
    """

    epsilon: float = 0.01
    relative_epsilon: bool = False
    convolution: str = "alpha-beta"
    alpha: float = 1.0
    gamma: float = 0.25
    conv_bias: bool = False
    first: str | None = None
    attention: str | None = None

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise UserError(f"unknown {name} {value!r}: {did_you_mean(str(value), filter(None, choices))}")
        for name, (lowest, highest) in RANGES.items():
            if not lowest <= getattr(self, name) <= highest:
                raise UserError(f"{name} = {getattr(self, name):g} is out of range: use {lowest} to {highest:g}")

    def __str__(self) -> str:
        """The composite's name, followed by ε where that is changed; `explanation.json` stores this.

        >>> print(composite("paper"))
        paper
        >>> print(composite("paper", epsilon=0.1, relative_epsilon=True))
        paper, ε 0.1 relative
        """
        for name, named in composites.items():
            if replace(self, epsilon=named.epsilon, relative_epsilon=named.relative_epsilon) == named:
                epsilon = f", ε {self.epsilon:g}{' relative' if self.relative_epsilon else ''}"
                return name if self == named else f"{name}{epsilon}"
        return "custom"


DEFAULT = "epsilon-plus"

composites: dict[str, Composite] = {
    "epsilon-plus": Composite(conv_bias=True),
    "paper": Composite(),
    "epsilon-plus-flat": Composite(conv_bias=True, first="flat"),
    "epsilon-plus-box": Composite(conv_bias=True, first="box"),
    "epsilon-gamma-box": Composite(convolution="gamma", conv_bias=True, first="box"),
    "alpha2-beta1": Composite(alpha=2.0, conv_bias=True),
    "epsilon": Composite(convolution="epsilon"),
}


def composite(name: str, epsilon: float | None = None, relative_epsilon: bool = False) -> Composite:
    """A named composite, optionally with another ε."""
    if name not in composites:
        raise UserError(f"unknown composite {name!r}: {did_you_mean(name, composites)}")
    named = replace(composites[name], relative_epsilon=relative_epsilon)
    return named if epsilon is None else replace(named, epsilon=epsilon)


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


class Epsilon(Function):
    """The ε-rule at the output z of a linear map or a sum: forward z, backward g' = g z / (z + ε sign z).

    `bias` is the constant part of z; its share and the stabiliser's are absorbed. With `relative`, ε is multiplied
    by the mean |z| over the last axis.
    """

    @staticmethod
    def forward(ctx: Any, z: Tensor, bias: Tensor | None, absorbed: Tensor, epsilon: float, relative: bool) -> Tensor:
        """Return z unchanged."""
        finite = torch.nan_to_num(z, neginf=0.0)  # −∞ masks a position of a softmax, and has no relevance
        size = epsilon * finite.abs().mean(dim=-1, keepdim=True) if relative else z.new_full((), epsilon)
        e = stabiliser(finite, size.clamp(min=torch.finfo(z.dtype).tiny))
        constant = e if bias is None else e + torch.nan_to_num(bias, neginf=0.0)
        ctx.save_for_backward(finite / (finite + e), constant, absorbed)
        return z.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Return g' for z and the absorbed relevance."""
        factor, constant, absorbed = ctx.saved_tensors
        scaled = g * factor
        return scaled, None, sum_per_image(scaled, absorbed, constant), None, None


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
        return None, sum_per_image(torch.nan_to_num(constant, neginf=0.0) * g, source)


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
        relevance = torch.where(x.isfinite(), x, 0) * gradient  # −∞ marks masked positions
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
