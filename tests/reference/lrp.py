"""Layer-wise relevance propagation with plain loops over lists of numbers.

Equation numbers are those of Sun et al. 2021 (https://arxiv.org/abs/2001.01037). R is the relevance of a
layer's outputs; every rule returns R of its inputs and adds the share of biases and stabilisers to `absorbed`.

Where the equations leave a choice: ε is used at every linear layer and every sum. A weighted mean with constant weights
(of features, by attention or uniform) is split in proportion to its terms, without ε.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

from reference.ada_lstm import plus, project, softmax, tanh, times, weighted
from reference.soft_attention import dot, linear, sigmoid

SMALLEST = 1e-9
"""Added to denominators of convolutions that may be zero."""


def sign(z):
    return -1.0 if z < 0 else 1.0


def positive(z):
    return max(z, 0.0)


def negative(z):
    return min(z, 0.0)


def shared(R, terms):
    """R of each term of z = Σ_n y_n in proportion to the terms, and 0 where z is 0."""
    z = plus(*terms)
    return [[R[j] * y[j] / z[j] if z[j] else 0.0 for j in range(len(z))] for y in terms]


class LRP:
    """The rules of a decoder.

    Attributes:
        absorbed: relevance of biases and stabilisers so far.
    """

    def __init__(self, epsilon=0.01, relative_epsilon=False):
        self.epsilon = epsilon
        self.relative_epsilon = relative_epsilon
        self.absorbed = 0.0

    def stabilisers(self, z):
        """ε sign(z_j) with sign(0) = 1; a relative ε is multiplied by the mean |z_j|."""
        size = self.epsilon * sum(abs(value) for value in z) / len(z) if self.relative_epsilon else self.epsilon
        return [size * sign(value) for value in z]

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

    def sum_by_magnitude(self, R, *terms):
        """R of each term of z = Σ_n y_n in proportion to |y_n|; where z is 0 there is no relevance."""
        z = plus(*terms)
        totals = [sum(abs(y[j]) for y in terms) for j in range(len(z))]
        return [[R[j] * abs(y[j]) / totals[j] if z[j] else 0.0 for j in range(len(z))] for y in terms]

    def lstm(self, R_h, R_c, cell):
        """R of x and of the previous h and c, from R of the new h and c.

        h = o tanh(c): o is a constant and tanh passes R on, so all of R(h) goes to c. c = f c₋ + i tanh(g): ε-rule of
        the sum; i is a constant, tanh passes R on, and g is a linear layer over [x; h₋] with both biases.
        """
        R_c_before, R_g = self.sum(plus(R_h, R_c), times(cell.f, cell.c_before), times(cell.i, tanh(cell.g)))
        R_inputs = self.linear(R_g, [*cell.x, *cell.h_before], cell.W_g, cell.b_g)
        return R_inputs[: len(cell.x)], R_inputs[len(cell.x) :], R_c_before

    def gru(self, R, x, h, W, U, b_x, b_h):
        """R of x and of the previous h, from R of the new h, of a GRU cell with the rows of r, z and n.

        h = (1 − z) tanh(n) + z h₋: ε-rule of the sum; z is a constant and tanh passes R on.
        n = W_n x + b_n + r (U_n h₋ + c_n) is a linear layer over [x; h₋], since r is a constant too.
        """
        rows = [slice(number * len(h), (number + 1) * len(h)) for number in range(3)]
        W_x = [linear(W[part], x, b_x[part]) for part in rows]
        U_h = [linear(U[part], h, b_h[part]) for part in rows]
        r, z = ([sigmoid(value) for value in plus(W_x[gate], U_h[gate])] for gate in (0, 1))
        n = plus(W_x[2], times(r, U_h[2]))
        R_n, R_h_before = self.sum(R, times([1 - value for value in z], tanh(n)), times(z, h))
        W_n = [[*W[rows[2]][j], *(r[j] * u for u in U[rows[2]][j])] for j in range(len(h))]
        R_inputs = self.linear(R_n, [*x, *h], W_n, plus(b_x[rows[2]], times(r, b_h[rows[2]])))
        return R_inputs[: len(x)], plus(R_h_before, R_inputs[len(x) :])

    def layer_norm(self, R, x, weight, bias, eps=1e-5):
        """y = w (x − x̄) / σ + b with σ a constant: a linear layer with the weights w_j (δ_ij − 1/n) / σ."""
        n, mean = len(x), sum(x) / len(x)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in x) / n + eps)
        W = [[weight[j] * ((i == j) - 1 / n) / deviation for i in range(n)] for j in range(n)]
        return self.linear(R, x, W, bias)

    def rms_norm(self, R, x, weight, eps):
        """y_j = w_j x_j / r with r, the root of the mean square, a constant: all relevance of y_j goes to x_j."""
        r = math.sqrt(sum(value**2 for value in x) / len(x) + eps)
        y = [weight[j] * x[j] / r for j in range(len(x))]
        return [R[j] * (x[j] * weight[j] / r) / y[j] for j in range(len(x))]

    def swiglu(self, R, x, gate, up):
        """y = silu(W_g x) · (W_u x): half of R to each factor (AttnLRP's uniform rule); silu passes its half on."""
        half = [value / 2 for value in R]
        of_gate, of_up = self.linear(half, x, gate), self.linear(half, x, up)
        return plus(of_gate, of_up)

    def rotary(self, R, x, cos, sin):
        """z = x cos + rotated(x) sin, where rotated(x) = (−x_2, x_1) of the halves of x: the ε-rule of the sum."""
        n, half = len(x), len(x) // 2
        rotated = [-value for value in x[half:]] + x[:half]
        R_plain, R_rotated = self.sum(R, times(x, cos), times(rotated, sin))
        return [R_plain[i] + (R_rotated[i + half] if i < half else R_rotated[i - half]) for i in range(n)]

    def softmax(self, R, x):
        """Eq. 13 of AttnLRP (https://arxiv.org/abs/2402.05602): R(x_i) = x_i (R(s_i) − s_i Σ_j R(s_j))."""
        s, total = softmax(x), sum(R)
        R_x = [x[i] * (R[i] - s[i] * total) for i in range(len(x))]
        self.absorbed += total - sum(R_x)
        return R_x


@dataclass
class Cell:
    """The inputs, gates and outputs of an LSTM cell."""

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
    """The gates i, f, g, o are consecutive rows of the two matrices; both biases are added, once."""
    n = len(h)
    W = [[*W_x, *W_h] for W_x, W_h in zip(weights[f"{name}.weight_ih"], weights[f"{name}.weight_hh"], strict=True)]
    b = plus(weights[f"{name}.bias_ih"], weights[f"{name}.bias_hh"])
    rows = [slice(number * n, (number + 1) * n) for number in range(4)]
    before_i, before_f, g, before_o = (linear(W[part], [*x, *h], b[part]) for part in rows)
    i, f, o = ([sigmoid(value) for value in gate] for gate in (before_i, before_f, before_o))
    after = plus(times(f, c), times(i, tanh(g)))
    return Cell(x, h, c, i, f, g, W[rows[2]], b[rows[2]], after, times(o, tanh(after)))


@dataclass
class WordRelevance:
    """A word's logit and its parts by (20)–(22)."""

    logit: float
    tokens: list  # R of each token of the caption, summed over its embedding
    features: list  # R of each channel of each feature
    initial_state: float
    absorbed: float


def mean_of(R_mean, features):
    """R of each vector from R of their mean."""
    return shared(R_mean, [[x / len(features) for x in vector] for vector in features])


def at(word, count, R):
    """R at one of `count` logits and 0 at the others."""
    return [R if number == word else 0.0 for number in range(count)]


class AdaLSTM:
    """Algorithm 1, for one image and one word. `weights` are the captioner's parameters by name, as nested lists."""

    def __init__(self, weights, rules=LRP):
        self.weights = weights
        self.rules = rules

    def forward(self, features, tokens):
        """The decoder's and the language LSTM's cells, and s, α, β and c, at each of these tokens."""
        w = self.weights
        self.I, self.I_g = project(w, features)
        zero = [0.0] * len(self.I_g)
        h = m = h2 = m2 = zero
        steps = []
        for token in tokens:
            x = [*h2, *self.I_g, *w["E.weight"][token]]
            gate = [sigmoid(value) for value in plus(linear(w["W_x.weight"], x), linear(w["W_h.weight"], h))]
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

    def __call__(self, features, tokens, word, **settings):
        """The relevance of `word` after these tokens."""
        w, rules = self.weights, self.rules(**settings)
        steps = self.forward(features, tokens)
        n = len(self.I_g)
        *_, c, language = steps[-1]
        logits = linear(w["fc.weight"], plus(c, language.h), w["fc.bias"])
        # line 1
        R_output = rules.linear(at(word, len(logits), logits[word]), plus(c, language.h), w["fc.weight"], w["fc.bias"])
        # line 2
        R1_c, R_h2 = rules.sum(R_output, c, language.h)
        zero = [0.0] * n
        R_h = R_m = R_m2 = R_I_g = zero
        R_I = [zero] * len(self.I)
        R_tokens = [0.0] * len(tokens)
        for t in range(len(tokens) - 1, -1, -1):
            cell, s, alpha, beta, c, language = steps[t]
            # line 4
            R_inputs, R1_h2, R_m2 = rules.lstm(R_h2, R_m2, language)
            R2_c, R_h = R_inputs[:n], plus(R_h, R_inputs[n:])
            # line 5: c = Σ_k (1 − β) α_k I_k + β s, with the weights as constants
            attended = [[(1 - beta) * alpha[k] * x for x in self.I[k]] for k in range(len(self.I))]
            *R_t_I, R_s = rules.sum(plus(R1_c, R2_c), *attended, [beta * x for x in s])
            R_I = [plus(R_I[k], R_t_I[k]) for k in range(len(self.I))]
            # line 6: s = gate tanh(m), so R(s) goes to m
            R_x, R_h, R_m = rules.lstm(R_h, plus(R_m, R_s), cell)
            R_h2, R_I_g = plus(R1_h2, R_x[:n]), plus(R_I_g, R_x[n : 2 * n])
            # line 7
            R_tokens[t] = sum(R_x[2 * n :])
            R1_c = zero
        # line 9, back to the features: I_g is the mean of I, and I = ReLU(W a + b)
        R_I = [plus(one, other) for one, other in zip(R_I, mean_of(R_I_g, self.I), strict=True)]
        R_a = [rules.linear(R_I[k], features[k], w["W.weight"], w["W.bias"]) for k in range(len(features))]
        initial_state = sum(R_h) + sum(R_m) + sum(R_h2) + sum(R_m2)
        return WordRelevance(logits[word], R_tokens, R_a, initial_state, rules.absorbed)


class MHFC:
    """LRP of MH-FC, for one image and one word."""

    def __init__(self, weights, heads, rules=LRP):
        self.weights = weights
        self.heads = heads
        self.rules = rules

    def __call__(self, features, tokens, word, **settings):
        w, rules = self.weights, self.rules(**settings)
        I, I_g = project(w, features)  # noqa: E741
        zero = [0.0] * len(I_g)
        cells = []
        for token in tokens:
            h, m = (cells[-1].h, cells[-1].c) if cells else (zero, zero)
            cells.append(lstm(w, "lstm", [*w["E.weight"][token], *I_g], h, m))
        h = cells[-1].h
        K = [linear(w["W_k.weight"], vector) for vector in I]
        V = [linear(w["W_v.weight"], vector) for vector in I]
        alphas, v = self.attend(h, K, V)
        gate = [sigmoid(x) for x in linear(w["W_mh.weight"], h, w["W_mh.bias"])]
        c = times(gate, linear(w["W_o.weight"], v, w["W_o.bias"]))
        logits = linear(w["fc.weight"], plus(c, h), w["fc.bias"])

        R_output = rules.linear(at(word, len(logits), logits[word]), plus(c, h), w["fc.weight"], w["fc.bias"])
        R_c, R_h = rules.sum(R_output, c, h)
        # the gate is a constant: all of R(c) goes to W_o v + b
        R_v = rules.linear(R_c, v, w["W_o.weight"], w["W_o.bias"])
        R_V = self.attended(R_v, alphas, V)
        R_I = [rules.linear(R_V[k], I[k], w["W_v.weight"]) for k in range(len(I))]
        R_m = R_I_g = zero
        R_tokens = [0.0] * len(tokens)
        for t in range(len(tokens) - 1, -1, -1):
            R_x, R_h, R_m = rules.lstm(R_h, R_m, cells[t])
            width = len(R_x) - len(I_g)
            R_tokens[t], R_I_g = sum(R_x[:width]), plus(R_I_g, R_x[width:])
        R_I = [plus(one, other) for one, other in zip(R_I, mean_of(R_I_g, I), strict=True)]
        R_a = [rules.linear(R_I[k], features[k], w["W.weight"], w["W.bias"]) for k in range(len(features))]
        return WordRelevance(logits[word], R_tokens, R_a, sum(R_h) + sum(R_m), rules.absorbed)

    def parts(self, vector):
        width = len(vector) // self.heads
        return [vector[head * width : (head + 1) * width] for head in range(self.heads)]

    def attend(self, h, K, V):
        """α of each head, and v of all heads."""
        alphas, v = [], []
        for head, q in enumerate(self.parts(h)):
            alpha = softmax([dot(q, self.parts(key)[head]) / math.sqrt(len(q)) for key in K])
            alphas.append(alpha)
            v += weighted(alpha, [self.parts(value)[head] for value in V])
        return alphas, v

    def attended(self, R_v, alphas, V):
        """R of each feature's values: v⁽ⁱ⁾ = Σ_k α⁽ⁱ⁾_k V⁽ⁱ⁾_k, per head."""
        R_V = [[] for _ in V]
        for head, R in enumerate(self.parts(R_v)):
            terms = [[alphas[head][k] * x for x in self.parts(V[k])[head]] for k in range(len(V))]
            for k, share in enumerate(shared(R, terms)):
                R_V[k] += share
        return R_V


class SoftAttention:
    """LRP of soft attention, whose initial states are computed from the image."""

    def __init__(self, weights, score, rules=LRP):
        self.weights = weights
        self.score = score
        self.rules = rules

    def energy(self, a, h):
        w = self.weights
        W_a = linear(w["score.of_annotation.weight"], a, w.get("score.of_annotation.bias"))
        if self.score == "bilinear":
            return dot(W_a, h)
        return dot(w["score.v.weight"][0], tanh(plus(W_a, linear(w["score.of_hidden.weight"], h))))

    def initial(self, name, mean):
        w = self.weights
        hidden = [positive(x) for x in linear(w[f"{name}.0.weight"], mean, w[f"{name}.0.bias"])]
        return hidden, tanh(linear(w[f"{name}.2.weight"], hidden, w[f"{name}.2.bias"]))

    def __call__(self, features, tokens, word, **settings):
        w, rules = self.weights, self.rules(**settings)
        mean = [x / len(features) for x in plus(*features)]
        (hidden_h, h), (hidden_c, c) = self.initial("h0", mean), self.initial("c0", mean)
        steps = []
        for token in tokens:
            alpha = softmax([self.energy(a, h) for a in features])
            beta = sigmoid(dot(w["gate.weight"][0], h) + w["gate.bias"][0])
            terms = [[beta * alpha[k] * x for x in features[k]] for k in range(len(features))]
            cell = lstm(w, "lstm", [*w["E.weight"][token], *plus(*terms)], h, c)
            h, c = cell.h, cell.c
            steps.append((terms, cell))

        terms, z, y = steps[-1][0], plus(*steps[-1][0]), w["E.weight"][tokens[-1]]
        L_h, L_z = linear(w["L_h.weight"], h, w["L_h.bias"]), linear(w["L_z.weight"], z)
        deep = plus(y, L_h, L_z)
        logits = linear(w["L_o.weight"], deep, w["L_o.bias"])

        R_deep = rules.linear(at(word, len(logits), logits[word]), deep, w["L_o.weight"], w["L_o.bias"])
        R_first, R_L_z = rules.sum(R_deep, plus(y, L_h), L_z)  # two sums: (E y + L_h h) + L_z z
        R_y, R_L_h = rules.sum(R_first, y, L_h)
        R_h, R_z = rules.linear(R_L_h, h, w["L_h.weight"], w["L_h.bias"]), rules.linear(R_L_z, z, w["L_z.weight"])
        R_c = [0.0] * len(h)
        R_a = [[0.0] * len(mean) for _ in features]
        R_tokens = [0.0] * len(tokens)
        for t in range(len(tokens) - 1, -1, -1):
            terms, cell = steps[t]
            R_x, R_h, R_c = rules.lstm(R_h, R_c, cell)
            R_tokens[t] = sum(R_x[: len(y)]) + sum(R_y)
            R_a = [plus(*pair) for pair in zip(R_a, shared(plus(R_z, R_x[len(y) :]), terms), strict=True)]
            R_y, R_z = [0.0] * len(y), [0.0] * len(mean)
        for name, R, hidden in (("h0", R_h, hidden_h), ("c0", R_c, hidden_c)):
            R = rules.linear(R, hidden, w[f"{name}.2.weight"], w[f"{name}.2.bias"])
            R = rules.linear(R, mean, w[f"{name}.0.weight"], w[f"{name}.0.bias"])
            R_a = [plus(*pair) for pair in zip(R_a, mean_of(R, features), strict=True)]
        return WordRelevance(logits[word], R_tokens, R_a, 0.0, rules.absorbed)


def windows(x, weight, stride, padding, dilation, groups):
    """By output (o, r, c) of a convolution: the inputs (i, row, column) in its window, with their weights.

    x is (C, H, W) and weight (O, C / groups, h, w), as nested lists; padding is not among the inputs.
    """
    C, H, W = len(x), len(x[0]), len(x[0][0])
    O, inner, h, w = len(weight), len(weight[0]), len(weight[0][0]), len(weight[0][0][0])  # noqa: E741
    rows = (H + 2 * padding[0] - dilation[0] * (h - 1) - 1) // stride[0] + 1
    columns = (W + 2 * padding[1] - dilation[1] * (w - 1) - 1) // stride[1] + 1
    assert inner * groups == C
    inputs = {}
    for o, r, c in itertools.product(range(O), range(rows), range(columns)):
        window = []
        for channel, u, v in itertools.product(range(inner), range(h), range(w)):
            row = r * stride[0] - padding[0] + u * dilation[0]
            column = c * stride[1] - padding[1] + v * dilation[1]
            if 0 <= row < H and 0 <= column < W:
                window.append(((o // (O // groups) * inner + channel, row, column), weight[o][channel][u][v]))
        inputs[o, r, c] = window
    return inputs


def epsilon_shares(xs, ws, b, epsilon):
    """x_i w_i / (z + ε sign z), and the share of bias and stabiliser."""
    z = dot(xs, ws) + b
    denominator = z + epsilon * sign(z)
    return [x * w / denominator for x, w in zip(xs, ws, strict=True)], (b + epsilon * sign(z)) / denominator


def alpha_beta_shares(xs, ws, b, alpha, has_bias):
    """(21) as written by Bach et al.: α (x_i w_i)⁺ / z⁺ − β (x_i w_i)⁻ / z⁻, β = α − 1; z⁺, z⁻ may include biases."""
    products = [x * w for x, w in zip(xs, ws, strict=True)]
    shares, absorbed = [0.0] * len(products), 0.0
    for coefficient, part, smallest in ((alpha, positive, SMALLEST), (1 - alpha, negative, -SMALLEST)):
        constant = (part(b) if has_bias else 0.0) + smallest
        z = sum(part(product) for product in products) + constant
        shares = [share + coefficient * part(product) / z for share, product in zip(shares, products, strict=True)]
        absorbed += coefficient * constant / z
    return shares, absorbed


def gamma_shares(xs, ws, b, gamma):
    """(x_i w_i + γ (x_i w_i)^s) / (z + γ z^s), s the sign of z, the bias being a term of z."""
    products = [x * w for x, w in zip(xs, ws, strict=True)]
    part = positive if sum(products) + b >= 0 else negative
    terms = [term + gamma * part(term) for term in (*products, b)]
    smallest = SMALLEST * sign(sum(products) + b)
    z = sum(terms) + smallest
    return [term / z for term in terms[:-1]], (terms[-1] + smallest) / z


def flat_shares(xs, ws, b):
    """Equal shares for all inputs of the window."""
    z = len(xs) + SMALLEST
    return [1 / z for _ in xs], SMALLEST / z


def box_shares(xs, ws, b, lows, highs):
    """(x w − l w⁺ − h w⁻) divided by their sum; no term is negative, since l ≤ x ≤ h."""
    boxed = zip(xs, ws, lows, highs, strict=True)
    terms = [x * w - low * positive(w) - high * negative(w) for x, w, low, high in boxed]
    z = sum(terms) + SMALLEST
    return [term / z for term in terms], SMALLEST / z


def convolution(R, x, weight, bias, geometry, rule, bounds=()):
    """R of the inputs (C, H, W) by index, and the absorbed relevance, from R of the outputs (O, rows, columns).

    `bounds` are low and high of each input, for the box rule.
    """
    R_x = dict.fromkeys(itertools.product(range(len(x)), range(len(x[0])), range(len(x[0][0]))), 0.0)
    absorbed = 0.0
    for (o, r, c), window in windows(x, weight, **geometry).items():
        xs, *limits = ([values[i][row][column] for (i, row, column), _ in window] for values in (x, *bounds))
        shares, constant = rule(xs, [w for _, w in window], bias[o] if bias else 0.0, *limits)
        for (index, _), share in zip(window, shares, strict=True):
            R_x[index] += R[o][r][c] * share
        absorbed += R[o][r][c] * constant
    return R_x, absorbed
