"""Does the captioner see an object in the image when its caption does not suggest it? Two answers of the decoder.

    prompted(o) = log Σ_{w names o} p(w | s, image)       after a short prompt s, such as "a picture of a"
    mentions(o) = share of S sampled captions that support o, as a reference caption would

Both read the image's features again, but need neither the encoder nor relevance. The random numbers of the samples are
the same for every image, so that the result depends on the image alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.base import Captioner, State
from saywhy.data.tokenizer import END, Vocabulary
from saywhy.decoding.config import log_probabilities

SAMPLES = 24
"""Sampled captions per image."""
TEMPERATURE = 1.25
"""Of sampling: above 1, because captioners are surer of their words than they are right."""
SEED = 0
MAX_WORDS = 16
"""Words of a sampled caption, at most."""
PROMPTS = (
    ("a",),
    ("the",),
    ("two",),
    ("several",),
    ("there", "is", "a"),
    ("a", "picture", "of", "a"),
    ("a", "close", "up", "of", "a"),
    ("a", "man", "and", "a"),
    ("a", "person", "on", "a"),
)
"""What comes before an object word; those with a word that a vocabulary lacks are left out."""


def prompts_in(vocabulary: Vocabulary) -> list[list[int]]:
    """The prompts that a vocabulary can express, as token ids; the empty prompt if there are none."""
    prompts = [[vocabulary.ids[word] for word in prompt] for prompt in PROMPTS if vocabulary.ids.keys() >= {*prompt}]
    return prompts or [[]]


def prompted_log_p(captioner: Captioner, state: State, starts: Tensor, prompts: Sequence[Sequence[int]]) -> Tensor:
    """log p of every word after each of P prompts, (B, P, V).

    Args:
        captioner: the captioner.
        state: before the first word, of B images.
        starts: the tokens that captions begin with, (B,).
        prompts: token ids.
    """
    B, P = len(starts), len(prompts)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=starts.device).repeat(B)  # (B · P)
    image = torch.arange(B, device=starts.device).repeat_interleave(P)
    rows, state, tokens = torch.arange(B * P, device=starts.device), state.select(image), starts[image]
    log_p = torch.empty(B * P, captioner.vocabulary_size, device=starts.device)
    for t in range(max(map(len, prompts)) + 1):
        step = captioner.step(tokens, state)
        is_complete = lengths[rows] == t
        log_p[rows[is_complete]] = log_probabilities(step.logits[is_complete], captioner.styles)
        unfinished = (~is_complete).nonzero().squeeze(1)
        if not len(unfinished):
            break
        rows, state = rows[unfinished], step.state.select(unfinished)
        tokens = torch.tensor([prompts[row % P][t] for row in rows.tolist()], device=starts.device)
    return log_p.unflatten(0, (B, P))


def sampled_captions(captioner: Captioner, state: State, starts: Tensor, count: int = SAMPLES) -> list[list[list[int]]]:
    """`count` captions of each of B images, drawn from the captioner's distribution, as token ids without markers.

    Samples that have begun alike share one row of the decoder. The next words of the n samples of a row are those at n
    evenly spaced quantiles of its distribution, from a random first one on: each sample follows the distribution, and
    together they follow it more closely than independent ones. `state` and `starts` are as for `prompted_log_p`.
    """
    captions: list[list[int]] = [[] for _ in range(len(starts) * count)]
    samples = list(np.arange(len(captions)).reshape(-1, count))  # by row of the decoder, the samples that share it
    tokens = starts
    for offset in np.random.default_rng(SEED).random(MAX_WORDS):
        step = captioner.step(tokens, state)
        log_p = log_probabilities(step.logits, captioner.styles)
        p = (log_p / TEMPERATURE).double().softmax(dim=-1).cpu().numpy()
        parents, chosen, groups = [], [], []
        for row, row_samples in enumerate(samples):
            words = _at_quantiles(p[row], (np.arange(len(row_samples)) + offset) / len(row_samples))
            for word in np.unique(words[words != END]).tolist():
                parents.append(row)
                chosen.append(word)
                groups.append(row_samples[words == word])
                for sample in groups[-1]:
                    captions[sample].append(word)
        if not chosen:
            break
        samples, tokens = groups, torch.tensor(chosen, device=starts.device)
        state = step.state.select(torch.tensor(parents, device=starts.device))
    return [captions[first : first + count] for first in range(0, len(captions), count)]


def _at_quantiles(p: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """The words at quantiles in [0, 1) of a distribution (V,)."""
    cumulative = p.cumsum()
    return np.searchsorted(cumulative, quantiles * cumulative[-1], side="right")
