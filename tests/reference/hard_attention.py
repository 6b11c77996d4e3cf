"""The lower bound that hard attention maximises, by trying every sequence of places."""

from __future__ import annotations

from itertools import product

import torch


def lower_bound(weights, places, caption):
    """L_s = Σ_s p(s | a) log p(y | s, a) over all sequences s, one place a word; differentiable in the weights.

    `weights` are a captioner's own (MLP score), by name; `places` (L, D); `caption` from <start> to <end>.
    """
    total = 0.0
    for sequence in product(range(len(places)), repeat=len(caption) - 1):
        log_s, log_y = follow(weights, places, caption, sequence)
        total = total + log_s.exp() * log_y
    return total


def follow(w, places, caption, sequence):
    """log p(s | a) and log p(y | s, a) of one sequence of places."""
    mean = places.mean(dim=0)
    h, c = (_tanh_mlp(w, name, mean) for name in ("h0", "c0"))
    log_s = log_y = torch.zeros((), dtype=places.dtype)
    for read, wanted, place in zip(caption[:-1], caption[1:], sequence, strict=True):
        keys = places @ w["score.of_annotation.weight"].T + w["score.of_annotation.bias"]
        energies = torch.tanh(keys + w["score.of_hidden.weight"] @ h) @ w["score.v.weight"][0]
        log_s = log_s + energies.log_softmax(0)[place]
        z = torch.sigmoid(w["gate.weight"][0] @ h + w["gate.bias"][0]) * places[place]
        Ey = w["E.weight"][read]
        gates = (
            w["lstm.weight_ih"] @ torch.cat([Ey, z]) + w["lstm.bias_ih"] + w["lstm.weight_hh"] @ h + w["lstm.bias_hh"]
        )
        i, f, g, o = gates.chunk(4)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        deep = Ey + w["L_h.weight"] @ h + w["L_h.bias"] + w["L_z.weight"] @ z
        log_y = log_y + (w["L_o.weight"] @ deep + w["L_o.bias"]).log_softmax(0)[wanted]
    return log_s, log_y


def _tanh_mlp(w, name, x):
    hidden = torch.relu(w[f"{name}.0.weight"] @ x + w[f"{name}.0.bias"])
    return torch.tanh(w[f"{name}.2.weight"] @ hidden + w[f"{name}.2.bias"])
