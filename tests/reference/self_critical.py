"""Self-critical training in the plainest way: the expected reward as a sum over all captions."""

from __future__ import annotations

import math
from itertools import product

import torch

from saywhy.data.tokenizer import END, START


def all_captions(words, steps):
    """All captions of at least one word that end with `<end>`, or have not ended after `steps` words."""
    captions = []
    for length in range(1, steps + 1):
        for caption in product(words, repeat=length):
            if length < steps:
                captions.append((*caption, END))
            else:
                captions.append(caption)
    return captions


def word_log_probabilities(captioner, features, caption, words, start=START, temperature=1.0):
    """log p of each token of a caption of one image; with gradient. p is over `words` and, after the first, `<end>`."""
    state, previous, result = captioner.start(features), start, []
    for t, token in enumerate(caption):
        step = captioner.step(torch.tensor([previous]), state)
        allowed = [*words] if t == 0 else [*words, END]
        exponentials = {word: torch.exp(step.logits[0, word] / temperature) for word in allowed}
        result.append(torch.log(exponentials[token] / sum(exponentials.values())))
        state, previous = step.state, token
    return result


def expected_reward(captioner, features, reward, words, steps, **options):
    """Σ_w p(w) r(w) over all captions w; its gradient is what self-critical training estimates."""
    total = 0.0
    for caption in all_captions(words, steps):
        log_p = sum(word_log_probabilities(captioner, features, caption, words, **options))
        total = total + torch.exp(log_p) * reward(caption)
    return total


def greedy_caption(captioner, features, words, steps, start=START):
    """The most probable word at each step."""
    caption = ()
    while len(caption) < steps and END not in caption:
        candidates = [*words, END] if caption else [*words]
        scores = {}
        for word in candidates:
            scores[word] = word_log_probabilities(captioner, features, (*caption, word), words, start)[-1].item()
        caption = (*caption, max(scores, key=scores.get))
    return caption


def loss(rewards, baselines, log_ps):
    """−1/n Σ_s (r_s − b_s) Σ_t log p of the samples of one image."""
    terms = [(r - b) * math.fsum(log_p) for r, b, log_p in zip(rewards, baselines, log_ps, strict=True)]
    return -math.fsum(terms) / len(terms)


def baseline_of_others(rewards):
    """The mean of the other samples' rewards, for each sample."""
    return [(sum(rewards) - r) / (len(rewards) - 1) for r in rewards]
