"""Decoding in the plainest way: all captions by brute force, and beam search over sorted Python lists."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from saywhy.data.tokenizer import END, PAD, START, UNK


@dataclass(frozen=True)
class Unfinished:
    """The tokens so far, their log-probabilities, and the log-probability of each possible next token."""

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    next_logprobs: dict[int, float]
    state: object


def empty_caption(captioner, features):
    """The caption of one image before its first word."""
    return _after(captioner, (), (), START, captioner.start(features))


def extended(captioner, caption, token):
    logprobs = (*caption.logprobs, caption.next_logprobs[token])
    return _after(captioner, (*caption.tokens, token), logprobs, token, caption.state)


def _after(captioner, tokens, logprobs, last, state):
    step = captioner.step(torch.tensor([last]), state)
    logits = step.logits[0].double().tolist()
    allowed = [token for token in range(len(logits)) if token not in (PAD, START, UNK)]
    highest = max(logits[token] for token in allowed)
    total = highest + math.log(sum(math.exp(logits[token] - highest) for token in allowed))
    return Unfinished(tokens, logprobs, {token: logits[token] - total for token in allowed}, step.state)


def all_captions(captioner, features, max_words):
    """All captions of one to `max_words` words of one image, with T + 1 log-probabilities each."""
    finished, unfinished = {}, [empty_caption(captioner, features)]
    for _ in range(max_words):
        unfinished = [
            extended(captioner, caption, token)
            for caption in unfinished
            for token in caption.next_logprobs
            if token != END
        ]
        for caption in unfinished:
            finished[caption.tokens] = (*caption.logprobs, caption.next_logprobs[END])
    return finished


def score(logprobs, length_penalty):
    return sum(logprobs) / len(logprobs) ** length_penalty


def best_caption(captions, length_penalty, min_words, max_words):
    """The best of all captions, and its score."""
    allowed = {tokens: logprobs for tokens, logprobs in captions.items() if min_words <= len(tokens) <= max_words}
    best = max(allowed, key=lambda tokens: score(allowed[tokens], length_penalty))
    return best, score(allowed[best], length_penalty)


def beam_search(captioner, features, beam, length_penalty, min_words, max_words):
    """The best caption of one image: `beam` unfinished captions up to `max_words`, without stopping early."""
    unfinished, finished = [empty_caption(captioner, features)], []
    for words in range(max_words + 1):
        for caption in unfinished:
            if words >= min_words:
                logprobs = (*caption.logprobs, caption.next_logprobs[END])
                finished.append((score(logprobs, length_penalty), caption.tokens))
        if words < max_words:
            longer = [(caption, token) for caption in unfinished for token in caption.next_logprobs if token != END]
            longer.sort(key=lambda pair: -(sum(pair[0].logprobs) + pair[0].next_logprobs[pair[1]]))
            unfinished = [extended(captioner, caption, token) for caption, token in longer[:beam]]
    best_score, best = max(finished)
    return best, best_score
