"""What audits measure in the plainest way: loops over pairs, draws and pixels."""

from __future__ import annotations

import itertools
import math
import random


def mean(values):
    return sum(values) / len(values) if values else math.nan


def auc(scores, truth, weights=None):
    """Every true item meets every false one; an item that counts twice meets them twice."""
    weights = [1] * len(scores) if weights is None else weights
    won = met = 0.0
    for s, is_supported, w in zip(scores, truth, weights, strict=True):
        for t, other_is_true, v in zip(scores, truth, weights, strict=True):
            if is_supported and not other_is_true:
                met += w * v
                won += w * v * (1.0 if s > t else 0.5 if s == t else 0.0)
    return won / met if met else math.nan


def bootstrap(statistic, items, images, draws, seed):
    """The statistic of each draw: as many images as there are, with replacement, and all items of each."""
    by_image = {}
    for item, image in zip(items, images, strict=True):
        by_image.setdefault(image, []).append(item)
    rng = random.Random(seed)
    found = []
    for _ in range(draws):
        drawn = rng.choices(list(by_image), k=len(by_image))
        found.append(statistic([item for image in drawn for item in by_image[image]]))
    return found


def quantile(values, share):
    """Between the two nearest of the sorted values, in proportion."""
    values = sorted(values)
    place = share * (len(values) - 1)
    below = min(int(place), len(values) - 2)
    return values[below] + (place - below) * (values[below + 1] - values[below])


def expected_calibration_error(predicted, truth, bins):
    error = 0.0
    for b in range(bins):
        last = b == bins - 1
        inside = [
            (p, t)
            for p, t in zip(predicted, truth, strict=True)
            if b / bins <= p and (p < (b + 1) / bins or (last and p <= 1))
        ]
        if inside:
            error += len(inside) * abs(mean([p for p, _ in inside]) - mean([t for _, t in inside]))
    return error / len(predicted)


def ranks(values):
    """How many are lower, and half of the others that are equal."""
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def rank_correlation(one, other):
    x, y = ranks(one), ranks(other)
    x, y = [each - mean(x) for each in x], [each - mean(y) for each in y]
    sizes = math.sqrt(sum(each**2 for each in x) * sum(each**2 for each in y))
    return sum(a * b for a, b in zip(x, y, strict=True)) / sizes if sizes else math.nan


def box_mask(boxes, size, region, side):
    """Each pixel's centre is laid back onto the image of (width, height), of which the square shows `region`."""
    left, top, right, bottom = region
    mask = [[False] * side for _ in range(side)]
    for i in range(side):
        for j in range(side):
            x = (left + (j + 0.5) * (right - left) / side) / size[0]
            y = (top + (i + 0.5) * (bottom - top) / side) / size[1]
            mask[i][j] = any(box[0] <= x < box[2] and box[1] <= y < box[3] for box in boxes)
    return mask


def shares(E, mask):
    """(23) and (24) of Sun et al. 2021, of what is positive and of what is negative."""
    found = []
    for sign in (1, -1):
        inside = whole = 0.0
        for row, marks in zip(E, mask, strict=True):
            for e, mark in zip(row, marks, strict=True):
                amount = max(sign * e, 0.0)
                whole += amount
                inside += amount if mark else 0.0
        found.append(inside / whole if whole else math.nan)
    return found


def points(E, mask):
    """Look for a higher pixel from left to right and from top to bottom."""
    best, hit = -math.inf, False
    for row, marks in zip(E, mask, strict=True):
        for e, mark in zip(row, marks, strict=True):
            if e > best:
                best, hit = e, mark
    return hit


def patch_sums(E, patch):
    """Patches in reading order; those at the far edges have what is left."""
    side = len(E)
    return [
        sum(E[i][j] for i in range(top, min(top + patch, side)) for j in range(left, min(left + patch, side)))
        for top in range(0, side, patch)
        for left in range(0, side, patch)
    ]


def masked(pixels, chosen, patch, colour):
    """An image (3, S, S) in lists, whose chosen patches have this colour."""
    side = len(pixels[0])
    across = math.ceil(side / patch)
    return [
        [
            [
                colour[channel] if chosen[(i // patch) * across + j // patch] else pixels[channel][i][j]
                for j in range(side)
            ]
            for i in range(side)
        ]
        for channel in range(3)
    ]


def highest(values, count, chance):
    """Take the largest that is left, so many times; of equal ones that of the higher chance."""
    chosen = [False] * len(values)
    for _ in range(min(count, len(values))):
        left = [i for i in range(len(values)) if not chosen[i]]
        best = left[0]
        for i in left:
            if (values[i], chance[i]) > (values[best], chance[best]):
                best = i
        chosen[best] = True
    return chosen


def area(shares, values):
    """Under straight lines from point to point."""
    pairs = list(zip(shares, values, strict=True))
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in itertools.pairwise(pairs))
