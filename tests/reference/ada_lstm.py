"""Ada-LSTM in plain Python: lists of numbers, the equations in the order of the paper."""

from __future__ import annotations

import math

from reference.soft_attention import dot, linear, sigmoid


def plus(*vectors):
    return [sum(numbers) for numbers in zip(*vectors, strict=True)]


def times(x, y):
    return [a * b for a, b in zip(x, y, strict=True)]


def tanh(vector):
    return [math.tanh(x) for x in vector]


def softmax(energies):
    total = sum(math.exp(e) for e in energies)
    return [math.exp(e) / total for e in energies]


def weighted(shares, vectors):
    """Σ_k α_k v_k."""
    return plus(*([share * x for x in vector] for share, vector in zip(shares, vectors, strict=True)))


def project(weights, features):
    """I_k = ReLU(W a_k + b), and I_g, their mean."""
    vectors = [[max(0.0, x) for x in linear(weights["W.weight"], a, weights["W.bias"])] for a in features]
    return vectors, [x / len(vectors) for x in plus(*vectors)]


def lstm(weights, name, x, h, m):
    """The gates i, f, g, o, each with its rows of the two matrices and of both biases."""
    n = len(h)

    def gate(number):
        rows = slice(number * n, (number + 1) * n)
        of_x = linear(weights[f"{name}.weight_ih"][rows], x, weights[f"{name}.bias_ih"][rows])
        of_h = linear(weights[f"{name}.weight_hh"][rows], h, weights[f"{name}.bias_hh"][rows])
        return plus(of_x, of_h)

    i, f, o = ([sigmoid(x) for x in gate(number)] for number in (0, 1, 3))
    m = plus(times(f, m), times(i, tanh(gate(2))))
    return times(o, tanh(m)), m


class AdaLSTM:
    """One image at a time. `weights` is the captioner's state dict as nested lists."""

    def __init__(self, weights):
        self.weights = weights

    def of(self, name, vector):
        return linear(self.weights[f"{name}.weight"], vector)

    def energy(self, name, vector, h):
        """w_a · tanh(W vector + W_g h), eq. (6) for a feature, (7) for the sentinel."""
        return dot(self.weights["w_a.weight"][0], tanh(plus(self.of(name, vector), self.of("W_g", h))))

    def __call__(self, features, words):
        """Logits, α and β after each word."""
        w = self.weights
        steps = self.terms(features, words)
        return [(linear(w["fc.weight"], plus(*terms), w["fc.bias"]), alpha, beta) for terms, alpha, beta in steps]

    def terms(self, features, words):
        """c and h², whose sum the output layer reads, α and β after each word."""
        w = self.weights
        I, I_g = project(w, features)  # noqa: E741
        h = m = h2 = m2 = [0.0] * len(I_g)
        steps = []
        for word in words:
            x = [*h2, *I_g, *w["E.weight"][word]]
            gate = [sigmoid(e) for e in plus(self.of("W_x", x), self.of("W_h", h))]  # the previous h
            h, m = lstm(w, "lstm", x, h, m)
            s = times(gate, tanh(m))
            a = [self.energy("W_I", vector, h) for vector in I]
            b = self.energy("W_s", s, h)
            alpha, beta = softmax(a), softmax([*a, b])[-1]
            c = weighted([1 - beta, beta], [weighted(alpha, I), s])
            h2, m2 = lstm(w, "language_lstm", [*c, *h], h2, m2)
            steps.append(((c, h2), alpha, beta))
        return steps
