"""The lower bound that hard attention maximises, as a sum over all sequences of features."""

from __future__ import annotations

from itertools import product

import torch


def lower_bound(weights, features, caption):
    """L_s = Σ_s p(s | a) log p(y | s, a) over all sequences s, one feature per word; differentiable in the weights.

    `weights` is a captioner's state dict (MLP score); `features` (L, D); `caption` from <start> to <end>.
    """
    total = 0.0
    for sequence in product(range(len(features)), repeat=len(caption) - 1):
        log_s, log_y = log_probabilities(weights, features, caption, sequence)
        total = total + log_s.exp() * log_y
    return total


def log_probabilities(w, features, caption, sequence):
    """log p(s | a) and log p(y | s, a) of one sequence of features."""
    mean = features.mean(dim=0)
    h, c = (_tanh_mlp(w, name, mean) for name in ("h0", "c0"))
    log_s = log_y = torch.zeros((), dtype=features.dtype)
    for word, target, s in zip(caption[:-1], caption[1:], sequence, strict=True):
        keys = features @ w["score.of_annotation.weight"].T + w["score.of_annotation.bias"]
        energies = torch.tanh(keys + w["score.of_hidden.weight"] @ h) @ w["score.v.weight"][0]
        log_s = log_s + energies.log_softmax(0)[s]
        z = torch.sigmoid(w["gate.weight"][0] @ h + w["gate.bias"][0]) * features[s]
        Ey = w["E.weight"][word]
        gates = (
            w["lstm.weight_ih"] @ torch.cat([Ey, z]) + w["lstm.bias_ih"] + w["lstm.weight_hh"] @ h + w["lstm.bias_hh"]
        )
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        deep = Ey + w["L_h.weight"] @ h + w["L_h.bias"] + w["L_z.weight"] @ z
        log_y = log_y + (w["L_o.weight"] @ deep + w["L_o.bias"]).log_softmax(0)[target]
    return log_s, log_y


def _tanh_mlp(w, name, x):
    hidden = torch.relu(w[f"{name}.0.weight"] @ x + w[f"{name}.0.bias"])
    return torch.tanh(w[f"{name}.2.weight"] @ hidden + w[f"{name}.2.bias"])
