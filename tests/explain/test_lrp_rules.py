"""The LRP rules of linear layers, sums, LSTM cells, attention and norms equal the loops of tests/reference."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference import lrp as reference
from saywhy.captioners.transformer import scaled_dot_product
from saywhy.explain.composites import Composite
from tracing import DOUBLE, Propagation, assert_close, propagate, randn

pytestmark = pytest.mark.usefixtures("one_thread")

B, N, M = 3, 5, 4
EPSILONS = {
    "absolute": {"epsilon": 0.01},
    "large": {"epsilon": 0.7},
    "relative": {"epsilon": 0.2, "relative_epsilon": True},
}


@pytest.fixture(params=EPSILONS)
def settings(request: pytest.FixtureRequest) -> dict[str, float]:
    return EPSILONS[request.param]


def assert_rows_equal(result: Propagation, reference_row: Callable[[int], tuple[reference.LRP, Any]]) -> None:
    """R of the inputs and the absorbed relevance of each row of the batch equal the reference for that row alone."""
    for row in range(len(result.R)):
        rules, R = reference_row(row)
        assert_close(result.R[row], R)
        assert_close(result.absorbed[row], rules.absorbed)
        assert rules.absorbed != 0
    assert not result.initial_state.any()


def test_linear_layer_follows_the_epsilon_rule(settings):
    x, W, b = randn(B, N), randn(M, N, seed=1), randn(M, seed=2)
    result = propagate(lambda x: F.linear(x, W, b), x, Composite(**settings))

    def reference_row(row):
        rules = reference.LRP(**settings)
        return rules, rules.linear(result.R_out[row].tolist(), x[row].tolist(), W.tolist(), b.tolist())

    assert_rows_equal(result, reference_row)


def test_linear_layer_over_a_sequence_follows_the_epsilon_rule_per_word(settings):
    x, W, b = randn(B, 2, N), randn(M, N, seed=1), randn(M, seed=2)
    result = propagate(lambda x: F.linear(x, W, b), x, Composite(**settings))

    def reference_row(row):
        rules = reference.LRP(**settings)
        pairs = zip(result.R_out[row].tolist(), x[row].tolist(), strict=True)
        return rules, [rules.linear(R, word, W.tolist(), b.tolist()) for R, word in pairs]

    assert_rows_equal(result, reference_row)


def test_sum_of_two_signals_is_split_in_proportion_to_the_terms(settings):
    x = randn(B, 2 * N)
    result = propagate(lambda x: x[:, :N] + x[:, N:], x, Composite(**settings))

    def reference_row(row):
        rules = reference.LRP(**settings)
        one, other = rules.sum(result.R_out[row].tolist(), x[row, :N].tolist(), x[row, N:].tolist())
        return rules, [*one, *other]

    assert_rows_equal(result, reference_row)


def test_sum_by_magnitude_is_shared_in_proportion_to_absolute_terms():
    x = randn(B, 2 * N)
    x[0, N] = -x[0, 0]  # a sum of 0
    x[1, 0] = 0
    result = propagate(lambda x: x[:, :N] + x[:, N:], x, Composite(sums="magnitude"))
    for row in range(B):
        terms = x[row, :N].tolist(), x[row, N:].tolist()
        one, other = reference.LRP().sum_by_magnitude(result.R_out[row].tolist(), *terms)
        assert_close(result.R[row], [*one, *other])
    assert not result.absorbed.any()
    assert result.conservation_error < 1e-12


@pytest.mark.parametrize("scale", [-2, 0.5])
def test_terms_of_a_sum_by_magnitude_may_be_broadcast_and_scaled(scale):
    x = randn(B, 2, N)
    result = propagate(lambda x: torch.add(x, x[:, :1], alpha=scale), x, Composite(sums="magnitude"))
    assert result.conservation_error < 1e-12


def test_constant_term_of_a_sum_is_absorbed(settings):
    x, b = randn(B, N), randn(N, seed=2)
    result = propagate(lambda x: x + b, x, Composite(**settings))

    def reference_row(row):
        rules = reference.LRP(**settings)
        return rules, rules.linear(result.R_out[row].tolist(), x[row].tolist(), torch.eye(N).tolist(), b.tolist())

    assert_rows_equal(result, reference_row)


def test_difference_is_a_sum_with_a_negative_term(settings):
    x = randn(B, 2 * N)
    result = propagate(lambda x: x[:, :N] - x[:, N:], x, Composite(**settings))

    def reference_row(row):
        rules = reference.LRP(**settings)
        one, other = rules.sum(result.R_out[row].tolist(), x[row, :N].tolist(), (-x[row, N:]).tolist())
        return rules, [*one, *other]

    assert_rows_equal(result, reference_row)


SUMS = {
    "+": operator.add,
    "add": torch.add,
    ".add": Tensor.add,
    "+=": lambda a, b: operator.iadd(a.clone(), b),
    "add_": lambda a, b: a.clone().add_(b),
    "alpha": lambda a, b: torch.add(a, b / 3, alpha=3),
}


@pytest.mark.parametrize("spelling", SUMS)
def test_all_spellings_of_a_sum_follow_the_same_rule(spelling):
    result = propagate(lambda x: SUMS[spelling](x[:, :N], x[:, N:]), randn(B, 2 * N))
    expected = propagate(lambda x: x[:, :N] + x[:, N:], randn(B, 2 * N))
    assert_close(result.R, expected.R)
    assert_close(result.absorbed, expected.absorbed)


def test_outputs_at_or_near_zero_keep_relevance_finite():
    x = torch.tensor([[1.0, -1.0, 2.0], [1e-9, 0.0, 0.0]], dtype=DOUBLE)
    W = [[1.0, 1.0, 1.0]]
    result = propagate(lambda x: F.linear(x, torch.tensor(W, dtype=DOUBLE)), x)
    for row in range(2):
        rules = reference.LRP()
        assert_close(result.R[row], rules.linear(result.R_out[row].tolist(), x[row].tolist(), W))
    assert result.conservation_error < 1e-12


def test_linear_layer_without_epsilon_and_bias_absorbs_nothing():
    result = propagate(lambda x: F.linear(x, randn(M, N, seed=1)), randn(B, N), Composite(epsilon=0))
    assert_close(result.R.sum(dim=1), result.R_out.sum(dim=1))
    assert result.absorbed.abs().max() < 1e-12


def test_lstm_cell_treats_its_gates_as_constants(settings):
    cell, x, n = nn.LSTMCell(N, M).double(), randn(B, N + M + M), M

    def run(x: Tensor) -> Tensor:
        return torch.cat(cell(x[:, :N], (x[:, N : N + n], x[:, N + n :])), dim=-1)

    result = propagate(run, x, Composite(**settings))
    assert_close(result.out, run(x).detach())
    weights = {f"cell.{name}": value.tolist() for name, value in cell.state_dict().items()}

    def reference_row(row):
        parts = [part.tolist() for part in x[row].split([N, n, n])]
        rules = reference.LRP(**settings)
        R_h, R_c = (part.tolist() for part in result.R_out[row].split([n, n]))
        R_x, R_h, R_c = rules.lstm(R_h, R_c, reference.lstm(weights, "cell", *parts))
        return rules, [*R_x, *R_h, *R_c]

    assert_rows_equal(result, reference_row)


def test_lstm_cell_without_biases_conserves_relevance():
    cell, x = nn.LSTMCell(N, M, bias=False).double(), randn(B, N + 2 * M)
    result = propagate(lambda x: cell(x[:, :N], (x[:, N : N + M], x[:, N + M :]))[0], x)
    assert_close(result.out, cell(x[:, :N], (x[:, N : N + M], x[:, N + M :]))[0].detach())
    assert result.conservation_error < 1e-12


def test_gru_cell_treats_its_gates_as_constants(settings):
    cell, x = nn.GRUCell(N, M).double(), randn(B, N + M)
    result = propagate(lambda x: cell(x[:, :N], x[:, N:]), x, Composite(**settings))
    assert_close(result.out, cell(x[:, :N], x[:, N:]).detach())

    def reference_row(row):
        rules = reference.LRP(**settings)
        weights = [part.tolist() for part in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
        R_x, R_h = rules.gru(result.R_out[row].tolist(), x[row, :N].tolist(), x[row, N:].tolist(), *weights)
        return rules, [*R_x, *R_h]

    assert_rows_equal(result, reference_row)


def test_relevance_of_constant_lstm_states_is_credited_to_initial_state():
    cell, x = nn.LSTMCell(N, M).double(), randn(B, N)
    h, c = randn(B, M, seed=3), randn(B, M, seed=4)
    result = propagate(lambda x: cell(x, (h, c))[0], x)
    joined = propagate(lambda x: cell(x[:, :N], (x[:, N : N + M], x[:, N + M :]))[0], torch.cat([x, h, c], dim=1))
    assert_close(result.R, joined.R[:, :N])
    assert_close(result.initial_state, joined.R[:, N:].sum(dim=1))
    assert_close(result.absorbed, joined.absorbed)
    assert result.initial_state.abs().min() > 1e-3


def test_softmax_is_linearised():
    x = randn(B, N)
    result = propagate(lambda x: x.softmax(dim=-1), x, attention="attnlrp")

    def reference_row(row):
        rules = reference.LRP()
        return rules, rules.softmax(result.R_out[row].tolist(), x[row].tolist())

    assert_rows_equal(result, reference_row)


def test_softmax_is_linearised_over_any_axis():
    x = randn(B, N, 2)
    result = propagate(lambda x: x.softmax(dim=1), x, attention="attnlrp")

    def reference_row(row):
        rules = reference.LRP()
        columns = [rules.softmax(result.R_out[row, :, k].tolist(), x[row, :, k].tolist()) for k in range(2)]
        return rules, [list(row_values) for row_values in zip(*columns, strict=True)]

    assert_rows_equal(result, reference_row)


def test_masked_positions_of_a_softmax_get_no_relevance():
    x = randn(B, N)
    is_masked = torch.tensor([False, True, False, False, True])
    result = propagate(lambda x: x.masked_fill(is_masked, -torch.inf).softmax(dim=-1), x, attention="attnlrp")
    assert not result.R[:, is_masked].any()

    def reference_row(row):
        rules = reference.LRP()
        visible = rules.softmax(result.R_out[row, ~is_masked].tolist(), x[row, ~is_masked].tolist())
        R = torch.zeros(N, dtype=DOUBLE)
        R[~is_masked] = torch.tensor(visible, dtype=DOUBLE)
        return rules, R

    assert_rows_equal(result, reference_row)


def test_attention_weights_are_constants_by_default():
    x, values = randn(B, N), randn(N, M, seed=2)
    result = propagate(lambda x: (x.softmax(dim=-1).unsqueeze(-1) * values * x.unsqueeze(-1)).sum(dim=1), x)
    assert_close(
        result.R, (x.softmax(dim=-1) * x)[..., None].mul(values).mul((result.R_out / result.out)[:, None]).sum(dim=-1)
    )


@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_treats_its_standard_deviation_as_a_constant(affine, settings):
    x = randn(B, N)
    weight, bias = (randn(N, seed=2), randn(N, seed=3)) if affine else (None, None)
    result = propagate(lambda x: F.layer_norm(x, (N,), weight, bias), x, Composite(**settings))
    assert_close(result.out, F.layer_norm(x, (N,), weight, bias))

    def reference_row(row):
        rules = reference.LRP(**settings)
        w, b = (weight.tolist(), bias.tolist()) if affine else ([1.0] * N, None)
        return rules, rules.layer_norm(result.R_out[row].tolist(), x[row].tolist(), w, b)

    assert_rows_equal(result, reference_row)


def test_batch_norm_without_a_convolution_is_a_linear_layer(settings):
    norm, x = nn.BatchNorm2d(2).double().eval(), randn(B, 2, 2, 3)
    for seed, part in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var)):
        part.data = randn(2, seed=seed).abs() + 0.1
    result = propagate(norm, x, Composite(**settings))
    assert_close(result.out, norm(x).detach())
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    shift = (norm.bias - norm.running_mean * scale).detach()

    def reference_row(row):
        rules, R = reference.LRP(**settings), torch.zeros(2, 2, 3, dtype=DOUBLE)
        for c in range(2):
            W = (torch.eye(3, dtype=DOUBLE) * scale[c]).tolist()
            for r in range(2):  # a relative ε is relative to the last axis
                image_row = result.R_out[row, c, r].tolist(), x[row, c, r].tolist()
                R[c, r] = torch.tensor(rules.linear(*image_row, W, [float(shift[c])] * 3), dtype=DOUBLE)
        return rules, R

    assert_rows_equal(result, reference_row)


SHAPES = [(B, N), (B, 2, N), (B, 4, 1, 1), (4, 4, 1, 1), (B, 4, 1, N), (B, 1, 1, 1), (1, 4, 3, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_of_any_shape_conserve_relevance(shape):
    x = randn(*shape)
    shift = randn(shape[1], *[1] * (len(shape) - 2), seed=3)  # one per channel
    for function in (lambda x: x + 2 * x, lambda x: x + 1.0, lambda x: x + shift, lambda x: x - shift):
        result = propagate(function, x, Composite(epsilon=0.1))
        assert_close(result.out, function(x))
        assert result.conservation_error < 1e-12
        assert result.absorbed.abs().min() > 0


FUTURE = torch.ones(N, N, dtype=torch.bool).triu(1)
MASKS = {
    "masked_fill": lambda x: x.masked_fill(FUTURE, -torch.inf),
    "+": lambda x: x + torch.zeros(N, N, dtype=DOUBLE).masked_fill(FUTURE, -torch.inf),
    "where": lambda x: torch.where(FUTURE, -torch.inf, x),
}


@pytest.mark.parametrize("spelling", MASKS)
def test_all_spellings_of_masking_by_minus_infinity_conserve_relevance(spelling):
    result = propagate(lambda x: MASKS[spelling](x).softmax(dim=-1) * x, randn(B, N, N), attention="attnlrp")
    assert result.R.isfinite().all()
    assert result.conservation_error < 1e-12


ACTIVATIONS = {
    "torch.tanh": torch.tanh,
    "F.relu": F.relu,
    "relu_": lambda x: x.clone().relu_(),
    "nn.ReLU in place": lambda x: nn.ReLU(inplace=True)(x.clone()),
    "ReLU6": nn.ReLU6(),
    "hardtanh": F.hardtanh,
    "leaky_relu": F.leaky_relu,
    "elu": F.elu,
    "gelu": F.gelu,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "mish": F.mish,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_passes_its_relevance_on_unchanged(name):
    x = 3 * randn(B, N)
    result = propagate(ACTIVATIONS[name], x)
    assert_close(result.out, ACTIVATIONS[name](x))
    assert_close(result.R, result.R_out, within=1e-12)
    assert result.R.abs().sum() > 0.1
    assert not result.absorbed.any()


@pytest.mark.parametrize("gate", [torch.sigmoid, F.hardsigmoid, lambda x: x.clone().sigmoid_()])
def test_gated_signal_takes_all_relevance(gate):
    result = propagate(lambda x: gate(x[:, :N]) * x[:, N:], randn(B, 2 * N))
    assert not result.R[:, :N].any()
    assert_close(result.R[:, N:], result.R_out)


def test_each_factor_of_a_product_gets_half():
    x = randn(B, N)
    result = propagate(lambda x: x[:, :2] * x[:, 2:4], x)
    assert_close(result.R[:, :2], result.R_out / 2)
    assert_close(result.R[:, 2:4], result.R_out / 2)
    assert not result.R[:, 4].any()


PRODUCTS = {
    "@": operator.matmul,
    "matmul": torch.matmul,
    "bmm": torch.bmm,
    "einsum": lambda a, b: torch.einsum("bij, bjk -> bik", a, b),
}


@pytest.mark.parametrize("spelling", PRODUCTS)
def test_each_factor_of_a_matrix_product_gets_half_of_every_term(spelling):
    x = randn(B, 2, 3, 3)
    result = propagate(lambda x: PRODUCTS[spelling](x[:, 0], x[:, 1]), x)
    for row in range(B):
        R = torch.zeros(2, 3, 3, dtype=DOUBLE)
        for i in range(3):
            for k in range(3):
                for j in range(3):
                    share = result.R_out[row, i, k] * x[row, 0, i, j] * x[row, 1, j, k] / result.out[row, i, k]
                    R[0, i, j] += share / 2
                    R[1, j, k] += share / 2
        assert_close(result.R[row], R)


@pytest.mark.parametrize("attention", ["constant", "attnlrp"])
@pytest.mark.parametrize("masked", ["no", "causal", "boolean", "additive"])
def test_fused_attention_equals_attention_in_plain_operations(attention, masked):
    x, T = randn(B, 3, 2, 4, N), 4  # queries, keys and values, two heads, four words
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    options = {
        "no": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": ~future},
        "additive": {"attn_mask": torch.zeros(T, T, dtype=DOUBLE).masked_fill(future, -torch.inf)},
    }[masked]

    def fused(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x[:, 0], x[:, 1], x[:, 2], **options)

    result = propagate(fused, x, attention=attention)
    mask = None if masked == "no" else future
    expected = propagate(lambda x: scaled_dot_product(*x.unbind(1), mask)[0], x, attention=attention)
    assert_close(result.out, fused(x))
    if masked != "additive":  # an additive mask is one more sum, with its ε
        assert_close(result.R, expected.R)
        assert_close(result.absorbed, expected.absorbed)
    assert result.conservation_error < 1e-12


def test_relevance_of_concatenated_constants_is_credited_to_initial_state():
    x, token = randn(B, 2, N), randn(1, 1, N, seed=3)
    W = randn(M, N, seed=4)
    result = propagate(lambda x: F.linear(torch.cat([token.expand(B, -1, -1), x], dim=1), W), x)
    joined = propagate(lambda x: F.linear(x, W), torch.cat([token.expand(B, -1, -1), x], dim=1))
    assert_close(result.R, joined.R[:, 1:])
    assert_close(result.initial_state, joined.R[:, 0].sum(dim=-1))
    assert_close(result.absorbed, joined.absorbed)


SCALED = {
    "linear": lambda x, scale: F.linear(x, scale * randn(M, 6, seed=1), scale * randn(M, seed=2)),
    "sum": lambda x, scale: scale * x[..., :3] + scale * x[..., 3:],
    "convolution": lambda x, scale: F.conv2d(x, scale * randn(2, 3, 2, 2, seed=1), scale * randn(2, seed=2)),
}


@pytest.mark.parametrize("layer", SCALED)
def test_relative_epsilon_is_invariant_to_scale(layer):
    rules = Composite(epsilon=0.2, relative_epsilon=True, convolution="epsilon")
    small, large = (
        propagate(lambda x, scale=scale: SCALED[layer](x, scale), randn(B, 3, 4, 6), rules) for scale in (1, 1000)
    )
    assert_close(large.R / 1000, small.R)
    assert_close(large.absorbed / 1000, small.absorbed)
