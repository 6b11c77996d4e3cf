"""The output layer gives the same logits while decoding as elsewhere."""

import torch

from saywhy.captioners.base import OutputLayer


def test_logits_of_a_beam_equal_those_of_a_linear_layer():
    layer, x = OutputLayer(16, 50), torch.randn(3, 16)
    expected = torch.nn.functional.linear(x, layer.weight, layer.bias)
    with torch.inference_mode():
        decoded = layer(x)
    torch.testing.assert_close(decoded, expected)
    assert torch.equal(layer(x), expected)
