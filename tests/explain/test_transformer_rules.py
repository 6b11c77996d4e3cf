"""The LRP rules of functions that transformers call: equal to loops, conserved, and refused where values are NaN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import tiny
from reference import lrp as reference
from saywhy.errors import UserError
from saywhy.explain.composites import Composite
from saywhy.explain.lrp import LRPMode
from saywhy.explain.methods import attribute
from saywhy.explain.tracing import GradientMode, every_table, no_table
from tracing import DOUBLE, assert_close, inputs, make_targets, propagate, randn

pytestmark = pytest.mark.usefixtures("one_thread")

B, N, M = 3, 5, 4
LOWEST = torch.finfo(DOUBLE).min
SETTINGS = {"epsilon": 0.05}


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """As Llama writes it: in single precision, with a power and a reciprocal root."""
    dtype = x.dtype
    x = x.to(torch.float32)
    x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return weight * x.to(dtype)


def test_rms_norm_treats_its_scale_as_a_constant():
    x, weight = randn(B, N), randn(N, seed=1)
    result = propagate(lambda x: rms_norm(x, weight), x)
    assert_close(result.out, F.rms_norm(x, (N,), weight, 1e-6))
    for row in range(B):
        expected = reference.LRP().rms_norm(result.R_out[row].tolist(), x[row].tolist(), weight.tolist(), 1e-6)
        assert_close(result.R[row], expected)
    assert not result.absorbed.any()


@pytest.mark.parametrize("name", ["addmm", "torch.addmm with a scale", "baddbmm"])
def test_a_product_with_a_bias_is_a_linear_layer(name):
    x, W, b = randn(B, N), randn(N, M, seed=1), randn(M, seed=2)
    functions = {
        "addmm": lambda x: torch.addmm(b, x, W),
        "torch.addmm with a scale": lambda x: torch.addmm(b / 2, x, W / 3, beta=2, alpha=3),
        "baddbmm": lambda x: torch.baddbmm(b, x[:, None], W.expand(B, -1, -1))[:, 0],
    }
    result = propagate(functions[name], x, Composite(**SETTINGS))
    for row in range(B):
        rules = reference.LRP(**SETTINGS)
        expected = rules.linear(result.R_out[row].tolist(), x[row].tolist(), W.T.tolist(), b.tolist())
        assert_close(result.R[row], expected)
        assert_close(result.absorbed[row], rules.absorbed)


def test_swiglu_gives_half_to_each_factor_and_silu_passes_its_half_on():
    x, gate, up = randn(B, N), randn(M, N, seed=1), randn(M, N, seed=2)
    result = propagate(lambda x: F.silu(F.linear(x, gate)) * F.linear(x, up), x, Composite(**SETTINGS))
    for row in range(B):
        rules = reference.LRP(**SETTINGS)
        expected = rules.swiglu(result.R_out[row].tolist(), x[row].tolist(), gate.tolist(), up.tolist())
        assert_close(result.R[row], expected)
        assert_close(result.absorbed[row], rules.absorbed)


def test_rotary_positions_are_a_linear_map_of_the_query():
    x, angle = randn(B, 3, 2 * M), randn(3, M, seed=1)
    cos, sin = (torch.cat([part, part], dim=-1) for part in (angle.cos(), angle.sin()))

    def rotate(x: Tensor) -> Tensor:
        half = torch.cat((-x[..., M:], x[..., :M]), dim=-1)
        return (x * cos) + (half * sin)

    result = propagate(rotate, x, Composite(**SETTINGS))
    for row in range(B):
        rules = reference.LRP(**SETTINGS)
        for t in range(3):
            expected = rules.rotary(result.R_out[row, t].tolist(), x[row, t].tolist(), cos[t].tolist(), sin[t].tolist())
            assert_close(result.R[row, t], expected)
        assert_close(result.absorbed[row], rules.absorbed)


@pytest.mark.parametrize("dtype", [None, torch.float32, DOUBLE])
def test_softmax_in_another_precision_follows_the_same_rule(dtype):
    x = randn(B, N)
    plain = propagate(lambda x: x.softmax(dim=-1), x, attention="attnlrp")
    other = propagate(lambda x: F.softmax(x, dim=-1, dtype=dtype).to(DOUBLE), x, attention="attnlrp")
    assert_close(other.R, plain.R)
    assert_close(other.absorbed, plain.absorbed)


@pytest.mark.parametrize("mask", [-math.inf, LOWEST, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("relative", [False, True])
def test_every_spelling_of_a_mask_gives_the_relevance_of_the_softmax_without_the_masked_positions(mask, relative):
    x, composite = randn(B, N), Composite(epsilon=0.05, relative_epsilon=relative)
    bias = torch.tensor([0.0, 0.3, mask, 0.0, mask], dtype=DOUBLE)
    seen = bias > mask
    masked = propagate(lambda x: (x + bias).softmax(dim=-1)[:, seen], x, composite, attention="attnlrp")
    assert masked.R.isfinite().all()
    assert not masked.R[:, ~seen].any()
    assert masked.conservation_error < 1e-9
    if not relative:  # a relative ε also averages over the masked positions
        short = propagate(lambda x: (x + bias[seen]).softmax(dim=-1), x[:, seen], composite, attention="attnlrp")
        assert_close(masked.R[:, seen], short.R)


def test_a_row_that_is_masked_everywhere_by_the_lowest_number_has_no_relevance():
    x, bias = randn(B, 2, N), torch.zeros(2, N, dtype=DOUBLE)
    bias[1] = LOWEST
    result = propagate(lambda x: (x + bias).softmax(dim=-1), x, attention="attnlrp")
    assert_close(result.out[:, 1], torch.full((B, N), 1 / N, dtype=DOUBLE))
    assert not result.R[:, 1].any()
    assert result.R[:, 0].any()
    assert result.conservation_error < 1e-9


@pytest.mark.parametrize("kind", ["none", "causal", "float"])
def test_grouped_attention_equals_attention_with_repeated_keys_and_values(kind):
    q, kv = randn(B, 4, 3, M), randn(B, 2, 3, M, seed=1)
    float_mask = torch.tensor([[0.0, LOWEST, LOWEST], [0, 0, LOWEST], [0.1, 0, 0]], dtype=DOUBLE)
    masks = {"none": {}, "causal": {"is_causal": True}, "float": {"attn_mask": float_mask}}

    def grouped(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x, 0.5 * x[:, :2] + kv, kv, enable_gqa=True, **masks[kind])

    def repeated(x: Tensor) -> Tensor:
        keys, values = (part.repeat_interleave(2, dim=1) for part in (0.5 * x[:, :2] + kv, kv))
        return F.scaled_dot_product_attention(x, keys, values, **masks[kind])

    one, other = (propagate(function, q, Composite(**SETTINGS), "attnlrp") for function in (grouped, repeated))
    assert_close(one.out, other.out)
    assert_close(one.R, other.R)
    assert_close(one.absorbed, other.absorbed)
    assert one.conservation_error < 1e-9


def scatter(x: Tensor) -> Tensor:
    mask = torch.tensor([[True, False, True, False, False]] * B)
    return torch.ones(B, N, dtype=DOUBLE).masked_scatter(mask, x[:, :2].flatten()) * 2.0


def write(x: Tensor) -> Tensor:
    out = torch.full((B, N), 0.5, dtype=DOUBLE)
    out[:, 1:3] = x[:, :2]
    out[:, 0] = 2.0
    return out * 3.0


def write_a_constant(x: Tensor) -> Tensor:
    x = x * 1.0
    x[:, 0] = 2.0
    return x * 3.0


CONSERVED = {
    "masked_scatter": scatter,
    "written into constants": write,
    "a constant written into a signal": write_a_constant,
    "power": lambda x: x.pow(3.0) + x,
    "square": lambda x: torch.square(x) * 2.0,
    "Tensor.type": lambda x: x.type(torch.float64) * 2.0,
    "Tensor.float": lambda x: x.float() * 2.0,
    "an empty cache": lambda x: torch.cat([torch.tensor([], dtype=DOUBLE), x], dim=-1) * 2.0,
    "an activation of products": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * torch.pow(x, 3.0)))),
    "mm": lambda x: torch.mm(x, randn(N, M, seed=1)),
}


@pytest.mark.parametrize("name", CONSERVED)
def test_relevance_is_conserved_and_values_do_not_change(name):
    result = propagate(CONSERVED[name], randn(B, N))
    assert_close(result.out, CONSERVED[name](randn(B, N)), within=1e-6)
    assert result.conservation_error < 1e-9
    assert result.R.abs().max() > 1e-3


def test_writing_into_a_view_is_refused():
    def write_into_a_view(x: Tensor) -> Tensor:
        out = torch.ones(B, N, dtype=DOUBLE)
        out[:, :2][:, 0] = x[:, 0]
        return out * x

    with pytest.raises(UserError, match="part of a tensor"):
        propagate(write_into_a_view, randn(B, N))


@pytest.mark.parametrize("mode", [GradientMode, lambda is_word: LRPMode(Composite(), randn(B, N), "attnlrp", is_word)])
def test_only_the_table_of_words_gives_embeddings_of_words(mode):
    words, positions = nn.Embedding(7, N).double(), nn.Embedding(7, N).double()
    tokens = torch.tensor([[1, 2]] * B)

    def run(is_word):
        tracing = mode(is_word)
        with tracing:
            words(tokens) + positions(tokens)
        return [part.shape for part in tracing.embedded]

    assert run(every_table) == [(B, 2, N), (B, 2, N)]
    assert run(no_table) == []
    assert run(lambda table: table.data_ptr() == words.weight.data_ptr()) == [(B, 2, N)]


@pytest.mark.parametrize("where", ["features", "words"])
def test_relevance_that_is_nan_is_refused(where, monkeypatch):
    captioner = tiny.sensitive_captioner("ada-lstm").double()
    pixels, boxes = inputs(captioner, "grid", 1)
    targets = make_targets(tiny.captions(1)[:, :-1])
    forward = type(captioner).forward

    def with_nan(self, features, captions, active=None):
        logits, attention = forward(self, features, captions, active)
        fully_masked = (features.vectors[:, :1] + -torch.inf).softmax(dim=1)  # (B, 1, D), of one position: NaN
        extra = (fully_masked * 0).sum(dim=-1, keepdim=True) if where == "features" else logits.log() * 0
        return logits + extra.nan_to_num(0.0) + extra * 0, attention

    monkeypatch.setattr(type(captioner), "forward", with_nan)
    with pytest.raises(UserError, match=r"not conserved|no rule"):
        attribute(captioner, pixels, boxes, targets, ("lrp",), Composite(), to_pixels=False)
