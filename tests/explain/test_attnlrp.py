"""Rules for transformers equal AttnLRP's published code, `lxt` (pip install --no-deps lxt), where it is installed.

lxt carries relevance itself through the backward pass, and saywhy relevance divided by value: the relevance of the
input has to be the same.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from saywhy.explain.composites import Composite
from tracing import DOUBLE, assert_close, propagate, randn

lxt = pytest.importorskip(
    "lxt.explicit.functional", reason="AttnLRP's code is not installed: pip install --no-deps lxt"
)

pytestmark = pytest.mark.usefixtures("one_thread")

B, T, D = 2, 4, 6
EPSILON = 1e-9
W = [randn(D, D, seed=seed) for seed in range(1, 6)]
BIAS, WEIGHT = randn(D, seed=7), randn(D, seed=8)
MASK = torch.zeros(T, T, dtype=DOUBLE).masked_fill(torch.ones(T, T, dtype=torch.bool).triu(1), -torch.inf)


def attention(x: Tensor) -> Tensor:
    q, k, v = (F.linear(x, weight) for weight in W[:3])
    weights = (q @ k.transpose(-1, -2) / D**0.5 + MASK).softmax(dim=-1)
    return weights @ v


def attention_of_lxt(x: Tensor) -> Tensor:
    q, k, v = (lxt.linear_epsilon(x, weight, epsilon=EPSILON) for weight in W[:3])
    energies = lxt.mul2(lxt.matmul(q, k.transpose(-1, -2), epsilon=EPSILON), torch.tensor(1 / D**0.5, dtype=DOUBLE))
    return lxt.matmul(lxt.softmax(energies + MASK, -1), v, epsilon=EPSILON)


PAIRS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "linear": (lambda x: F.linear(x, W[0], BIAS), lambda x: lxt.linear_epsilon(x, W[0], BIAS, epsilon=EPSILON)),
    "softmax": (lambda x: x.softmax(dim=-1), lambda x: lxt.softmax(x, -1)),
    "RMS norm": (
        lambda x: WEIGHT * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        lambda x: lxt.rms_norm_identity(x, WEIGHT, 1e-6),
    ),
    "product of two signals": (
        lambda x: F.linear(x, W[0]) * F.linear(x, W[1]),
        lambda x: lxt.mul2(*(lxt.linear_epsilon(x, weight, epsilon=EPSILON) for weight in W[:2])),
    ),
    "residual sum": (
        lambda x: x + F.linear(x, W[0]),
        lambda x: lxt.add2(x, lxt.linear_epsilon(x, W[0], epsilon=EPSILON), epsilon=EPSILON),
    ),
    "causal attention": (attention, attention_of_lxt),
}


@pytest.mark.parametrize("name", PAIRS)
def test_relevance_equals_that_of_the_published_code(name):
    ours, theirs = PAIRS[name]
    x = randn(B, T, D)
    result = propagate(ours, x, Composite(epsilon=EPSILON), attention="attnlrp")
    leaf = x.clone().requires_grad_()
    out = theirs(leaf)
    (expected,) = torch.autograd.grad(out, leaf, result.R_out)
    assert_close(result.out, out.detach(), within=1e-6)  # lxt's RMS norm computes in single precision
    assert_close(result.R, expected, within=1e-6)
    assert result.R.abs().max() > 1e-2
