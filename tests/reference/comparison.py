"""Comparisons of captions in the plainest way: the captions of every sample are scored again."""

from __future__ import annotations


def sampled_differences(score, a, b, references, weights):
    """score(B) − score(A) of each sample; a row of `weights` says how often the sample has each image."""
    differences = []
    for row in weights:
        indices = [index for index, times in enumerate(row) for _ in range(int(times))]
        first, second, group = ([captions[index] for index in indices] for captions in (a, b, references))
        differences.append(score(second, group, indices) - score(first, group, indices))
    return differences


def word_counts(captions):
    """The number of captions that have each word."""
    counts = {}
    for words in captions:
        for word in set(words):
            counts[word] = counts.get(word, 0) + 1
    return counts
