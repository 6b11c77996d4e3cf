"""Measures of hallucination in the plainest way, with loops that follow their definitions. Slow, written to be read."""

from __future__ import annotations


def named_objects(words, names):
    """The categories that a caption names, in order; `names` maps each way to write an object to its category.

    At each word the longest name that begins there is taken. "" is the category of a phrase that is no object.
    """
    found = []
    start = 0
    while start < len(words):
        length = 1
        for end in range(len(words), start, -1):
            if " ".join(words[start:end]) in names:
                length = end - start
                found.append(names[" ".join(words[start:end])])
                break
        start += length
    return [category for category in found if category != ""]


def chair(captions, objects, names):
    """CHAIR-s and CHAIR-i (Rohrbach et al. 2018)."""
    hallucinated_captions = hallucinated_mentions = mentions = 0
    for words, has in zip(captions, objects, strict=True):
        wrong = 0
        for category in named_objects(words, names):
            mentions += 1
            if category not in has:
                wrong += 1
        hallucinated_mentions += wrong
        if wrong > 0:
            hallucinated_captions += 1
    return hallucinated_captions / len(captions), hallucinated_mentions / mentions


def word_precision(captions, references, words, names):
    """For each word TP, FP and FN over images; then the means of precision, recall and F1 over words."""
    counts, precisions, recalls, f1s = [], [], [], []
    for word in words:
        tp = fp = fn = 0
        for caption, group in zip(captions, references, strict=True):
            said = word in named_objects(caption, names)
            true = False
            for reference in group:
                if word in named_objects(reference, names):
                    true = True
            if said and true:
                tp += 1
            elif said:
                fp += 1
            elif true:
                fn += 1
        counts.append((tp, fp, fn))
        if tp + fp > 0:
            precisions.append(tp / (tp + fp))
        if tp + fn > 0:
            recalls.append(tp / (tp + fn))
        if tp + fp + fn > 0:
            f1s.append(2 * tp / (2 * tp + fp + fn))
    return counts, [sum(values) / len(values) for values in (precisions, recalls, f1s)]


def rarity(references, training, stop_words, before, after):
    """Equation 33 and Table V of Sun et al. (2022): mean c of images that got better, and of those that got worse."""
    better, worse = [], []
    for group, first, second in zip(references, before, after, strict=True):
        rarest = None
        for reference in group:
            for word in reference:
                if word in stop_words:
                    continue
                count = sum(caption.count(word) for caption in training)
                if rarest is None or count < rarest:
                    rarest = count
        if second > first:
            better.append(rarest)
        if second < first:
            worse.append(rarest)
    return sum(better) / len(better), sum(worse) / len(worse)


def sampled_captions(distribution, count, offsets, end):
    """Captions at evenly spaced quantiles: `distribution(words)` is that of the next word, a list of probabilities.

    The n samples that have begun alike take the words at quantiles (i + offset) / n, in the order of their numbers;
    samples end with `end`, or with the last offset.
    """
    captions = [[] for _ in range(count)]

    def go_on(samples, words, t):
        if t == len(offsets):
            return
        p = distribution(words)
        followers = {}
        for i, sample in enumerate(samples):
            left = (i + offsets[t]) / len(samples) * sum(p)
            word = 0
            while left >= p[word]:
                left -= p[word]
                word += 1
            followers.setdefault(word, []).append(sample)
        for word, group in followers.items():
            if word != end:
                for sample in group:
                    captions[sample].append(word)
                go_on(group, [*words, word], t + 1)

    go_on(list(range(count)), [], 0)
    return captions
