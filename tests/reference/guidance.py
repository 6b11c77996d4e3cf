"""Guided captions in the plainest way: every prefix is read from its first token, and no state is kept between words.

Each branch is teacher-forced for one image at a time; the branch without an image gets `captioner.without_image`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK


@dataclass(frozen=True)
class Branches:
    """log p(w | image), log p(w | ∅) and log q(w) after one prefix, for each word w that a caption may contain."""

    image: dict[int, float]
    no_image: dict[int, float]
    lm: dict[int, float]


def log_softmax(values: dict[int, float]) -> dict[int, float]:
    highest = max(values.values())
    total = highest + math.log(sum(math.exp(value - highest) for value in values.values()))
    return {token: value - total for token, value in values.items()}


def branches_after(captioner, features, tokens, lm=None, start=START, styles=0) -> Branches:
    """The three distributions of the next word of one image's caption after the words `tokens`."""
    prefix = torch.tensor([[start, *tokens]])

    def allowed(values) -> dict[int, float]:
        markers = {PAD, START, UNK, *range(len(MARKERS), len(MARKERS) + styles)}
        return {token: value for token, value in enumerate(values.double().tolist()) if token not in markers}

    with torch.no_grad():
        image, no_image = (
            log_softmax(allowed(captioner(part, prefix)[0][0, -1]))
            for part in (features, captioner.without_image(features))
        )
    return Branches(image, no_image, allowed(lm.after(prefix[0].tolist())) if lm else {})


def classifier_free(branches: Branches, gamma: float) -> dict[int, float]:
    p, empty = branches.image, branches.no_image
    return log_softmax({w: empty[w] + gamma * (p[w] - empty[w]) for w in p})


def mutual_information(branches: Branches, gamma: float) -> dict[int, float]:
    p, q = branches.image, branches.lm
    return log_softmax({w: p[w] + (gamma - 1) * (p[w] - q[w]) for w in p})


def language_model(branches: Branches, alpha: float, beta: float) -> dict[int, float]:
    p, empty, q = branches.image, branches.no_image, branches.lm
    return log_softmax({w: q[w] + alpha * p[w] - beta * empty[w] for w in p})


def all_branches(captioner, features, max_words, lm=None) -> dict[tuple[int, ...], Branches]:
    """The branches after every prefix of up to `max_words` words."""
    prefixes, everything = [()], {}
    for _ in range(max_words + 1):
        for tokens in prefixes:
            everything[tokens] = branches_after(captioner, features, tokens, lm)
        prefixes = [(*tokens, word) for tokens in prefixes for word in everything[()].image if word != END]
    return everything


def all_captions(everything, guided, max_words) -> dict[tuple[int, ...], tuple[float, ...]]:
    """All captions of one to `max_words` words, with T + 1 guided log-probabilities each."""
    after = {tokens: guided(branches) for tokens, branches in everything.items()}
    return {tokens: caption_logprobs(tokens, after.__getitem__) for tokens in after if 1 <= len(tokens) <= max_words}


def caption_logprobs(tokens, after) -> tuple[float, ...]:
    """The log-probabilities of the words and of `<end>`, where `after(prefix)` has those of the next word."""
    return tuple(after(tokens[:t])[word] for t, word in enumerate((*tokens, END)))
