"""The measures of audits, computed slowly: loops over pairs, samples and pixels."""

from __future__ import annotations

import itertools
import math
import random


def mean(values):
    return sum(values) / len(values) if values else math.nan


def auc(scores, truth, weights=None):
    """Compare every true item with every false one; items count as often as their weights say."""
    weights = [1] * len(scores) if weights is None else weights
    wins = pairs = 0.0
    for s, is_true, w in zip(scores, truth, weights, strict=True):
        for t, other_is_true, v in zip(scores, truth, weights, strict=True):
            if is_true and not other_is_true:
                pairs += w * v
                wins += w * v * (1.0 if s > t else 0.5 if s == t else 0.0)
    return wins / pairs if pairs else math.nan


def bootstrap(statistic, items, images, samples, seed):
    """The statistic of each sample: as many images as there are, with replacement, and all items of each."""
    by_image = {}
    for item, image in zip(items, images, strict=True):
        by_image.setdefault(image, []).append(item)
    rng = random.Random(seed)
    values = []
    for _ in range(samples):
        drawn = rng.choices(list(by_image), k=len(by_image))
        values.append(statistic([item for image in drawn for item in by_image[image]]))
    return values


def quantile(values, share):
    """Linear interpolation between the two nearest of the sorted values."""
    values = sorted(values)
    position = share * (len(values) - 1)
    below = min(int(position), len(values) - 2)
    return values[below] + (position - below) * (values[below + 1] - values[below])


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
    """The number of lower values, plus half the number of other equal ones."""
    return [sum(other < value for other in values) + (values.count(value) - 1) / 2 for value in values]


def rank_correlation(one, other):
    x, y = ranks(one), ranks(other)
    x, y = [rank - mean(x) for rank in x], [rank - mean(y) for rank in y]
    norms = math.sqrt(sum(rank**2 for rank in x) * sum(rank**2 for rank in y))
    return sum(a * b for a, b in zip(x, y, strict=True)) / norms if norms else math.nan


def box_mask(boxes, size, crop, side):
    """Map each pixel's centre back to the image of (width, height), of which the pixels show the crop."""
    left, top, right, bottom = crop
    mask = [[False] * side for _ in range(side)]
    for i in range(side):
        for j in range(side):
            x = (left + (j + 0.5) * (right - left) / side) / size[0]
            y = (top + (i + 0.5) * (bottom - top) / side) / size[1]
            mask[i][j] = any(box[0] <= x < box[2] and box[1] <= y < box[3] for box in boxes)
    return mask


def shares(E, mask):
    """(23) and (24) of Sun et al. 2021, of the positive and of the negative values."""
    values = []
    for sign in (1, -1):
        inside = total = 0.0
        for row, mask_row in zip(E, mask, strict=True):
            for e, is_inside in zip(row, mask_row, strict=True):
                amount = max(sign * e, 0.0)
                total += amount
                inside += amount if is_inside else 0.0
        values.append(inside / total if total else math.nan)
    return values


def points(E, mask):
    """Search the highest pixel from left to right and from top to bottom."""
    highest, hit = -math.inf, False
    for row, mask_row in zip(E, mask, strict=True):
        for e, is_inside in zip(row, mask_row, strict=True):
            if e > highest:
                highest, hit = e, is_inside
    return hit


def patch_sums(E, patch):
    """Sums row by row of patches; patches at the right and bottom edges may be smaller."""
    side = len(E)
    return [
        sum(E[i][j] for i in range(top, min(top + patch, side)) for j in range(left, min(left + patch, side)))
        for top in range(0, side, patch)
        for left in range(0, side, patch)
    ]


def mask_patches(pixels, selected, patch, colour):
    """An image (3, S, S), as lists, with this colour in the selected patches."""
    side = len(pixels[0])
    across = math.ceil(side / patch)
    return [
        [
            [
                colour[channel] if selected[(i // patch) * across + j // patch] else pixels[channel][i][j]
                for j in range(side)
            ]
            for i in range(side)
        ]
        for channel in range(3)
    ]


def select_highest(values, count, tie_break):
    """Select the highest remaining value, `count` times; of equal ones that with the higher tie break."""
    selected = [False] * len(values)
    for _ in range(min(count, len(values))):
        remaining = [i for i in range(len(values)) if not selected[i]]
        best = remaining[0]
        for i in remaining:
            if (values[i], tie_break[i]) > (values[best], tie_break[best]):
                best = i
        selected[best] = True
    return selected


def area(shares, values):
    """The area under straight lines between the points."""
    pairs = list(zip(shares, values, strict=True))
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in itertools.pairwise(pairs))
