"""Layer-wise relevance propagation in the plainest way: relevance is lists of numbers, handed down one by one.

Equation numbers are those of Sun et al. 2021 (https://arxiv.org/abs/2001.01037). R is what arrives at the outputs of a
layer; every rule gives R of its inputs, and adds to `absorbed` what it gives to biases and stabilisers.

Where the equations leave a choice, this is taken: ε stands at every linear layer and every sum, and a weighted mean
whose weights are constants (of places, by attention or evenly) is split by what each place brings, with nothing kept.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from reference.ada_lstm import plus, project, softmax, tanh, times, weighted
from reference.soft_attention import dot, linear, sigmoid

SMALLEST = 1e-9
"""What keeps the denominators of convolutions off zero."""


def sign(z):
    return -1.0 if z < 0 else 1.0


def positive(z):
    return max(z, 0.0)


def negative(z):
    return min(z, 0.0)


def shared(R, terms):
    """R of each term of z = Σ_n y_n: the same share as it has of z, and nothing of a z of nothing."""
    z = plus(*terms)
    return [[R[j] * y[j] / z[j] if z[j] else 0.0 for j in range(len(z))] for y in terms]


class LRP:
    """The rules of a decoder.

    Attributes:
        absorbed: what biases and stabilisers have taken so far.
    """

    def __init__(self, epsilon=0.01, relative=False):
        self.epsilon = epsilon
        self.relative = relative
        self.absorbed = 0.0

    def stabilisers(self, z):
        """ε sign(z_j) with sign(0) = 1; a relative ε is a share of the mean |z_j|."""
        size = self.epsilon * sum(abs(each) for each in z) / len(z) if self.relative else self.epsilon
        return [size * sign(each) for each in z]

    def linear(self, R, y, W, b=None):
        """(20) and (22): R(y_i) = Σ_j R(z_j) y_i w_ij / (z_j + ε sign z_j), with z_j = Σ_i w_ij y_i + b_j."""
        z = linear(W, y, b)
        R_y = [0.0] * len(y)
        for j, e in enumerate(self.stabilisers(z)):
            for i in range(len(y)):
                R_y[i] += R[j] * y[i] * W[j][i] / (z[j] + e)
            self.absorbed += R[j] * ((b[j] if b else 0.0) + e) / (z[j] + e)
        return R_y

    def sum(self, R, *terms):
        """(20) for z = Σ_n y_n: a linear layer whose weights are ones."""
        z = plus(*terms)
        shares = [[0.0] * len(z) for _ in terms]
        for j, e in enumerate(self.stabilisers(z)):
            for n, y in enumerate(terms):
                shares[n][j] = R[j] * y[j] / (z[j] + e)
            self.absorbed += R[j] * e / (z[j] + e)
        return shares

    def lstm(self, R_h, R_c, cell):
        """R of x, of h and of c before, from R of h and of c after.

        h = o tanh(c): o is a constant and tanh hands on, so all of R(h) is c's. c = f c₋ + i tanh(g): ε-rule of the
        sum; i is a constant, tanh hands on, and g is a linear layer over [x; h₋] with both biases.
        """
        R_kept, R_g = self.sum(plus(R_h, R_c), times(cell.f, cell.c_before), times(cell.i, tanh(cell.g)))
        R_read = self.linear(R_g, [*cell.x, *cell.h_before], cell.W_g, cell.b_g)
        return R_read[: len(cell.x)], R_read[len(cell.x) :], R_kept

    def gru(self, R, x, h, W, U, b_x, b_h):
        """R of x and of h before, from R of h after, of a GRU cell whose rows are those of r, z and n.

        h = (1 − z) tanh(n) + z h₋: ε-rule of the sum; z is a constant and tanh hands on. n = W_n x + b_n + r (U_n h₋ +
        c_n) is a linear layer over [x; h₋], since r is a constant too.
        """
        rows = [slice(number * len(h), (number + 1) * len(h)) for number in range(3)]
        of_x, of_h = ([linear(M[each], v, b[each]) for each in rows] for M, v, b in ((W, x, b_x), (U, h, b_h)))
        r, z = ([sigmoid(each) for each in plus(of_x[gate], of_h[gate])] for gate in (0, 1))
        n = plus(of_x[2], times(r, of_h[2]))
        R_n, R_kept = self.sum(R, times([1 - each for each in z], tanh(n)), times(z, h))
        W_n = [[*W[rows[2]][j], *(r[j] * u for u in U[rows[2]][j])] for j in range(len(h))]
        R_read = self.linear(R_n, [*x, *h], W_n, plus(b_x[rows[2]], times(r, b_h[rows[2]])))
        return R_read[: len(x)], plus(R_kept, R_read[len(x) :])

    def layer_norm(self, R, x, weight, bias, eps=1e-5):
        """y = w (x − x̄) / σ + b with σ a constant: a linear layer with the weights w_j (δ_ij − 1/n) / σ."""
        n, mean = len(x), sum(x) / len(x)
        deviation = math.sqrt(sum((each - mean) ** 2 for each in x) / n + eps)
        W = [[weight[j] * ((i == j) - 1 / n) / deviation for i in range(n)] for j in range(n)]
        return self.linear(R, x, W, bias)

    def softmax(self, R, x):
        """Eq. 13 of AttnLRP (https://arxiv.org/abs/2402.05602): R(x_i) = x_i (R(s_i) − s_i Σ_j R(s_j))."""
        s, total = softmax(x), sum(R)
        R_x = [x[i] * (R[i] - s[i] * total) for i in range(len(x))]
        self.absorbed += total - sum(R_x)
        return R_x


@dataclass
class Cell:
    """An LSTM cell that has run, with all that relevance needs of it."""

    x: list
    h_before: list
    c_before: list
    i: list
    f: list
    g: list  # before its tanh
    W_g: list  # the rows of g in [W_ih, W_hh]
    b_g: list  # of both biases
    c: list
    h: list


def lstm(weights, name, x, h, c):
    """The gates i, f, g, o, each its own rows of the two matrices; both biases count, once."""
    n = len(h)
    W = [[*of_x, *of_h] for of_x, of_h in zip(weights[f"{name}.weight_ih"], weights[f"{name}.weight_hh"], strict=True)]
    b = plus(weights[f"{name}.bias_ih"], weights[f"{name}.bias_hh"])
    rows = [slice(number * n, (number + 1) * n) for number in range(4)]
    before_i, before_f, g, before_o = (linear(W[each], [*x, *h], b[each]) for each in rows)
    i, f, o = ([sigmoid(each) for each in gate] for gate in (before_i, before_f, before_o))
    after = plus(times(f, c), times(i, tanh(g)))
    return Cell(x, h, c, i, f, g, W[rows[2]], b[rows[2]], after, times(o, tanh(after)))


@dataclass
class Explained:
    """A word's logit, and R of all that it is traced to: what (20)–(22) say of it."""

    logit: float
    words: list  # R of each word read, the sum over its embedding
    features: list  # R of each number of each place
    start: float
    absorbed: float


def mean_of(R_mean, places):
    """R of each place from R of their mean."""
    return shared(R_mean, [[x / len(places) for x in place] for place in places])


def at(word, count, R):
    """R at one of `count` logits and nothing at the others."""
    return [R if number == word else 0.0 for number in range(count)]


class AdaLSTM:
    """Algorithm 1. `weights` are the captioner's own, by name, as nested lists; one image, one word at a time."""

    def __init__(self, weights, rules=LRP):
        self.weights = weights
        self.rules = rules

    def forward(self, places, words):
        """The decoder's and the language LSTM's cells, and s, α, β and c, of each of these words."""
        w = self.weights
        self.I, self.I_g = project(w, places)
        zero = [0.0] * len(self.I_g)
        h = m = h2 = m2 = zero
        steps = []
        for word in words:
            x = [*h2, *self.I_g, *w["E.weight"][word]]
            gate = [sigmoid(each) for each in plus(linear(w["W_x.weight"], x), linear(w["W_h.weight"], h))]
            cell = lstm(w, "lstm", x, h, m)
            h, m = cell.h, cell.c
            s = times(gate, tanh(m))
            a = [self.energy("W_I", vector, h) for vector in self.I]
            alpha, beta = softmax(a), softmax([*a, self.energy("W_s", s, h)])[-1]
            c = weighted([1 - beta, beta], [weighted(alpha, self.I), s])
            language = lstm(w, "language_lstm", [*c, *h], h2, m2)
            h2, m2 = language.h, language.c
            steps.append((cell, s, alpha, beta, c, language))
        return steps

    def energy(self, name, vector, h):
        hidden = plus(linear(self.weights[f"{name}.weight"], vector), linear(self.weights["W_g.weight"], h))
        return dot(self.weights["w_a.weight"][0], tanh(hidden))

    def __call__(self, places, words, word, **how):
        """Why `word` follows these words."""
        w, rules = self.weights, self.rules(**how)
        steps = self.forward(places, words)
        n = len(self.I_g)
        *_, c, language = steps[-1]
        logits = linear(w["fc.weight"], plus(c, language.h), w["fc.bias"])
        # line 1
        R_spoken = rules.linear(at(word, len(logits), logits[word]), plus(c, language.h), w["fc.weight"], w["fc.bias"])
        # line 2
        R1_c, R_h2 = rules.sum(R_spoken, c, language.h)
        zero = [0.0] * n
        R_h = R_m = R_m2 = R_I_g = zero
        R_I = [zero] * len(self.I)
        R_words = [0.0] * len(words)
        for t in range(len(words) - 1, -1, -1):
            cell, s, alpha, beta, c, language = steps[t]
            # line 4
            R_read, R1_h2, R_m2 = rules.lstm(R_h2, R_m2, language)
            R2_c, R_h = R_read[:n], plus(R_h, R_read[n:])
            # line 5: c = Σ_k (1 − β) α_k I_k + β s, with the weights as constants
            looked = [[(1 - beta) * alpha[k] * x for x in self.I[k]] for k in range(len(self.I))]
            *R_t_I, R_s = rules.sum(plus(R1_c, R2_c), *looked, [beta * x for x in s])
            R_I = [plus(R_I[k], R_t_I[k]) for k in range(len(self.I))]
            # line 6: s = gate tanh(m), so R(s) is m's
            R_x, R_h, R_m = rules.lstm(R_h, plus(R_m, R_s), cell)
            R_h2, R_I_g = plus(R1_h2, R_x[:n]), plus(R_I_g, R_x[n : 2 * n])
            # line 7
            R_words[t] = sum(R_x[2 * n :])
            R1_c = zero
        # line 9, down to the features: I_g is the mean of I, and I = ReLU(W a + b)
        R_I = [plus(one, other) for one, other in zip(R_I, mean_of(R_I_g, self.I), strict=True)]
        R_a = [rules.linear(R_I[k], places[k], w["W.weight"], w["W.bias"]) for k in range(len(places))]
        start = sum(R_h) + sum(R_m) + sum(R_h2) + sum(R_m2)
        return Explained(logits[word], R_words, R_a, start, rules.absorbed)


class MHFC:
    """The same for MH-FC."""

    def __init__(self, weights, heads, rules=LRP):
        self.weights = weights
        self.heads = heads
        self.rules = rules

    def __call__(self, places, words, word, **how):
        w, rules = self.weights, self.rules(**how)
        I, I_g = project(w, places)  # noqa: E741
        zero = [0.0] * len(I_g)
        cells = []
        for each in words:
            h, m = (cells[-1].h, cells[-1].c) if cells else (zero, zero)
            cells.append(lstm(w, "lstm", [*w["E.weight"][each], *I_g], h, m))
        h = cells[-1].h
        K = [linear(w["W_k.weight"], vector) for vector in I]
        V = [linear(w["W_v.weight"], vector) for vector in I]
        alphas, v = self.look(h, K, V)
        gate = [sigmoid(x) for x in linear(w["W_mh.weight"], h, w["W_mh.bias"])]
        c = times(gate, linear(w["W_o.weight"], v, w["W_o.bias"]))
        logits = linear(w["fc.weight"], plus(c, h), w["fc.bias"])

        R_spoken = rules.linear(at(word, len(logits), logits[word]), plus(c, h), w["fc.weight"], w["fc.bias"])
        R_c, R_h = rules.sum(R_spoken, c, h)
        R_v = rules.linear(R_c, v, w["W_o.weight"], w["W_o.bias"])  # the gate is a constant: R(c) is all W_o v + b's
        R_V = self.looked(R_v, alphas, V)
        R_I = [rules.linear(R_V[k], I[k], w["W_v.weight"]) for k in range(len(I))]
        R_m = R_I_g = zero
        R_words = [0.0] * len(words)
        for t in range(len(words) - 1, -1, -1):
            R_x, R_h, R_m = rules.lstm(R_h, R_m, cells[t])
            width = len(R_x) - len(I_g)
            R_words[t], R_I_g = sum(R_x[:width]), plus(R_I_g, R_x[width:])
        R_I = [plus(one, other) for one, other in zip(R_I, mean_of(R_I_g, I), strict=True)]
        R_a = [rules.linear(R_I[k], places[k], w["W.weight"], w["W.bias"]) for k in range(len(places))]
        return Explained(logits[word], R_words, R_a, sum(R_h) + sum(R_m), rules.absorbed)

    def parts(self, vector):
        width = len(vector) // self.heads
        return [vector[head * width : (head + 1) * width] for head in range(self.heads)]

    def look(self, h, K, V):
        """α of each head, and v of all heads."""
        alphas, v = [], []
        for head, q in enumerate(self.parts(h)):
            alpha = softmax([dot(q, self.parts(key)[head]) / math.sqrt(len(q)) for key in K])
            alphas.append(alpha)
            v += weighted(alpha, [self.parts(value)[head] for value in V])
        return alphas, v

    def looked(self, R_v, alphas, V):
        """R of each place's values: v⁽ⁱ⁾ = Σ_k α⁽ⁱ⁾_k V⁽ⁱ⁾_k, head by head."""
        R_V = [[] for _ in V]
        for head, R in enumerate(self.parts(R_v)):
            terms = [[alphas[head][k] * x for x in self.parts(V[k])[head]] for k in range(len(V))]
            for k, share in enumerate(shared(R, terms)):
                R_V[k] += share
        return R_V


class SoftAttention:
    """The same for soft attention, whose initial states are made of the image."""

    def __init__(self, weights, score, rules=LRP):
        self.weights = weights
        self.score = score
        self.rules = rules

    def energy(self, a, h):
        w = self.weights
        of_annotation = linear(w["score.of_annotation.weight"], a, w.get("score.of_annotation.bias"))
        if self.score == "bilinear":
            return dot(of_annotation, h)
        return dot(w["score.v.weight"][0], tanh(plus(of_annotation, linear(w["score.of_hidden.weight"], h))))

    def initial(self, name, mean):
        w = self.weights
        hidden = [positive(x) for x in linear(w[f"{name}.0.weight"], mean, w[f"{name}.0.bias"])]
        return hidden, tanh(linear(w[f"{name}.2.weight"], hidden, w[f"{name}.2.bias"]))

    def __call__(self, places, words, word, **how):
        w, rules = self.weights, self.rules(**how)
        mean = [x / len(places) for x in plus(*places)]
        (hidden_h, h), (hidden_c, c) = self.initial("h0", mean), self.initial("c0", mean)
        steps = []
        for each in words:
            alpha = softmax([self.energy(a, h) for a in places])
            beta = sigmoid(dot(w["gate.weight"][0], h) + w["gate.bias"][0])
            terms = [[beta * alpha[k] * x for x in places[k]] for k in range(len(places))]
            cell = lstm(w, "lstm", [*w["E.weight"][each], *plus(*terms)], h, c)
            h, c = cell.h, cell.c
            steps.append((terms, cell))

        terms, z, y = steps[-1][0], plus(*steps[-1][0]), w["E.weight"][words[-1]]
        of_h, of_z = linear(w["L_h.weight"], h, w["L_h.bias"]), linear(w["L_z.weight"], z)
        deep = plus(y, of_h, of_z)
        logits = linear(w["L_o.weight"], deep, w["L_o.bias"])

        R_deep = rules.linear(at(word, len(logits), logits[word]), deep, w["L_o.weight"], w["L_o.bias"])
        R_rest, R_of_z = rules.sum(R_deep, plus(y, of_h), of_z)  # (E y + L_h h) + L_z z: two sums, one after the other
        R_y, R_of_h = rules.sum(R_rest, y, of_h)
        R_h, R_z = rules.linear(R_of_h, h, w["L_h.weight"], w["L_h.bias"]), rules.linear(R_of_z, z, w["L_z.weight"])
        R_c = [0.0] * len(h)
        R_a = [[0.0] * len(mean) for _ in places]
        R_words = [0.0] * len(words)
        for t in range(len(words) - 1, -1, -1):
            terms, cell = steps[t]
            R_x, R_h, R_c = rules.lstm(R_h, R_c, cell)
            R_words[t] = sum(R_x[: len(y)]) + sum(R_y)
            R_a = [plus(*each) for each in zip(R_a, shared(plus(R_z, R_x[len(y) :]), terms), strict=True)]
            R_y, R_z = [0.0] * len(y), [0.0] * len(mean)
        for name, R, hidden in (("h0", R_h, hidden_h), ("c0", R_c, hidden_c)):
            R = rules.linear(R, hidden, w[f"{name}.2.weight"], w[f"{name}.2.bias"])
            R = rules.linear(R, mean, w[f"{name}.0.weight"], w[f"{name}.0.bias"])
            R_a = [plus(*each) for each in zip(R_a, mean_of(R, places), strict=True)]
        return Explained(logits[word], R_words, R_a, 0.0, rules.absorbed)


def windows(x, weight, stride, padding, dilation, groups):
    """By output (o, r, c) of a convolution: the inputs (i, row, column) under its window, each with its weight.

    x is (C, H, W) and weight (O, C / groups, h, w), as nested lists; what padding adds is no input.
    """
    C, H, W = len(x), len(x[0]), len(x[0][0])
    O, inner, h, w = len(weight), len(weight[0]), len(weight[0][0]), len(weight[0][0][0])  # noqa: E741
    rows = (H + 2 * padding[0] - dilation[0] * (h - 1) - 1) // stride[0] + 1
    columns = (W + 2 * padding[1] - dilation[1] * (w - 1) - 1) // stride[1] + 1
    assert inner * groups == C
    found = {}
    for o, r, c in itertools.product(range(O), range(rows), range(columns)):
        under = []
        for channel, u, v in itertools.product(range(inner), range(h), range(w)):
            row = r * stride[0] - padding[0] + u * dilation[0]
            column = c * stride[1] - padding[1] + v * dilation[1]
            if 0 <= row < H and 0 <= column < W:
                under.append(((o // (O // groups) * inner + channel, row, column), weight[o][channel][u][v]))
        found[o, r, c] = under
    return found


def epsilon_shares(xs, ws, b, epsilon):
    """x_i w_i / (z + ε sign z), and what bias and stabiliser have of it."""
    z = dot(xs, ws) + b
    below = z + epsilon * sign(z)
    return [x * w / below for x, w in zip(xs, ws, strict=True)], (b + epsilon * sign(z)) / below


def alpha_beta_shares(xs, ws, b, alpha, has_bias):
    """(21), in Bach's letters: α (x_i w_i)⁺ / z⁺ − β (x_i w_i)⁻ / z⁻ with β = α − 1; biases may be among z⁺ and z⁻."""
    products = [x * w for x, w in zip(xs, ws, strict=True)]
    shares, rest = [0.0] * len(products), 0.0
    for much, part, least in ((alpha, positive, SMALLEST), (1 - alpha, negative, -SMALLEST)):
        kept = (part(b) if has_bias else 0.0) + least
        z = sum(part(each) for each in products) + kept
        shares = [share + much * part(each) / z for share, each in zip(shares, products, strict=True)]
        rest += much * kept / z
    return shares, rest


def gamma_shares(xs, ws, b, gamma):
    """(x_i w_i + γ (x_i w_i)^s) / (z + γ z^s), s the sign of z, with the bias among the terms of z."""
    products = [x * w for x, w in zip(xs, ws, strict=True)]
    part = positive if sum(products) + b >= 0 else negative
    more = [each + gamma * part(each) for each in (*products, b)]
    least = SMALLEST * sign(sum(products) + b)
    z = sum(more) + least
    return [each / z for each in more[:-1]], (more[-1] + least) / z


def flat_shares(xs, ws, b):
    """The same for every input that there is."""
    z = len(xs) + SMALLEST
    return [1 / z for _ in xs], SMALLEST / z


def box_shares(xs, ws, b, lows, highs):
    """(x w − l w⁺ − h w⁻) over the sum of these: no term is negative where l ≤ x ≤ h."""
    boxed = zip(xs, ws, lows, highs, strict=True)
    terms = [x * w - low * positive(w) - high * negative(w) for x, w, low, high in boxed]
    z = sum(terms) + SMALLEST
    return [each / z for each in terms], SMALLEST / z


def convolution(R, x, weight, bias, geometry, rule, boxes=()):
    """R of the inputs (C, H, W) by index, and what was absorbed, from R of the outputs (O, rows, columns).

    `boxes` are further values of the inputs, such as the bounds of the box rule, that the rule wants to see.
    """
    R_x = dict.fromkeys(itertools.product(range(len(x)), range(len(x[0])), range(len(x[0][0]))), 0.0)
    absorbed = 0.0
    for (o, r, c), under in windows(x, weight, **geometry).items():
        seen = [[values[i][row][column] for (i, row, column), _ in under] for values in (x, *boxes)]
        shares, rest = rule(seen[0], [w for _, w in under], bias[o] if bias else 0.0, *seen[1:])
        for (index, _), share in zip(under, shares, strict=True):
            R_x[index] += R[o][r][c] * share
        absorbed += R[o][r][c] * rest
    return R_x, absorbed
