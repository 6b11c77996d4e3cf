"""Beam search over a batch of images.

Every image has `beam` unfinished captions and a pool of its `beam` best finished ones. The score of a caption is
log p(words, `<end>`) / length^a; with guidance, p is the guided distribution (`guidance.py`). As log p ≤ 0 only falls
as words are added, log p / (maximal length)^a is an upper bound on the score of any completion of an unfinished
caption. A beam whose bound is not above the score of the best finished caption is dropped, and the search ends when no
beam is left: neither changes which caption is best. The other captions of the pool are those that the search happened
to finish.

Samples whose captions begin alike share rows of the decoder in the same way (`sampled_captions`), and so do short
prompts that several captions begin with (`prompted_log_p`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.base import Attention, Captioner, S, State
from saywhy.data.tokenizer import END, START
from saywhy.decoding.config import (
    Decoding,
    Hypothesis,
    constrained,
    decoding_methods,
    log_probabilities,
    next_word_log_probabilities,
)
from saywhy.encoders.base import Features


@decoding_methods.register("beam")
def best_of_beam(
    captioner: Captioner, features: Features, decoding: Decoding, indices: Sequence[int], start: int
) -> list[Hypothesis]:
    """The best caption of each image that beam search finds."""
    return [hypotheses[0] for hypotheses in beam_search(captioner, features, decoding, start)]


@dataclass
class _Pool:
    """The best finished captions, (B, k): their scores, the step at which they ended, and the beam they ended in."""

    scores: Tensor
    steps: Tensor
    beams: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> _Pool:
        zeros = torch.zeros_like(like, dtype=torch.long)
        return cls(torch.full_like(like, -torch.inf), zeros, zeros)

    def add(self, scores: Tensor, step: int) -> None:
        k = scores.shape[1]
        beams = torch.arange(k, device=scores.device).expand_as(scores)
        self.scores, best = torch.cat([self.scores, scores], 1).topk(k, dim=1)
        self.steps = torch.cat([self.steps, torch.full_like(beams, step)], 1).gather(1, best)
        self.beams = torch.cat([self.beams, beams], 1).gather(1, best)


@dataclass(frozen=True)
class _SearchStep:
    """One step of the search, for backtracking: (B, k) parent beams, tokens, their log p, and log p of `<end>`.

    With guidance, log p is the model's own, and not what the search adds up.
    The attention covers only the computed beams, whose numbers among all B · k are `rows`.
    """

    parents: Tensor
    tokens: Tensor
    logprobs: Tensor
    end_logprobs: Tensor
    rows: Tensor
    attention: Attention

    def alpha(self, images: int, k: int) -> Tensor:
        return _scatter(self.attention.alpha, self.rows, images * k).unflatten(0, (images, k))

    def beta(self, images: int, k: int) -> Tensor | None:
        beta = self.attention.beta
        return None if beta is None else _scatter(beta, self.rows, images * k).unflatten(0, (images, k))


def beam_search(
    captioner: Captioner, features: Features, decoding: Decoding, start: int = START
) -> list[list[Hypothesis]]:
    """Up to `beam` captions per image, the best first; they begin with the token `start`."""
    images, k, device = len(features), decoding.beam, captioner.device
    live = torch.full((images, k), -torch.inf, device=device)
    live[:, 0] = 0  # one empty caption per image, not k equal ones
    first_row = torch.arange(images, device=device)[:, None] * k  # (B, 1)
    rows = first_row.flatten()  # those of the B · k beams that can still win; the others are not computed
    tokens = torch.empty(images * k, 0, dtype=torch.long, device=device)
    last = torch.full((images,), start, device=device)
    state, pool, steps = captioner.start(features), _Pool.empty(live), list[_SearchStep]()

    for words in range(decoding.max_words + 1):
        step = captioner.step(last, state)
        log_p, guided = next_word_log_probabilities(step, captioner.styles)
        raw = _scatter(log_p, rows, images * k).view(images, k, -1)
        ranked = raw.flatten(0, 1) if guided is log_p else _scatter(guided, rows, images * k)
        total = live[..., None] + constrained(ranked, tokens, decoding).view_as(raw)  # (B, k, V)
        pool.add(decoding.score(total[..., END], words), words)
        total[..., END] = -torch.inf
        live, best = total.flatten(1).topk(k, dim=1)
        parents, chosen = best // total.shape[-1], best % total.shape[-1]
        logprobs = raw.flatten(1).gather(1, best)
        steps.append(_SearchStep(parents, chosen, logprobs, raw[..., END], rows, step.attention))
        can_win = decoding.score(live, decoding.max_words) > pool.scores[:, :1]
        parent_rows = (first_row + parents).flatten()  # (B · k)
        computed_row = torch.zeros(images * k, dtype=torch.long, device=device)
        computed_row[rows] = torch.arange(len(rows), device=device)  # of each beam, its row in the decoder's state
        computed, rows = rows, can_win.flatten().nonzero().squeeze(1)
        if not len(rows):
            break
        live = live.masked_fill(~can_win, -torch.inf)
        state = _reorder(step.state, state, computed_row[parent_rows[rows]], computed // k, rows // k)
        last = chosen.flatten()[rows]
        tokens = torch.cat([tokens.index_select(0, parent_rows), chosen.view(-1, 1)], dim=1)
    return _backtrack(pool, steps)


def _reorder(state: S, before: S, rows: Tensor, images: Tensor, new_images: Tensor) -> S:
    """The states of these rows, given the image of each row in `state` and in the result.

    While no image loses a beam, features are not copied for each beam and word. On a GPU comparing the images would
    wait for the device, and copies are cheap.
    """
    count = len(new_images)
    if images.device.type == "cpu" and len(images) >= count and torch.equal(images[:count], new_images):
        return state.select_beams(rows, before)
    return state.select(rows)


def _scatter(values: Tensor, rows: Tensor, total: int) -> Tensor:
    """Values (R, …) at their rows of a tensor (total, …) that is −∞ elsewhere."""
    if len(rows) == total:
        return values
    return values.new_full((total, *values.shape[1:]), -torch.inf).index_copy(0, rows, values)


def _backtrack(pool: _Pool, steps: list[_SearchStep]) -> list[list[Hypothesis]]:
    """The captions of the pool, followed from their last beam to the first step."""
    images, k = pool.scores.shape

    def stacked(parts: list[Tensor]) -> np.ndarray:
        return torch.stack(parts).detach().float().cpu().numpy()

    parents, tokens = (
        torch.stack([getattr(step, name) for step in steps]).cpu().numpy() for name in ("parents", "tokens")
    )
    logprobs, ends = stacked([step.logprobs for step in steps]), stacked([step.end_logprobs for step in steps])
    alpha = stacked([step.alpha(images, k) for step in steps])
    betas = [values for step in steps if (values := step.beta(images, k)) is not None]
    beta = stacked(betas) if betas else None

    def follow(image: int, score: float, length: int, beam: int) -> Hypothesis:
        path, log_p, origins = [], [float(ends[length, image, beam])], []
        for t in range(length - 1, -1, -1):
            path.append(int(tokens[t, image, beam]))
            log_p.append(float(logprobs[t, image, beam]))
            beam = int(parents[t, image, beam])
            origins.append((t, image, beam))  # the attention is that of the beam the word was chosen from
        origins.reverse()
        return Hypothesis(
            tokens=tuple(reversed(path)),
            logprobs=tuple(reversed(log_p)),
            score=score,
            alpha=np.stack([alpha[origin] for origin in origins]),
            beta=None if beta is None else np.stack([beta[origin] for origin in origins]),
        )

    finished = zip(pool.scores.tolist(), pool.steps.tolist(), pool.beams.tolist(), strict=True)
    return [
        [follow(image, *end) for end in zip(scores, lengths, beams, strict=True) if end[0] > -np.inf]
        for image, (scores, lengths, beams) in enumerate(finished)
    ]


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


def sampled_captions(
    captioner: Captioner, state: State, starts: Tensor, count: int, temperature: float = 1.0, max_words: int = 20
) -> list[list[list[int]]]:
    """`count` captions of each of B images, drawn from the captioner's distribution, as token ids without markers.

    Samples that have begun alike share one row of the decoder. The next words of the n samples of a row are those at n
    evenly spaced quantiles of its distribution, from a random first one on: each sample follows the distribution, and
    together they follow it more closely than independent ones. The random numbers are the same for all images.

    Args:
        captioner: the captioner.
        state: before the first word, of B images.
        starts: the tokens that captions begin with, (B,).
        count: of samples per image.
        temperature: of sampling.
        max_words: longer captions are cut.
    """
    captions: list[list[int]] = [[] for _ in range(len(starts) * count)]
    samples = list(np.arange(len(captions)).reshape(-1, count))  # by row of the decoder, the samples that share it
    tokens = starts
    for offset in np.random.default_rng(0).random(max_words):
        step = captioner.step(tokens, state)
        log_p = log_probabilities(step.logits, captioner.styles)
        p = (log_p / temperature).double().softmax(dim=-1).cpu().numpy()
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
