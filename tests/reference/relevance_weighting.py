"""LRP-inference fine-tuning (Sun et al. 2021, https://arxiv.org/abs/2001.01037, Algorithm 2), one word at a time.

The output layer reads a sum of terms, which are c and h in the paper.
"""

from __future__ import annotations

from reference.ada_lstm import plus, times
from reference.lrp import LRP, at
from reference.objectives import caption_loss
from reference.soft_attention import linear


def relevance(terms, W, b, word, logit):
    """R of each term for the logit of a word: line 3, two ε steps per pair of terms, with ε = 0.01.

    Three terms are two sums, (y_1 + y_2) + y_3.
    """
    rules = LRP(epsilon=0.01)
    R = rules.linear(at(word, len(W), logit), plus(*terms), W, b)
    shares = []
    while len(terms) > 1:
        *earlier, last = terms
        R, R_last = rules.sum(R, plus(*earlier), last)
        shares.insert(0, R_last)
        terms = earlier
    return [R, *shares]


def omega(R):
    """(28) and (29): ω = R / max|R| + 1."""
    largest = max(abs(value) for value in R)
    return [value / largest + 1 for value in R]


def scores_by_lrp(terms, W, b, word, logit):
    """ω of each term."""
    return [omega(R) for R in relevance(terms, W, b, word, logit)]


def scores_by_gradient_input(terms, W, b, word, logit):
    """ω from y_i ∂z / ∂y_i."""
    return [omega(times(term, W[word])) for term in terms]


def scores_by_gradient(terms, W, b, word, logit):
    """ω from ∂z / ∂y_i."""
    return [omega(W[word]) for _ in terms]


def inference(steps, W, b, stop_words, weights=scores_by_lrp):
    """Algorithm 2: the logits of p and of p̂ at each time, the predicted words, and ω of each term.

    `steps` are the terms at each time; `stop_words` are token ids, those of markers included.
    """
    results = []
    for terms in steps:
        logits = linear(W, plus(*terms), b)  # (26)
        word = max(range(len(logits)), key=lambda index: logits[index])  # (27)
        omegas = [[1.0] * len(term) for term in terms]
        if word not in stop_words:
            omegas = weights(terms, W, b, word, logits[word])
        weighted = [times(weight, term) for weight, term in zip(omegas, terms, strict=True)]
        results.append((logits, linear(W, plus(*weighted), b), word, omegas))  # (30)
    return results


def fine_tuning_loss(logits, reweighted, alpha, targets, cross_entropy, **settings):
    """(31): λ CE(p, y) + (1 − λ) CE(p̂, y), summed over captions."""
    return (
        cross_entropy * caption_loss(logits, alpha, targets, **settings)[0]
        + (1 - cross_entropy) * (caption_loss(reweighted, alpha, targets, **settings)[0])
    )
