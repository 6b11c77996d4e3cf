"""Relevance through a whole model: rules that switch on around the model's own operations.

While `Relevance` is active, every torch function the model calls passes through it. Where relevance has a way of its
own the rule takes the function's place and gives the same numbers; a linear function needs none, since what flows
backward is relevance by value (see `rules`); parameters are constants. So any model of torch functions can be
explained as it stands, whether it calls modules or functions, in place or not, one layer once or often, and no hook is
left behind. Relevance that comes to a function without a rule raises an error, and is never let through unseen.

    gates (sigmoid)             constants: the signal takes all
    attention (softmax)         constants, as the LRP paper has it, or AttnLRP's tangent
    a product of two signals    half to each; of a signal and a constant, all to the signal
    sums, linear maps           the ε-rule
    normalisation               its mean is linear, its variance a constant; a batch norm after a convolution is folded
    tanh, ReLU, ReLU6, GELU, …  hand on what they get
    LSTM cell                   the three gates are constants; c' = f c + i tanh(g) and g by the ε-rule
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.utils import _pair

from saywhy.errors import UserError
from saywhy.explain.composites import Composite
from saywhy.explain.lrp_conv import Convolution, FirstConvolution, Geometry
from saywhy.explain.lrp_rules import ActivationRule, ConstantRule, Epsilon, NoRule, Softmax, SplitEqually
from saywhy.explain.tracing import TracingMode, is_linear, is_signal, mapped, signals, variants

RULES: dict[Any, Callable[..., Any]] = {}


def rule(*functions: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the rule of some torch functions."""

    def register(body: Callable[..., Any]) -> Callable[..., Any]:
        RULES.update(dict.fromkeys(functions, body))
        return body

    return register


def refused(value: Any, func: Any) -> Any:
    """A result of a function without a rule, through which no relevance comes."""
    return NoRule.apply(value, getattr(func, "__name__", str(func))) if is_signal(value) else value


class Pixels(NamedTuple):
    """What the first convolution may need of its input: where relevance goes, its bounds, and 1 where it is a pixel."""

    sink: Tensor
    low: Tensor
    high: Tensor
    there: Tensor  # 0 where a pixel is padding


class Made(NamedTuple):
    """How a convolution came to its output: for a batch norm, and then an activation, to fold itself into it."""

    x: Tensor
    weight: Tensor
    bias: Tensor | None
    z: Tensor
    geometry: Geometry


class Relevance(TracingMode):
    """The rules, switched on for a forward pass; the backward passes after it carry relevance.

    Args:
        composite: which rule goes where.
        like: a tensor of the batch, for its number of rows and its precision.
        attention: "constant" or "attnlrp", unless the composite says which.

    Attributes:
        absorbed: the account of biases and stabilisers, (B,).
        start: the account of constants that are read like signals: initial states, learned tokens.
        embedded: the word embeddings that were looked up, one after another.
    """

    def __init__(self, composite: Composite, like: Tensor, attention: str = "constant") -> None:
        super().__init__()
        self.composite = composite
        self.attention = composite.attention or attention
        self.absorbed, self.start = (like.new_zeros(len(like), requires_grad=True) for _ in range(2))
        self.embedded: list[Tensor] = []

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A rule's result where there is a rule and something to explain; else the function's."""
        if func is F.embedding:
            self.embedded.append(func(*args, **kwargs).requires_grad_())
            return self.embedded[-1]
        if func in RULES and signals(args, kwargs):
            return RULES[func](self, func, *args, **kwargs)
        out = func(*args, **kwargs)
        return out if is_linear(func) else mapped(lambda each: refused(each, func), out)

    def stabilised(self, z: Tensor, bias: Tensor | float | None = None) -> Tensor:
        """The ε-rule at z, a linear map or a sum of which `bias` is the constant part."""
        if isinstance(bias, int | float):
            bias = z.new_tensor(bias)
        return Epsilon.apply(z, bias, self.absorbed, self.composite.epsilon, self.composite.relative)

    def as_constant_source(self, value: Tensor) -> Tensor:
        """A constant that is read like a signal, on the account `start`."""
        return value if is_signal(value) else ConstantRule.apply(value, self.start)

    def affine(self, out: Tensor, constant: Tensor) -> Tensor:
        """A function's result of which `constant`, its result for zeros, is read like a signal."""
        return out if not constant.any() else out - constant + self.as_constant_source(constant)

    def attended(self, energies: Tensor, dim: int) -> Tensor:
        """The softmax of energies."""
        if self.attention == "constant":
            return energies.detach().softmax(dim)
        return Softmax.apply(energies, dim, self.absorbed)

    def convolved(self, made: Made, y: Tensor) -> Tensor:
        """Y, which a convolution made of its input, with whatever came after it and is folded into it."""
        x, weight, bias, z, geometry = made
        pixels = getattr(x, "pixels", None)
        if pixels is not None and self.composite.first is not None:
            how = (self.absorbed, geometry, self.composite, pixels[1:])
            return FirstConvolution.apply(x, pixels.sink, weight, y, *how)
        return Convolution.apply(x, weight, bias, z, y, self.absorbed, geometry, self.composite)


@rule(*variants("linear"))
def _linear(on: Relevance, func: Any, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return on.stabilised(func(x, weight, bias), bias)


@rule(*variants("conv2d"))
def _conv2d(
    on: Relevance,
    func: Any,
    input: Tensor,  # torch's own names: callers may use them
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str):
        reach = [step * (k - 1) for step, k in zip(_pair(dilation), weight.shape[2:], strict=True)]
        around = [(each // 2, each - each // 2) for each in reversed(reach)]  # the last axis first
        input = input if padding == "valid" else _pad(on, F.pad, input, [each for pair in around for each in pair])
        padding = 0
    geometry = (list(_pair(stride)), list(_pair(padding)), list(_pair(dilation)), groups)
    made = Made(input, weight, bias, func(input.detach(), weight, bias, *geometry), geometry)
    return _with(made, on.convolved(made, made.z))


def _with(made: Made, out: Tensor) -> Tensor:
    out.made = made  # type: ignore[attr-defined]
    return out


@rule(*variants("batch_norm"))
def _batch_norm(on: Relevance, func: Any, x: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    y = func(x.detach(), *rest, **kwargs)
    zero = x.new_zeros(1, x.shape[1], *[1] * (x.ndim - 2))
    shift = func(zero, *rest, **kwargs).flatten()  # (C)
    scale = func(zero + 1, *rest, **kwargs).flatten() - shift
    made = getattr(x, "made", None)
    if made is None:
        wide = (-1, *[1] * (x.ndim - 2))
        return on.stabilised(x * scale.view(wide) + shift.view(wide), shift.view(wide))
    bias = shift if made.bias is None else shift + scale * made.bias
    folded = Made(made.x, made.weight * scale.view(-1, 1, 1, 1), bias, y, made.geometry)
    return _with(folded, on.convolved(folded, y))


@rule(*variants("layer_norm"))
def _layer_norm(
    on: Relevance,
    func: Any,
    x: Tensor,
    normalized_shape: Any,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    axes = tuple(range(-len(normalized_shape), 0))
    spread = x.detach().var(dim=axes, correction=0, keepdim=True).add(eps).sqrt()
    y = (x - x.mean(dim=axes, keepdim=True)) / spread
    y = y if weight is None else y * weight
    return on.stabilised(y if bias is None else y + bias, bias)


@rule(*variants("add", "__add__", "__radd__"))
def _add(on: Relevance, func: Any, a: Any, b: Any, *, alpha: float = 1) -> Tensor:
    z = torch.add(a, b, alpha=alpha) if isinstance(a, Tensor) else torch.add(b, a)
    bias = next((each for each in (a, b if alpha == 1 else alpha * b) if not is_signal(each)), None)
    return on.stabilised(z, bias)


@rule(*variants("sub", "subtract", "__sub__"))
def _sub(on: Relevance, func: Any, a: Any, b: Any, *, alpha: float = 1) -> Tensor:
    return _add(on, func, a, _product(on, torch.mul, b, -alpha) if is_signal(b) else -alpha * b)


@rule(*variants("rsub", "__rsub__"))
def _rsub(on: Relevance, func: Any, a: Any, b: Any) -> Tensor:
    return _sub(on, func, b, a)


@rule(*variants("mul", "multiply", "__mul__", "__rmul__", "matmul", "__matmul__", "bmm", "einsum"))
def _product(on: Relevance, func: Any, *args: Any, **kwargs: Any) -> Tensor:
    number = len(signals(args, kwargs))
    if number > 1:
        args, kwargs = mapped(
            lambda each: SplitEqually.apply(each, number) if is_signal(each) else each, (args, kwargs)
        )
    return func(*args, **kwargs)


@rule(*variants("div", "divide", "true_divide", "__truediv__", "__div__"))
def _div(on: Relevance, func: Any, a: Any, b: Any) -> Tensor:
    return a / (b.detach() if isinstance(b, Tensor) else b)  # what divides is a scale, and a constant


@rule(*variants("sigmoid", "hardsigmoid"))
def _gate(on: Relevance, func: Any, x: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    return func(x.detach(), *rest, **kwargs)


@rule(*variants("tanh", "relu", "relu6", "hardtanh", "leaky_relu", "elu", "gelu", "silu", "hardswish", "mish", "clamp"))
def _activation(on: Relevance, func: Any, x: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    y, made = func(x.detach(), *rest, **kwargs), getattr(x, "made", None)
    if func(x.new_zeros(1), *rest, **kwargs).any():  # it would make something of nothing
        return refused(func(x, *rest, **kwargs), func)
    return ActivationRule.apply(x, y) if made is None else on.convolved(made, y)


@rule(*variants("softmax"))
def _softmax(on: Relevance, func: Any, x: Tensor, dim: int, *rest: Any, **kwargs: Any) -> Tensor:
    return on.attended(x, dim)


@rule(*variants("scaled_dot_product_attention"))
def _attention(
    on: Relevance,
    func: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    energies = _product(on, torch.matmul, q, k.transpose(-1, -2)) * (scale or 1 / math.sqrt(q.shape[-1]))
    if is_causal:
        attn_mask = torch.ones(energies.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        energies = energies.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        hidden = attn_mask.isneginf()
        shift = attn_mask.masked_fill(hidden, 0)
        energies = on.stabilised(energies + shift, shift).masked_fill(hidden, -torch.inf)
    return _product(on, torch.matmul, on.attended(energies, -1), v)


@rule(*variants("max", "min"))
def _extreme(on: Relevance, func: Any, *args: Any, **kwargs: Any) -> Any:
    return func(*(on.as_constant_source(each) if isinstance(each, Tensor) else each for each in args), **kwargs)


@rule(*variants("cat", "concat", "concatenate", "stack"))
def _join(on: Relevance, func: Any, tensors: Any, *rest: Any, **kwargs: Any) -> Tensor:
    return func([on.as_constant_source(each) for each in tensors], *rest, **kwargs)


@rule(*variants("where"))
def _where(on: Relevance, func: Any, condition: Tensor, a: Any, b: Any) -> Tensor:
    shape = torch.broadcast_shapes(*(each.shape for each in (condition, a, b) if isinstance(each, Tensor)))
    signal = next(each for each in (a, b) if is_signal(each))
    parts = (each if isinstance(each, Tensor) else signal.new_tensor(each) for each in (a, b))
    return func(condition, *(on.as_constant_source(each.expand(shape)) for each in parts))


@rule(*variants("masked_fill"))
def _masked_fill(on: Relevance, func: Any, x: Tensor, mask: Tensor, value: Any) -> Tensor:
    if not torch.isfinite(torch.as_tensor(value)).all():  # −∞ hides places from a softmax
        return func(x, mask, value)
    return on.affine(func(x, mask, value), func(torch.zeros_like(x), mask, value))


@rule(Tensor.__setitem__)
def _written(on: Relevance, func: Any, *args: Any) -> None:
    raise UserError("LRP cannot follow what a model writes into part of a tensor: use other methods, such as gradcam")


@rule(*variants("pad"))
def _pad(on: Relevance, func: Any, x: Tensor, *rest: Any, **kwargs: Any) -> Tensor:
    out, pixels = func(x, *rest, **kwargs), getattr(x, "pixels", None)
    out = on.affine(out, func(torch.zeros_like(x), *rest, **kwargs))
    if pixels is not None:
        out.pixels = Pixels(*(func(each, *rest, **kwargs) for each in pixels))  # type: ignore[attr-defined]
    return out


@rule(*variants("gru_cell"))
def _gru_cell(
    on: Relevance,
    func: Any,
    x: Tensor,
    h: Tensor,
    W: Tensor,
    U: Tensor,
    b_x: Tensor | None = None,
    b_h: Tensor | None = None,
) -> Tensor:
    x, h = on.as_constant_source(x), on.as_constant_source(h)
    b_x, b_h = (W.new_zeros(len(W)) if each is None else each for each in (b_x, b_h))
    of_x, of_h = F.linear(x, W, b_x).chunk(3, dim=-1), F.linear(h, U, b_h).chunk(3, dim=-1)
    r, z = ((each + other).detach().sigmoid() for each, other in zip(of_x[:2], of_h[:2], strict=True))
    n = on.stabilised(of_x[2] + r * of_h[2], b_x.chunk(3)[2] + r * b_h.chunk(3)[2])
    return on.stabilised((1 - z) * ActivationRule.apply(n, n.detach().tanh()) + z * h)


@rule(*variants("lstm_cell"))
def _lstm_cell(
    on: Relevance,
    func: Any,
    x: Tensor,
    state: tuple[Tensor, Tensor],
    W: Tensor,
    U: Tensor,
    b_x: Tensor | None = None,
    b_h: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    x, h, c = (on.as_constant_source(each) for each in (x, *state))
    bias = sum((each for each in (b_x, b_h) if each is not None), W.new_zeros(len(W)))
    i, f, _, o = (F.linear(x.detach(), W, bias) + F.linear(h.detach(), U)).sigmoid().chunk(4, dim=-1)
    third = slice(len(W) // 2, len(W) // 4 * 3)  # the rows of g
    g = on.stabilised(F.linear(x, W[third], bias[third]) + F.linear(h, U[third]), bias[third])
    c = on.stabilised(f * c + i * ActivationRule.apply(g, g.detach().tanh()))
    return o * ActivationRule.apply(c, c.detach().tanh()), c
