"""Decoding in the plainest way: every caption there is, or lists of captions that are sorted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from saywhy.data.vocabulary import END, PAD, START, UNK


@dataclass(frozen=True)
class Unfinished:
    """Some words, their log-probabilities, and the log-probabilities of every next word."""

    words: tuple[int, ...]
    logprobs: tuple[float, ...]
    next_logprobs: dict[int, float]
    state: object


def beginning(captioner, features):
    """Nothing said yet, of one image."""
    return _after(captioner, (), (), START, captioner.start(features))


def extended(captioner, before, word):
    logprobs = (*before.logprobs, before.next_logprobs[word])
    return _after(captioner, (*before.words, word), logprobs, word, before.state)


def _after(captioner, words, logprobs, last, state):
    step = captioner.step(torch.tensor([last]), state)
    logits = step.logits[0].double().tolist()
    speakable = [number for number in range(len(logits)) if number not in (PAD, START, UNK)]
    highest = max(logits[number] for number in speakable)
    total = highest + math.log(sum(math.exp(logits[number] - highest) for number in speakable))
    return Unfinished(words, logprobs, {number: logits[number] - total for number in speakable}, step.state)


def every_caption(captioner, features, max_words):
    """All captions of one to `max_words` words of one image, with T + 1 log-probabilities each."""
    found, unfinished = {}, [beginning(captioner, features)]
    for _ in range(max_words):
        unfinished = [
            extended(captioner, before, word) for before in unfinished for word in before.next_logprobs if word != END
        ]
        for each in unfinished:
            found[each.words] = (*each.logprobs, each.next_logprobs[END])
    return found


def rank(logprobs, length):
    return sum(logprobs) / len(logprobs) ** length


def best_caption(captions, length, min_words, max_words):
    """The best of all captions, and its score."""
    fitting = {words: logprobs for words, logprobs in captions.items() if min_words <= len(words) <= max_words}
    words = max(fitting, key=lambda words: rank(fitting[words], length))
    return words, rank(fitting[words], length)


def beam_search(captioner, features, beam, length, min_words, max_words):
    """The best caption of one image: `beam` unfinished captions to the very end, never stopping early."""
    unfinished, finished = [beginning(captioner, features)], []
    for words in range(max_words + 1):
        for each in unfinished:
            if words >= min_words:
                logprobs = (*each.logprobs, each.next_logprobs[END])
                finished.append((rank(logprobs, length), each.words))
        if words < max_words:
            longer = [(each, word) for each in unfinished for word in each.next_logprobs if word != END]
            longer.sort(key=lambda pair: -(sum(pair[0].logprobs) + pair[0].next_logprobs[pair[1]]))
            unfinished = [extended(captioner, before, word) for before, word in longer[:beam]]
    score, best = max(finished)
    return best, score
