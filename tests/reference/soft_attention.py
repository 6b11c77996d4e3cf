"""Show, attend and tell in plain Python: lists of numbers, one feature and one gate at a time."""

from __future__ import annotations

import math


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def dot(x, y):
    return sum(a * b for a, b in zip(x, y, strict=True))


def linear(matrix, vector, bias=None):
    """W x + b, row by row."""
    return [dot(row, vector) + (bias[i] if bias else 0.0) for i, row in enumerate(matrix)]


class SoftAttention:
    """One image at a time. `weights` is the captioner's state dict as nested lists."""

    def __init__(self, weights, score):
        self.weights = weights
        self.score = score

    def mlp(self, name, vector):
        """Two layers: ReLU, then tanh."""
        w = self.weights
        hidden = [max(0.0, x) for x in linear(w[f"{name}.0.weight"], vector, w[f"{name}.0.bias"])]
        return [math.tanh(x) for x in linear(w[f"{name}.2.weight"], hidden, w[f"{name}.2.bias"])]

    def energy(self, a, h):
        w = self.weights
        if self.score == "bilinear":  # a · (W h), where the captioner computes Wᵀ a
            transposed = list(zip(*w["score.of_annotation.weight"], strict=True))
            return dot(a, linear(transposed, h))
        of_annotation = linear(w["score.of_annotation.weight"], a, w["score.of_annotation.bias"])
        of_hidden = linear(w["score.of_hidden.weight"], h)
        return dot(w["score.v.weight"][0], [math.tanh(x + y) for x, y in zip(of_annotation, of_hidden, strict=True)])

    def lstm(self, x, h, c):
        """The gates i, f, g, o, each with its rows of the two matrices."""
        w, n = self.weights, len(h)

        def gate(number):
            rows = slice(number * n, (number + 1) * n)
            of_x = linear(w["lstm.weight_ih"][rows], x, w["lstm.bias_ih"][rows])
            of_h = linear(w["lstm.weight_hh"][rows], h, w["lstm.bias_hh"][rows])
            return [a + b for a, b in zip(of_x, of_h, strict=True)]

        i, f, o = ([sigmoid(x) for x in gate(number)] for number in (0, 1, 3))
        g = [math.tanh(x) for x in gate(2)]
        c = [f[k] * c[k] + i[k] * g[k] for k in range(n)]
        return [o[k] * math.tanh(c[k]) for k in range(n)], c

    def __call__(self, features, words):
        """Logits, α and β after each word."""
        w, steps = self.weights, []
        for (y, of_h, of_z), alpha, beta in self.terms(features, words):
            deep = [a + b + c for a, b, c in zip(y, of_h, of_z, strict=True)]
            steps.append((linear(w["L_o.weight"], deep, w["L_o.bias"]), alpha, beta))
        return steps

    def terms(self, features, words):
        """E y, L_h h and L_z z, whose sum the output layer reads, α and β after each word."""
        w, width = self.weights, len(features[0])
        mean = [sum(a[d] for a in features) / len(features) for d in range(width)]
        h, c = self.mlp("h0", mean), self.mlp("c0", mean)
        steps = []
        for word in words:
            exponentials = [math.exp(self.energy(a, h)) for a in features]
            alpha = [e / sum(exponentials) for e in exponentials]
            beta = sigmoid(dot(w["gate.weight"][0], h) + w["gate.bias"][0])
            z = [beta * sum(alpha[i] * features[i][d] for i in range(len(features))) for d in range(width)]
            y = w["E.weight"][word]
            h, c = self.lstm([*y, *z], h, c)
            of_h, of_z = linear(w["L_h.weight"], h, w["L_h.bias"]), linear(w["L_z.weight"], z)
            steps.append(((y, of_h, of_z), alpha, beta))
        return steps


def doubly_stochastic(alpha, mask):
    """Σ_i (1 − Σ_t α_ti)² of each caption, over the words where the mask is true."""
    penalties = []
    for rows, words in zip(alpha, mask, strict=True):
        penalty = 0.0
        for i in range(len(rows[0])):
            penalty += (1 - sum(row[i] for row, is_word in zip(rows, words, strict=True) if is_word)) ** 2
        penalties.append(penalty)
    return penalties
