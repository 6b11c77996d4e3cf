"""MH-FC in plain Python: lists of numbers, one word and one head at a time."""

from __future__ import annotations

import math

from reference.ada_lstm import lstm, plus, project, softmax, times, weighted
from reference.soft_attention import dot, linear, sigmoid


class MHFC:
    """One image at a time. `weights` is the captioner's state dict as nested lists."""

    def __init__(self, weights, heads):
        self.weights = weights
        self.heads = heads

    def __call__(self, features, words):
        """Logits, α of each head and the mean of the gate after each word."""
        w = self.weights
        steps = self.terms(features, words)
        return [(linear(w["fc.weight"], plus(*terms), w["fc.bias"]), alphas, gate) for terms, alphas, gate in steps]

    def terms(self, features, words):
        """c and h, whose sum the output layer reads, α of each head and the mean of the gate after each word."""
        w = self.weights
        I, I_g = project(w, features)  # noqa: E741
        K = [linear(w["W_k.weight"], vector) for vector in I]
        V = [linear(w["W_v.weight"], vector) for vector in I]
        width = len(I_g) // self.heads
        h = m = [0.0] * len(I_g)
        steps = []
        for word in words:
            h, m = lstm(w, "lstm", [*w["E.weight"][word], *I_g], h, m)
            alphas, v = [], []
            for head in range(self.heads):
                part = slice(head * width, (head + 1) * width)
                alpha = softmax([dot(h[part], key[part]) / math.sqrt(width) for key in K])
                v += weighted(alpha, [value[part] for value in V])
                alphas.append(alpha)
            gate = [sigmoid(x) for x in linear(w["W_mh.weight"], h, w["W_mh.bias"])]
            c = times(gate, linear(w["W_o.weight"], v, w["W_o.bias"]))
            steps.append(((c, h), alphas, sum(gate) / len(gate)))
        return steps
