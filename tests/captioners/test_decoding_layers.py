"""The layers of a decoder give the same results while decoding on a CPU as elsewhere."""

import copy

import pytest
import torch

from saywhy.captioners.base import Linear, LSTMCell


def decoded(layer, *args):
    with torch.inference_mode():
        return layer(*args)


@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layer_while_decoding(rows, bias):
    layer, x = Linear(16, 50, bias=bias), torch.randn(16, rows).t()
    expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(decoded(layer, x), expected)
    assert torch.equal(layer(x), expected)


def test_lstm_cell_while_decoding():
    cell, x, state = LSTMCell(12, 8), torch.randn(3, 12), (torch.randn(3, 8), torch.randn(3, 8))
    torch.testing.assert_close(decoded(cell, x, state), cell(x, state))


def test_changed_weights_are_used():
    layer, x = Linear(4, 6), torch.randn(2, 4)
    before = decoded(layer, x)
    with torch.no_grad():
        layer.weight.mul_(2)
    torch.testing.assert_close(decoded(layer, x), layer(x))
    layer.weight.data = torch.zeros(6, 4)
    torch.testing.assert_close(decoded(layer, x), layer.bias.expand(2, 6))
    assert not torch.equal(before, decoded(layer, x))


def test_a_copy_has_weights_of_its_own():
    layer, x = Linear(4, 6), torch.randn(2, 4)
    before = decoded(layer, x)
    other = copy.deepcopy(layer)
    with torch.no_grad():
        other.weight.zero_()
    assert torch.equal(decoded(layer, x), before)
    torch.testing.assert_close(decoded(other, x), layer.bias.expand(2, 6))


def test_the_logit_of_one_word_per_row_is_that_of_the_whole_layer():
    layer, x, words = Linear(16, 50), torch.randn(3, 7, 16), torch.randint(50, (3, 7))
    expected = layer(x).gather(-1, words.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(layer.logit(x, words), expected)
