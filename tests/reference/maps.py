"""The maps of words and the score log p, computed slowly: loops over words, pixels and cells."""

from __future__ import annotations

import math


def log_p_weights(logits, word, excluded):
    """The weight of every logit in z_w − Σ_{v≠w} p_v z_v / (1 − p_w), with p over the words that are not excluded."""
    allowed = [v for v in range(len(logits)) if v not in excluded]
    highest = max(logits[v] for v in allowed)
    exponentials = {v: math.exp(logits[v] - highest) for v in {*allowed, word}}
    total = sum(exponentials.values())
    p = {v: value / total for v, value in exponentials.items()}
    others = sum(p[v] for v in p if v != word)
    return [1.0 if v == word else -p.get(v, 0.0) / others for v in range(len(logits))]


def enlarged(cells, size):
    """Bilinear interpolation of a square grid between the centres of its cells, constant beyond them."""
    n = len(cells)

    def weight(pixel, cell):
        position = min(max((pixel + 0.5) * n / size - 0.5, 0), n - 1)
        return max(0.0, 1 - abs(position - cell))

    return [
        [sum(weight(y, i) * weight(x, j) * cells[i][j] for i in range(n) for j in range(n)) for x in range(size)]
        for y in range(size)
    ]


def why(pixels, cells):
    """sign · |R Ĉ| where R and Ĉ have the same sign, each sign scaled to the sum of the cells of that sign."""
    size, coarse = len(pixels), enlarged(cells, len(pixels))
    result = [[0.0] * size for _ in range(size)]
    for sign in (1, -1):
        total = sum(max(sign * value, 0.0) for row in cells for value in row)
        agree = [
            (y, x) for y in range(size) for x in range(size) if sign * pixels[y][x] > 0 and sign * coarse[y][x] > 0
        ]
        products = sum(abs(pixels[y][x] * coarse[y][x]) for y, x in agree)
        for y, x in agree:
            result[y][x] = sign * abs(pixels[y][x] * coarse[y][x]) * total / products
    return result


def less_others(maps, k):
    """Map k less the mean of the others, value by value."""
    others = [values for number, values in enumerate(maps) if number != k]
    return [value - sum(values[i] for values in others) / max(len(others), 1) for i, value in enumerate(maps[k])]
