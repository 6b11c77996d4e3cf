"""The metrics in the plainest way, with loops that follow the equations. Slow, written to be read."""

from __future__ import annotations

import math
from collections import Counter


def ngrams(words, n):
    return [tuple(words[i : i + n]) for i in range(len(words) - n + 1)]


def bleu(candidates, references):
    """BLEU-1 to BLEU-4 with and without brevity penalty."""
    correct, guessed = [0] * 4, [0] * 4
    length = target = 0
    for candidate, group in zip(candidates, references, strict=True):
        length += len(candidate)
        target += sorted((abs(len(r) - len(candidate)), len(r)) for r in group)[0][1]
        for n in range(1, 5):
            for gram, count in Counter(ngrams(candidate, n)).items():
                correct[n - 1] += min(count, max(ngrams(reference, n).count(gram) for reference in group))
            guessed[n - 1] += len(ngrams(candidate, n))
    ratio = (length + 1e-15) / (target + 1e-9)
    penalty = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    plain, product = [], 1.0
    for n in range(1, 5):
        product *= (correct[n - 1] + 1e-15) / (guessed[n - 1] + 1e-9)
        plain.append(product ** (1 / n))
    return [value * penalty for value in plain], plain


def longest_common_subsequence(first, second):
    """Dynamic programming over all prefixes."""
    table = {}
    for i in range(len(first) + 1):
        for j in range(len(second) + 1):
            if i == 0 or j == 0:
                table[i, j] = 0
            elif first[i - 1] == second[j - 1]:
                table[i, j] = table[i - 1, j - 1] + 1
            else:
                table[i, j] = max(table[i - 1, j], table[i, j - 1])
    return table[len(first), len(second)]


def rouge_l(candidates, references, beta=1.2):
    """ROUGE-L of each caption."""
    scores = []
    for candidate, group in zip(candidates, references, strict=True):
        lengths = [longest_common_subsequence(candidate, reference) for reference in group]
        p = max(common / max(1, len(candidate)) for common in lengths)
        r = max(common / max(1, len(reference)) for common, reference in zip(lengths, group, strict=True))
        scores.append((1 + beta**2) * p * r / (r + beta**2 * p) if p else 0.0)
    return scores


def cider(candidates, references, documents=None):
    """CIDEr-D of each caption; `documents` are the reference groups in which document frequencies are counted."""
    documents = references if documents is None else documents
    return [
        _cider_of_image(candidate, group, documents) for candidate, group in zip(candidates, references, strict=True)
    ]


def _cider_of_image(candidate, group, documents):
    total = 0.0
    for reference in group:
        difference = max(0, len(candidate) - 1) - max(0, len(reference) - 1)
        for n in range(1, 5):
            h, r = _tf_idf(candidate, n, documents), _tf_idf(reference, n, documents)
            norms = math.sqrt(sum(v * v for v in h.values())) * math.sqrt(sum(v * v for v in r.values()))
            dot = sum(min(h[gram], r[gram]) * r[gram] for gram in h if gram in r)
            total += (dot / norms if norms else 0.0) * math.exp(-(difference**2) / (2 * 6.0**2))
    return 10 * total / 4 / len(group)


def _tf_idf(words, n, documents):
    vector = {}
    for gram, count in Counter(ngrams(words, n)).items():
        df = sum(any(gram in ngrams(reference, n) for reference in group) for group in documents)
        vector[gram] = count * (math.log(len(documents)) - math.log(max(1, df)))
    return vector


def cosine(first, second):
    """Of two vectors."""
    dot = sum(a * b for a, b in zip(first, second, strict=True))
    return dot / math.sqrt(sum(a * a for a in first)) / math.sqrt(sum(b * b for b in second))


def image_ranks(captions, images, image_of):
    """Rank of each caption's image; equal similarities share the mean of their ranks."""
    ranks = []
    for caption, own in zip(captions, image_of, strict=True):
        similarities = [cosine(caption, image) for image in images]
        better = sum(value > similarities[own] + 1e-6 for value in similarities)
        equal = sum(abs(value - similarities[own]) <= 1e-6 for value in similarities) - 1
        ranks.append(1 + better + equal / 2)
    return ranks


def clip_scores(captions, images, references):
    """CLIPScore and RefCLIPScore of each caption."""
    scores = []
    for caption, image, group in zip(captions, images, references, strict=True):
        with_image = 2.5 * max(cosine(caption, image), 0)
        with_text = max(max(cosine(caption, reference) for reference in group), 0)
        both = 2 / (1 / with_image + 1 / with_text) if with_image and with_text else 0.0
        scores.append((with_image, both))
    return scores


def bert_score(candidate, reference, candidate_vectors, reference_vectors, idf):
    """P, R and F of two lists of tokens; `idf` has the weight of each token."""
    precision = recall = 0.0
    for token, vector in zip(candidate, candidate_vectors, strict=True):
        precision += idf[token] * max(cosine(vector, other) for other in reference_vectors)
    for token, vector in zip(reference, reference_vectors, strict=True):
        recall += idf[token] * max(cosine(vector, other) for other in candidate_vectors)
    precision /= sum(idf[token] for token in candidate)
    recall /= sum(idf[token] for token in reference)
    return precision, recall, 2 * precision * recall / (precision + recall)


def inverse_document_frequency(token, references):
    """Of a token, over all references."""
    return math.log((len(references) + 1) / (1 + sum(token in reference for reference in references)))
