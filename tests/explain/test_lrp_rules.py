"""The rules of linear layers, sums, LSTM cells, attention and norms against their slow twins."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reference import lrp as reference
from saywhy.captioners.transformer import attend
from saywhy.explain.composites import Composite
from tracing import DOUBLE, TracingMode, close, random, traced

pytestmark = pytest.mark.usefixtures("one_thread")

B, N, M = 3, 5, 4
EPSILONS = {"absolute": {"epsilon": 0.01}, "large": {"epsilon": 0.7}, "relative": {"epsilon": 0.2, "relative": True}}


@pytest.fixture(params=EPSILONS)
def how(request: pytest.FixtureRequest) -> dict[str, float]:
    return EPSILONS[request.param]


def by_row(found: TracingMode, twin: Callable[[int], tuple[reference.LRP, Any]]) -> None:
    """Each row of the batch is as the twin has it, alone: R of the inputs, and what was absorbed."""
    for row in range(len(found.R)):
        rules, R = twin(row)
        close(found.R[row], R)
        close(found.absorbed[row], rules.absorbed)
        assert rules.absorbed != 0
    assert not found.start.any()


def test_a_linear_layer_shares_out_relevance_by_the_epsilon_rule(how):
    x, W, b = random(B, N), random(M, N, seed=1), random(M, seed=2)
    found = traced(lambda x: F.linear(x, W, b), x, Composite(**how))

    def twin(row):
        rules = reference.LRP(**how)
        return rules, rules.linear(found.R_out[row].tolist(), x[row].tolist(), W.tolist(), b.tolist())

    by_row(found, twin)


def test_a_linear_layer_of_many_words_does_so_word_by_word(how):
    x, W, b = random(B, 2, N), random(M, N, seed=1), random(M, seed=2)
    found = traced(lambda x: F.linear(x, W, b), x, Composite(**how))

    def twin(row):
        rules = reference.LRP(**how)
        pairs = zip(found.R_out[row].tolist(), x[row].tolist(), strict=True)
        return rules, [rules.linear(R, word, W.tolist(), b.tolist()) for R, word in pairs]

    by_row(found, twin)


def test_a_sum_of_two_signals_is_shared_by_what_each_brings(how):
    x = random(B, 2 * N)
    found = traced(lambda x: x[:, :N] + x[:, N:], x, Composite(**how))

    def twin(row):
        rules = reference.LRP(**how)
        one, other = rules.sum(found.R_out[row].tolist(), x[row, :N].tolist(), x[row, N:].tolist())
        return rules, [*one, *other]

    by_row(found, twin)


def test_what_a_constant_adds_to_a_sum_is_absorbed(how):
    x, b = random(B, N), random(N, seed=2)
    found = traced(lambda x: x + b, x, Composite(**how))

    def twin(row):
        rules = reference.LRP(**how)
        return rules, rules.linear(found.R_out[row].tolist(), x[row].tolist(), torch.eye(N).tolist(), b.tolist())

    by_row(found, twin)


def test_a_difference_is_a_sum_with_a_negative_part(how):
    x = random(B, 2 * N)
    found = traced(lambda x: x[:, :N] - x[:, N:], x, Composite(**how))

    def twin(row):
        rules = reference.LRP(**how)
        one, other = rules.sum(found.R_out[row].tolist(), x[row, :N].tolist(), (-x[row, N:]).tolist())
        return rules, [*one, *other]

    by_row(found, twin)


SUMS = {
    "+": operator.add,
    "add": torch.add,
    ".add": Tensor.add,
    "+=": lambda a, b: operator.iadd(a.clone(), b),
    "add_": lambda a, b: a.clone().add_(b),
    "alpha": lambda a, b: torch.add(a, b / 3, alpha=3),
}


@pytest.mark.parametrize("spelling", SUMS)
def test_a_sum_has_one_rule_however_it_is_written(spelling):
    found = traced(lambda x: SUMS[spelling](x[:, :N], x[:, N:]), random(B, 2 * N))
    expected = traced(lambda x: x[:, :N] + x[:, N:], random(B, 2 * N))
    close(found.R, expected.R)
    close(found.absorbed, expected.absorbed)


def test_an_output_of_zero_and_one_near_it_keep_relevance_finite():
    x = torch.tensor([[1.0, -1.0, 2.0], [1e-9, 0.0, 0.0]], dtype=DOUBLE)
    W = [[1.0, 1.0, 1.0]]
    found = traced(lambda x: F.linear(x, torch.tensor(W, dtype=DOUBLE)), x)
    for row in range(2):
        rules = reference.LRP()
        close(found.R[row], rules.linear(found.R_out[row].tolist(), x[row].tolist(), W))
    assert found.imbalance < 1e-12


def test_without_epsilon_a_linear_layer_without_bias_loses_nothing():
    found = traced(lambda x: F.linear(x, random(M, N, seed=1)), random(B, N), Composite(epsilon=0))
    close(found.R.sum(dim=1), found.R_out.sum(dim=1))
    assert found.absorbed.abs().max() < 1e-12


def test_an_lstm_cell_takes_its_gates_for_constants_and_shares_out_the_rest(how):
    cell, x, n = nn.LSTMCell(N, M).double(), random(B, N + M + M), M

    def run(x: Tensor) -> Tensor:
        return torch.cat(cell(x[:, :N], (x[:, N : N + n], x[:, N + n :])), dim=-1)

    found = traced(run, x, Composite(**how))
    close(found.out, run(x).detach())
    weights = {f"cell.{name}": value.tolist() for name, value in cell.state_dict().items()}

    def twin(row):
        parts = [part.tolist() for part in x[row].split([N, n, n])]
        rules = reference.LRP(**how)
        R_h, R_c = (part.tolist() for part in found.R_out[row].split([n, n]))
        R_x, R_h, R_c = rules.lstm(R_h, R_c, reference.lstm(weights, "cell", *parts))
        return rules, [*R_x, *R_h, *R_c]

    by_row(found, twin)


def test_an_lstm_cell_without_biases_is_explained_too():
    cell, x = nn.LSTMCell(N, M, bias=False).double(), random(B, N + 2 * M)
    found = traced(lambda x: cell(x[:, :N], (x[:, N : N + M], x[:, N + M :]))[0], x)
    close(found.out, cell(x[:, :N], (x[:, N : N + M], x[:, N + M :]))[0].detach())
    assert found.imbalance < 1e-12


def test_a_gru_cell_takes_its_gates_for_constants_and_shares_out_the_rest(how):
    cell, x = nn.GRUCell(N, M).double(), random(B, N + M)
    found = traced(lambda x: cell(x[:, :N], x[:, N:]), x, Composite(**how))
    close(found.out, cell(x[:, :N], x[:, N:]).detach())

    def twin(row):
        rules = reference.LRP(**how)
        weights = [part.tolist() for part in (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh)]
        R_x, R_h = rules.gru(found.R_out[row].tolist(), x[row, :N].tolist(), x[row, N:].tolist(), *weights)
        return rules, [*R_x, *R_h]

    by_row(found, twin)


def test_constant_states_of_an_lstm_cell_are_booked_as_the_start():
    cell, x = nn.LSTMCell(N, M).double(), random(B, N)
    h, c = random(B, M, seed=3), random(B, M, seed=4)
    found = traced(lambda x: cell(x, (h, c))[0], x)
    whole = traced(lambda x: cell(x[:, :N], (x[:, N : N + M], x[:, N + M :]))[0], torch.cat([x, h, c], dim=1))
    close(found.R, whole.R[:, :N])
    close(found.start, whole.R[:, N:].sum(dim=1))
    close(found.absorbed, whole.absorbed)
    assert found.start.abs().min() > 1e-3


def test_softmax_goes_by_its_tangent():
    x = random(B, N)
    found = traced(lambda x: x.softmax(dim=-1), x, attention="attnlrp")

    def twin(row):
        rules = reference.LRP()
        return rules, rules.softmax(found.R_out[row].tolist(), x[row].tolist())

    by_row(found, twin)


def test_softmax_over_any_axis_goes_by_its_tangent():
    x = random(B, N, 2)
    found = traced(lambda x: x.softmax(dim=1), x, attention="attnlrp")

    def twin(row):
        rules = reference.LRP()
        columns = [rules.softmax(found.R_out[row, :, k].tolist(), x[row, :, k].tolist()) for k in range(2)]
        return rules, [list(each) for each in zip(*columns, strict=True)]

    by_row(found, twin)


def test_places_that_softmax_may_not_look_at_change_nothing():
    x = random(B, N)
    hidden = torch.tensor([False, True, False, False, True])
    found = traced(lambda x: x.masked_fill(hidden, -torch.inf).softmax(dim=-1), x, attention="attnlrp")
    assert not found.R[:, hidden].any()

    def twin(row):
        rules = reference.LRP()
        there = rules.softmax(found.R_out[row, ~hidden].tolist(), x[row, ~hidden].tolist())
        R = torch.zeros(N, dtype=DOUBLE)
        R[~hidden] = torch.tensor(there, dtype=DOUBLE)
        return rules, R

    by_row(found, twin)


def test_attention_weights_are_constants_in_the_papers_way():
    x, values = random(B, N), random(N, M, seed=2)
    found = traced(lambda x: (x.softmax(dim=-1).unsqueeze(-1) * values * x.unsqueeze(-1)).sum(dim=1), x)
    close(found.R, (x.softmax(dim=-1) * x)[..., None].mul(values).mul((found.R_out / found.out)[:, None]).sum(dim=-1))


@pytest.mark.parametrize("affine", [True, False])
def test_a_layer_norm_takes_its_deviation_for_a_constant(affine, how):
    x = random(B, N)
    weight, bias = (random(N, seed=2), random(N, seed=3)) if affine else (None, None)
    found = traced(lambda x: F.layer_norm(x, (N,), weight, bias), x, Composite(**how))
    close(found.out, F.layer_norm(x, (N,), weight, bias))

    def twin(row):
        rules = reference.LRP(**how)
        w, b = (weight.tolist(), bias.tolist()) if affine else ([1.0] * N, None)
        return rules, rules.layer_norm(found.R_out[row].tolist(), x[row].tolist(), w, b)

    by_row(found, twin)


def test_a_batch_norm_that_follows_no_convolution_is_a_linear_layer(how):
    norm, x = nn.BatchNorm2d(2).double().eval(), random(B, 2, 2, 3)
    for seed, part in enumerate((norm.weight, norm.bias, norm.running_mean, norm.running_var)):
        part.data = random(2, seed=seed).abs() + 0.1
    found = traced(norm, x, Composite(**how))
    close(found.out, norm(x).detach())
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    shift = (norm.bias - norm.running_mean * scale).detach()

    def twin(row):
        rules, R = reference.LRP(**how), torch.zeros(2, 2, 3, dtype=DOUBLE)
        for c in range(2):
            W = (torch.eye(3, dtype=DOUBLE) * scale[c]).tolist()
            for r in range(2):  # a relative ε is relative to the last axis
                of_row = found.R_out[row, c, r].tolist(), x[row, c, r].tolist()
                R[c, r] = torch.tensor(rules.linear(*of_row, W, [float(shift[c])] * 3), dtype=DOUBLE)
        return rules, R

    by_row(found, twin)


SHAPES = [(B, N), (B, 2, N), (B, 4, 1, 1), (4, 4, 1, 1), (B, 4, 1, N), (B, 1, 1, 1), (1, 4, 3, 3)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sums_and_norms_of_any_shape_keep_their_books(shape):
    x = random(*shape)
    shift = random(shape[1], *[1] * (len(shape) - 2), seed=3)  # of each channel
    for function in (lambda x: x + 2 * x, lambda x: x + 1.0, lambda x: x + shift, lambda x: x - shift):
        found = traced(function, x, Composite(epsilon=0.1))
        close(found.out, function(x))
        assert found.imbalance < 1e-12
        assert found.absorbed.abs().min() > 0


LATER = torch.ones(N, N, dtype=torch.bool).triu(1)
HIDING = {
    "masked_fill": lambda x: x.masked_fill(LATER, -torch.inf),
    "+": lambda x: x + torch.zeros(N, N, dtype=DOUBLE).masked_fill(LATER, -torch.inf),
    "where": lambda x: torch.where(LATER, -torch.inf, x),
}


@pytest.mark.parametrize("spelling", HIDING)
def test_places_are_hidden_by_minus_infinity_however_it_is_written(spelling):
    found = traced(lambda x: HIDING[spelling](x).softmax(dim=-1) * x, random(B, N, N), attention="attnlrp")
    assert found.R.isfinite().all()
    assert found.imbalance < 1e-12


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
def test_an_activation_hands_on_what_it_gets(name):
    x = 3 * random(B, N)
    found = traced(ACTIVATIONS[name], x)
    close(found.out, ACTIVATIONS[name](x))
    close(found.R, found.R_out, within=1e-12)
    assert found.R.abs().sum() > 0.1
    assert not found.absorbed.any()


@pytest.mark.parametrize("gate", [torch.sigmoid, F.hardsigmoid, lambda x: x.clone().sigmoid_()])
def test_of_a_gate_and_a_signal_the_signal_takes_all(gate):
    found = traced(lambda x: gate(x[:, :N]) * x[:, N:], random(B, 2 * N))
    assert not found.R[:, :N].any()
    close(found.R[:, N:], found.R_out)


def test_of_a_product_of_two_signals_each_gets_half():
    x = random(B, N)
    found = traced(lambda x: x[:, :2] * x[:, 2:4], x)
    close(found.R[:, :2], found.R_out / 2)
    close(found.R[:, 2:4], found.R_out / 2)
    assert not found.R[:, 4].any()


PRODUCTS = {
    "@": operator.matmul,
    "matmul": torch.matmul,
    "bmm": torch.bmm,
    "einsum": lambda a, b: torch.einsum("bij, bjk -> bik", a, b),
}


@pytest.mark.parametrize("spelling", PRODUCTS)
def test_of_a_matrix_product_of_two_signals_each_term_gives_half_to_each_factor(spelling):
    x = random(B, 2, 3, 3)
    found = traced(lambda x: PRODUCTS[spelling](x[:, 0], x[:, 1]), x)
    for row in range(B):
        R = torch.zeros(2, 3, 3, dtype=DOUBLE)
        for i in range(3):
            for k in range(3):
                for j in range(3):
                    share = found.R_out[row, i, k] * x[row, 0, i, j] * x[row, 1, j, k] / found.out[row, i, k]
                    R[0, i, j] += share / 2
                    R[1, j, k] += share / 2
        close(found.R[row], R)


@pytest.mark.parametrize("attention", ["constant", "attnlrp"])
@pytest.mark.parametrize("masked", ["not", "causal", "by truth", "by number"])
def test_fused_attention_is_explained_as_the_same_written_out(attention, masked):
    x, T = random(B, 3, 2, 4, N), 4  # queries, keys and values of two heads and four words
    later = torch.ones(T, T, dtype=torch.bool).triu(1)
    options = {
        "not": {},
        "causal": {"is_causal": True},
        "by truth": {"attn_mask": ~later},
        "by number": {"attn_mask": torch.zeros(T, T, dtype=DOUBLE).masked_fill(later, -torch.inf)},
    }[masked]

    def fused(x: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(x[:, 0], x[:, 1], x[:, 2], **options)

    found = traced(fused, x, attention=attention)
    expected = traced(lambda x: attend(*x.unbind(1), None if masked == "not" else later)[0], x, attention=attention)
    close(found.out, fused(x))
    if masked != "by number":  # numbers are added to the energies: a sum more, with its ε
        close(found.R, expected.R)
        close(found.absorbed, expected.absorbed)
    assert found.imbalance < 1e-12


def test_constants_that_are_joined_to_a_signal_are_booked_as_the_start():
    x, token = random(B, 2, N), random(1, 1, N, seed=3)
    W = random(M, N, seed=4)
    found = traced(lambda x: F.linear(torch.cat([token.expand(B, -1, -1), x], dim=1), W), x)
    whole = traced(lambda x: F.linear(x, W), torch.cat([token.expand(B, -1, -1), x], dim=1))
    close(found.R, whole.R[:, 1:])
    close(found.start, whole.R[:, 0].sum(dim=-1))
    close(found.absorbed, whole.absorbed)


SCALED = {
    "linear": lambda x, by: F.linear(x, by * random(M, 6, seed=1), by * random(M, seed=2)),
    "sum": lambda x, by: by * x[..., :3] + by * x[..., 3:],
    "convolution": lambda x, by: F.conv2d(x, by * random(2, 3, 2, 2, seed=1), by * random(2, seed=2)),
}


@pytest.mark.parametrize("layer", SCALED)
def test_a_relative_epsilon_does_not_care_how_large_the_numbers_are(layer):
    rules = Composite(epsilon=0.2, relative=True, convolution="epsilon")
    small, large = (traced(lambda x, by=by: SCALED[layer](x, by), random(B, 3, 4, 6), rules) for by in (1, 1000))
    close(large.R / 1000, small.R)
    close(large.absorbed / 1000, small.absorbed)
