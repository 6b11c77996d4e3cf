"""Random weights that a deep network survives."""

from __future__ import annotations

import torch
from torch import nn

from saywhy.encoders.base import BatchNorm, Encoder


def initialise(body: nn.Module) -> nn.Module:
    """Draw convolutions that keep the variance through ReLUs (He et al. 2015), and plain batch norms."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    return body


@torch.no_grad()
def settle_batch_norm(encoder: Encoder) -> None:
    """Show a random network some noise, so that its batch statistics fit its weights.

    Without it the activations of a deep random network grow with each sum (a DenseNet-201 ends at 1e12), or
    die out.
    """
    layers = [module for module in encoder.modules() if isinstance(module, BatchNorm)]
    usual = [(layer.training, layer.momentum) for layer in layers]
    for layer in layers:
        layer.training, layer.momentum = True, 1.0  # the statistics of this one batch
    if layers:
        encoder(torch.rand(2, 3, encoder.size, encoder.size) * 255)
    for layer, (training, momentum) in zip(layers, usual, strict=True):
        layer.training, layer.momentum = training, momentum
