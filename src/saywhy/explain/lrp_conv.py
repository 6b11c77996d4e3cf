"""LRP rules of convolutions.

With inputs x_i, weights w_ij, output z_j = Σ_i x_i w_ij + b_j, and (·)⁺, (·)⁻ the positive and negative parts:

    ε:    R_i = Σ_j x_i w_ij / (z_j + ε sign z_j) R_j
    αβ:   R_i = Σ_j (α (x_i w_ij)⁺ / z_j⁺ − β (x_i w_ij)⁻ / z_j⁻) R_j,  β = α − 1,  z_j^± = Σ_i (x_i w_ij)^± (+ b_j^±)
    γ:    R_i = Σ_j (x_i w_ij + γ (x_i w_ij)^s) / (z_j + γ z_j^s) R_j,  s the sign of z_j
    flat: R_i = Σ_j 1 / Σ_i 1 R_j
    box:  R_i = Σ_j (x_i w_ij − l_i w_ij⁺ − h_i w_ij⁻) / Σ_i (x_i w_ij − l_i w_ij⁺ − h_i w_ij⁻) R_j,  l ≤ x ≤ h

(Bach et al. 2015; Montavon et al. 2017 and 2019). The α-rule of the LRP paper (eq. 21) with its α = 0 is αβ with α = 1
and β = 0. (x w)⁺ is x⁺ w⁺ + x⁻ w⁻, so one transposed convolution suffices where no input is negative.

Relevance is propagated as g = R / y (see `lrp_rules`). Everything that does not depend on the explained word is
computed once for all words; `torch.func.vmap` maps only the backward pass over words.
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
from saywhy.explain.lrp_rules import stabiliser, sum_per_image

SMALLEST = 1e-9
"""Added to denominators that may be zero; relevance that reaches no input is absorbed."""

Geometry = tuple[list[int], list[int], list[int], int]
"""Stride, padding and dilation (vertical, horizontal), and the number of groups."""


class Layer(NamedTuple):
    """A convolution with its input and output."""

    x: Tensor
    weight: Tensor
    bias: Tensor  # (C, 1, 1)
    z: Tensor
    geometry: Geometry
    composite: Composite
    has_negative_input: bool = False  # never after a ReLU, which halves the work

    def convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        """The same convolution of another input with other weights, without bias."""
        return F.conv2d(x, weight, None, *self.geometry)

    def transposed(self, weight: Tensor, g: Tensor) -> Tensor:
        """Σ_j w_ij g_j: the transposed convolution, in the memory layout of x, which is faster."""
        stride, padding, dilation, groups = self.geometry
        gradients = torch.ops.aten.convolution_backward(
            g, self.x, weight, None, stride, padding, dilation, False, [0, 0], groups, [True, False, False]
        )
        return gradients[0]

    def signed_sum(self, sign: int) -> Tensor:
        """Σ_i (x_i w_ij)⁺ for sign 1, Σ_i (x_i w_ij)⁻ for sign −1."""
        positive_inputs = self.convolve(self.x.clamp(min=0), signed_part(self.weight, sign))
        if not self.has_negative_input:
            return positive_inputs
        return positive_inputs + self.convolve(self.x.clamp(max=0), signed_part(self.weight, -sign))


class Term(NamedTuple):
    """One term of a rule, with g'_j = factor_j g_j.

    An input gets g_i += Σ_j w_ij g'_j, where positive and negative inputs may have different weights;
    constant_j g'_j, the share of bias and stabiliser, is absorbed.
    """

    factor: Tensor
    weights: tuple[Tensor, ...]  # for positive and negative inputs, or one for all
    constant: Tensor | float

    def propagate(self, layer: Layer, g: Tensor, is_positive: Tensor) -> Tensor:
        """The inputs' share of g'."""
        if len(self.weights) == 1:
            return layer.transposed(self.weights[0], g)
        positive, negative = (layer.transposed(weight, g) for weight in self.weights)
        return torch.lerp(negative, positive, is_positive)  # exact at 0 and 1, and much faster than `where`


Rule = Callable[[Layer], list[Term]]


def signed_part(values: Tensor, sign: int) -> Tensor:
    """The positive part for sign 1, the negative part for −1."""
    return values.clamp(min=0) if sign > 0 else values.clamp(max=0)


def epsilon_rule(layer: Layer) -> list[Term]:
    """Inputs in proportion to their contribution to z."""
    z, epsilon = layer.z, layer.composite.epsilon
    size = epsilon * z.abs().mean(dim=1, keepdim=True) if layer.composite.relative_epsilon else z.new_tensor(epsilon)
    e = stabiliser(z, size.clamp(min=SMALLEST))
    return [Term(z / (z + e), (layer.weight,), e + layer.bias)]


def alpha_beta_rule(layer: Layer) -> list[Term]:
    """Positive contributions get α times their share of the positive sum, negative ones −β of the negative sum."""
    alpha, weight, terms = layer.composite.alpha, layer.weight, []
    for sign, coefficient in ((1, alpha), (-1, 1 - alpha)):
        if coefficient == 0:
            continue
        constant = sign * SMALLEST + (signed_part(layer.bias, sign) if layer.composite.conv_bias else 0)
        factor = coefficient * layer.z / (layer.signed_sum(sign) + constant)
        weights = signed_part(weight, sign), signed_part(weight, -sign)
        terms.append(Term(factor, weights if layer.has_negative_input else weights[:1], constant))
    return terms


def gamma_rule(layer: Layer) -> list[Term]:
    """Inputs in proportion to their contribution, increased by γ where it has the sign of the output."""
    gamma, z, weight, bias = layer.composite.gamma, layer.z, layer.weight, layer.bias * layer.composite.conv_bias
    terms = []
    for sign, has_sign in ((1, z >= 0), (-1, z < 0)):
        constant = bias + gamma * signed_part(bias, sign) + sign * SMALLEST
        factor = torch.where(has_sign, z / (z - layer.bias + gamma * layer.signed_sum(sign) + constant), 0)
        weights = tuple(weight + gamma * signed_part(weight, part) for part in (sign, -sign))
        terms.append(Term(factor, weights if layer.has_negative_input else weights[:1], constant))
    return terms


RULES: dict[str, Rule] = {"epsilon": epsilon_rule, "alpha-beta": alpha_beta_rule, "gamma": gamma_rule}


class Convolution(Function):
    """A convolution and the activation after it, x ↦ z ↦ y: backward applies the composite's rule.

    An activation passes its relevance on unchanged, so one function covers both.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        z: Tensor,
        y: Tensor,
        absorbed: Tensor,
        geometry: Geometry,
        composite: Composite,
    ) -> Tensor:
        """Return y unchanged."""
        bias = z.new_zeros(1) if bias is None else bias
        ctx.save_for_backward(x, weight, bias.view(-1, 1, 1), z, y, absorbed)
        ctx.settings, ctx.prepared = (geometry, composite), None
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Return g of the input and the absorbed relevance."""
        layer, terms, is_positive, absorbed = ctx.prepared or Convolution.prepare(ctx)
        if not is_batchedtensor(g):  # words in separate passes share it
            ctx.prepared = layer, terms, is_positive, absorbed
        scaled = [g * term.factor for term in terms]
        inputs = [term.propagate(layer, g_term, is_positive) for term, g_term in zip(terms, scaled, strict=True)]
        sums = [sum_per_image(g_term, absorbed, term.constant) for term, g_term in zip(terms, scaled, strict=True)]
        return _sum(inputs), None, None, None, None, _sum(sums), None, None

    @staticmethod
    def prepare(ctx: Any) -> tuple[Layer, list[Term], Tensor, Tensor]:
        """Everything that is the same for all words."""
        x, weight, bias, z, y, absorbed = ctx.saved_tensors
        geometry, composite = ctx.settings
        layer = Layer(x, weight, bias, z, geometry, composite, has_negative_input=bool((x < 0).any()))
        return layer, _terms(layer, y), (x > 0).to(x), absorbed


def _sum(parts: list[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])


def _terms(layer: Layer, y: Tensor) -> list[Term]:
    """The rule's terms for g of y instead of z; both have the same relevance."""
    slope = torch.where(layer.z == 0, 0, y / layer.z)
    return [term._replace(factor=term.factor * slope) for term in RULES[layer.composite.convolution](layer)]


class FirstConvolution(Function):
    """The flat or box rule for the first convolution, x ↦ y, where a pixel of value 0 may have relevance.

    Such relevance cannot be written as x · g: it is returned as the gradient of `sink`, a tensor like x.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        sink: Tensor,
        weight: Tensor,
        y: Tensor,
        absorbed: Tensor,
        geometry: Geometry,
        composite: Composite,
        bounds: tuple[Tensor, Tensor, Tensor],
    ) -> Tensor:
        """Return y unchanged; `bounds` are low, high and 1 for pixels, 0 for padding."""
        ctx.save_for_backward(x.detach(), weight, y, absorbed, *bounds)
        ctx.settings = geometry, composite
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """Return the relevance of pixels and the absorbed relevance."""
        x, weight, y, absorbed, low, high, is_pixel = ctx.saved_tensors
        layer = Layer(x, weight, y.new_zeros(1), y, *ctx.settings)
        if layer.composite.first == "flat":
            terms = [(is_pixel, torch.ones_like(weight))]
        else:
            low_term = (-low.expand_as(x), signed_part(weight, 1))
            high_term = (-high.expand_as(x), signed_part(weight, -1))
            terms = [(x, weight), low_term, high_term]
        denominator = torch.stack([layer.convolve(*term) for term in terms]).sum(dim=0) + SMALLEST
        scaled = g * y / denominator
        relevance = [values * layer.transposed(weights, scaled) for values, weights in terms]
        return None, _sum(relevance), None, None, sum_per_image(scaled, absorbed, SMALLEST), None, None, None
