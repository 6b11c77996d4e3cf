"""LRP rules of convolutions.

With the inputs x_i, weights w_ij, output z_j = Σ_i x_i w_ij + b_j, and (·)⁺, (·)⁻ the positive and negative parts:

    ε:    R_i = Σ_j x_i w_ij / (z_j + ε sign z_j) R_j
    αβ:   R_i = Σ_j (α (x_i w_ij)⁺ / z_j⁺ − β (x_i w_ij)⁻ / z_j⁻) R_j,  β = α − 1,  z_j^± = Σ_i (x_i w_ij)^± (+ b_j^±)
    γ:    R_i = Σ_j (x_i w_ij + γ (x_i w_ij)^s) / (z_j + γ z_j^s) R_j,  s the sign of z_j
    flat: R_i = Σ_j 1 / Σ_i 1 R_j
    box:  R_i = Σ_j (x_i w_ij − l_i w_ij⁺ − h_i w_ij⁻) / Σ_i (x_i w_ij − l_i w_ij⁺ − h_i w_ij⁻) R_j,  l ≤ x ≤ h

(Bach et al. 2015; Montavon et al. 2017 and 2019). The α-rule of the LRP paper (eq. 21) with its α = 0 is αβ with α = 1
and β = 0. (x w)⁺ is x⁺ w⁺ + x⁻ w⁻, so where no input is negative one transposed convolution does it.

Relevance comes and goes as g = R / y (see `rules`). What does not depend on the word that is explained is computed
once for all words: `torch.func.vmap` maps the backward pass over words, and over nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.autograd import Function
from torch.nn import functional as F

from saywhy.explain.composites import Composite
from saywhy.explain.lrp_rules import away_from_zero, by_row

SMALLEST = 1e-9
"""Keeps denominators off zero where nothing came in; what then has nowhere to go is absorbed."""


Geometry = tuple[list[int], list[int], list[int], int]
"""Stride, padding and dilation, down and across, and the number of groups."""


class Layer(NamedTuple):
    """A convolution that has run."""

    x: Tensor
    weight: Tensor
    bias: Tensor  # (C, 1, 1)
    z: Tensor
    geometry: Geometry
    composite: Composite
    is_signed: bool = False  # whether some input is negative: after a ReLU none is, and half of the work falls away

    def of(self, x: Tensor, weight: Tensor) -> Tensor:
        """The same convolution of another input by other weights, without bias."""
        return F.conv2d(x, weight, None, *self.geometry)

    def back(self, weight: Tensor, sent: Tensor) -> Tensor:
        """Σ_j w_ij of what the outputs send: the transposed convolution, in the memory layout of x, which is faster."""
        stride, padding, dilation, groups = self.geometry
        given = torch.ops.aten.convolution_backward(
            sent, self.x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
        )
        return given[0]

    def part(self, sign: int) -> Tensor:
        """Σ_i (x_i w_ij)⁺ for sign 1, Σ_i (x_i w_ij)⁻ for sign −1."""
        above = self.of(self.x.clamp(min=0), side(self.weight, sign))
        return above + self.of(self.x.clamp(max=0), side(self.weight, -sign)) if self.is_signed else above


class Share(NamedTuple):
    """A part of a rule, in terms of g'_j = factor_j g_j.

    An input gets g_i += Σ_j w_ij g'_j, with other weights below 0 than above; rest_j g'_j, the share of bias and
    stabiliser, is absorbed.
    """

    factor: Tensor
    weights: tuple[Tensor, ...]  # above and below, or one for all
    rest: Tensor | float

    def reached(self, layer: Layer, sent: Tensor, above_zero: Tensor) -> Tensor:
        """What g' sends to the inputs."""
        if len(self.weights) == 1:
            return layer.back(self.weights[0], sent)
        above, below = (layer.back(weight, sent) for weight in self.weights)
        return torch.lerp(below, above, above_zero)  # exact at 0 and at 1, and much faster than `where`


Rule = Callable[[Layer], list[Share]]


def side(values: Tensor, sign: int) -> Tensor:
    """The positive part for sign 1, the negative part for −1."""
    return values.clamp(min=0) if sign > 0 else values.clamp(max=0)


def epsilon_rule(layer: Layer) -> list[Share]:
    """All inputs by what they contributed."""
    z, epsilon = layer.z, layer.composite.epsilon
    size = epsilon * z.abs().mean(dim=1, keepdim=True) if layer.composite.relative else z.new_tensor(epsilon)
    e = away_from_zero(z, size.clamp(min=SMALLEST))
    return [Share(z / (z + e), (layer.weight,), e + layer.bias)]


def alpha_beta_rule(layer: Layer) -> list[Share]:
    """Positive contributions by α of what they are together, negative ones by −β."""
    alpha, weight, shares = layer.composite.alpha, layer.weight, []
    for sign, much in ((1, alpha), (-1, 1 - alpha)):
        if much == 0:
            continue
        rest = sign * SMALLEST + (side(layer.bias, sign) if layer.composite.conv_bias else 0)
        factor = much * layer.z / (layer.part(sign) + rest)
        weights = side(weight, sign), side(weight, -sign)
        shares.append(Share(factor, weights if layer.is_signed else weights[:1], rest))
    return shares


def gamma_rule(layer: Layer) -> list[Share]:
    """All inputs by what they contributed, and γ times as much again for those of the output's sign."""
    gamma, z, weight, bias = layer.composite.gamma, layer.z, layer.weight, layer.bias * layer.composite.conv_bias
    shares = []
    for sign, here in ((1, z >= 0), (-1, z < 0)):
        rest = bias + gamma * side(bias, sign) + sign * SMALLEST
        factor = torch.where(here, z / (z - layer.bias + gamma * layer.part(sign) + rest), 0)
        weights = tuple(weight + gamma * side(weight, each) for each in (sign, -sign))
        shares.append(Share(factor, weights if layer.is_signed else weights[:1], rest))
    return shares


RULES: dict[str, Rule] = {"epsilon": epsilon_rule, "alpha-beta": alpha_beta_rule, "gamma": gamma_rule}


class Convolution(Function):
    """A convolution and its activation that have run, x ↦ z ↦ y; backward goes relevance by the composite's rule.

    An activation hands on what it gets, so that one function does for both, and the work of a rule is done once for
    all words.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        z: Tensor,
        y: Tensor,
        account: Tensor,
        geometry: Geometry,
        composite: Composite,
    ) -> Tensor:
        """Y unchanged."""
        bias = z.new_zeros(1) if bias is None else bias
        ctx.save_for_backward(x, weight, bias.view(-1, 1, 1), z, y, account)
        ctx.how, ctx.known = (geometry, composite), None
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Relevance by input, and what was absorbed."""
        layer, shares, above_zero, account = ctx.known or Convolution.prepared(ctx)
        if not is_batchedtensor(g):  # the next word, in a pass of its own, will find it done
            ctx.known = layer, shares, above_zero, account
        sent = [g * share.factor for share in shares]
        reached = [share.reached(layer, each, above_zero) for share, each in zip(shares, sent, strict=True)]
        absorbed = [by_row(each, account, share.rest) for share, each in zip(shares, sent, strict=True)]
        return _total(reached), None, None, None, None, _total(absorbed), None, None

    @staticmethod
    def prepared(ctx: Any) -> tuple[Layer, list[Share], Tensor, Tensor]:
        """What no word changes."""
        x, weight, bias, z, y, account = ctx.saved_tensors
        geometry, composite = ctx.how
        layer = Layer(x, weight, bias, z, geometry, composite, is_signed=bool((x < 0).any()))
        return layer, _shares(layer, y), (x > 0).to(x), account


def _total(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])


def _shares(layer: Layer, y: Tensor) -> list[Share]:
    """The rule's shares, in terms of the relevance of y, which is that of z."""
    passed = torch.where(layer.z == 0, 0, y / layer.z)
    shares = RULES[layer.composite.convolution](layer)
    return [share._replace(factor=share.factor * passed) for share in shares]


class FirstConvolution(Function):
    """As `Convolution`, by the flat or the box rule, under which a pixel of value 0 may have relevance too.

    The relevance goes to `sink`, which stands for the pixels, as it is and not by pixel.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sink: Tensor,
        weight: Tensor,
        y: Tensor,
        account: Tensor,
        geometry: Geometry,
        composite: Composite,
        box: tuple[Tensor, Tensor, Tensor],
    ) -> Tensor:
        """Y unchanged."""
        ctx.save_for_backward(x.detach(), weight, y, account, *box)
        ctx.how = geometry, composite
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Relevance of pixels, and what was absorbed."""
        x, weight, y, account, low, high, there = ctx.saved_tensors
        layer = Layer(x, weight, y.new_zeros(1), y, *ctx.how)
        if layer.composite.first == "flat":
            terms = [(there, torch.ones_like(weight))]
        else:
            terms = [(x, weight), (-low.expand_as(x), side(weight, 1)), (-high.expand_as(x), side(weight, -1))]
        below = torch.stack([layer.of(*term) for term in terms]).sum(dim=0) + SMALLEST
        sent = g * y / below
        given = [value * layer.back(by, sent) for value, by in terms]
        return None, _total(given), None, None, by_row(sent, account, SMALLEST), None, None, None
