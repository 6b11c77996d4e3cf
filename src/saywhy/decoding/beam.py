"""Beam search over a batch of images.

Every image keeps `beam` unfinished captions and a pool of its `beam` best finished ones. A caption's score is
log p(words, `<end>`) / length^a. As log p ≤ 0 only falls as words are added, log p / (longest length)^a bounds what
an unfinished caption can still reach. A beam whose bound does not beat the best finished caption is dropped, and
the search ends when none is left: neither changes which caption is best.
The other captions of the pool are what was found on the way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.base import Attention, Captioner
from saywhy.data.vocabulary import END, START
from saywhy.decoding.config import Decoding, log_probabilities, permitted
from saywhy.decoding.hypothesis import Hypothesis
from saywhy.encoders.features import Features


@dataclass
class _Pool:
    """The best finished captions: their scores, the step at which they ended, and the beam they ended in. (B, k)."""

    scores: Tensor
    steps: Tensor
    beams: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> _Pool:
        none = torch.zeros_like(like, dtype=torch.long)
        return cls(torch.full_like(like, -torch.inf), none, none)

    def add(self, scores: Tensor, step: int) -> None:
        k = scores.shape[1]
        beams = torch.arange(k, device=scores.device).expand_as(scores)
        every = torch.cat([self.scores, scores], 1)
        self.scores, best = every.topk(k, dim=1)
        self.steps = torch.cat([self.steps, torch.full_like(beams, step)], 1).gather(1, best)
        self.beams = torch.cat([self.beams, beams], 1).gather(1, best)


@dataclass(frozen=True)
class _Trace:
    """One step of the search, for walking back: (B, k) parents, words, log p and log p of ending here.

    The attention has the computed beams alone, whose numbers among all B · k are `rows`.
    """

    parents: Tensor
    words: Tensor
    logprobs: Tensor
    end_logprobs: Tensor
    rows: Tensor
    attention: Attention

    def alpha(self, images: int, k: int) -> Tensor:
        return _spread(self.attention.alpha, self.rows, images * k).unflatten(0, (images, k))

    def beta(self, images: int, k: int) -> Tensor | None:
        beta = self.attention.beta
        return None if beta is None else _spread(beta, self.rows, images * k).unflatten(0, (images, k))


def beam_search(captioner: Captioner, features: Features, decoding: Decoding) -> list[list[Hypothesis]]:
    """Up to `beam` captions an image, the best first."""
    images, k, device = len(features), decoding.beam, captioner.device
    live = torch.full((images, k), -torch.inf, device=device)
    live[:, 0] = 0  # one empty caption an image, not k equal ones
    first_row = torch.arange(images, device=device)[:, None] * k  # (B, 1)
    rows = first_row.flatten()  # those of the B · k beams that can still win; the others are not computed
    said = torch.empty(images * k, 0, dtype=torch.long, device=device)
    word = torch.full((images,), START, device=device)
    state, pool, traces = captioner.start(features), _Pool.empty(live), list[_Trace]()

    for words in range(decoding.max_words + 1):
        step = captioner.step(word, state)
        raw = _spread(log_probabilities(step.logits), rows, images * k).view(images, k, -1)
        total = live[..., None] + permitted(raw.flatten(0, 1), said, decoding).view_as(raw)  # (B, k, V)
        pool.add(decoding.rank(total[..., END], words), words)
        total[..., END] = -torch.inf
        live, best = total.flatten(1).topk(k, dim=1)
        parents, chosen = best // total.shape[-1], best % total.shape[-1]
        logprobs = raw.flatten(1).gather(1, best)
        traces.append(_Trace(parents, chosen, logprobs, raw[..., END], rows, step.attention))
        hopeful = decoding.rank(live, decoding.max_words) > pool.scores[:, :1]
        came_from = (first_row + parents).flatten()  # (B · k)
        place = torch.zeros(images * k, dtype=torch.long, device=device)
        place[rows] = torch.arange(len(rows), device=device)  # where a beam stands among the computed ones
        rows = hopeful.flatten().nonzero().squeeze(1)
        if not len(rows):
            break
        live = live.masked_fill(~hopeful, -torch.inf)
        word, state = chosen.flatten()[rows], step.state.select(place[came_from[rows]])
        said = torch.cat([said.index_select(0, came_from), chosen.view(-1, 1)], dim=1)
    return _walk_back(pool, traces)


def _spread(values: Tensor, rows: Tensor, total: int) -> Tensor:
    """Values (R, …) in their rows of a tensor (total, …) that is −∞ elsewhere."""
    if len(rows) == total:
        return values
    return values.new_full((total, *values.shape[1:]), -torch.inf).index_copy(0, rows, values)


def _walk_back(pool: _Pool, traces: list[_Trace]) -> list[list[Hypothesis]]:
    images, k = pool.scores.shape

    def gathered(parts: list[Tensor]) -> np.ndarray:
        return torch.stack(parts).detach().float().cpu().numpy()

    parents, words = (
        torch.stack([getattr(trace, name) for trace in traces]).cpu().numpy() for name in ("parents", "words")
    )
    logprobs, ends = gathered([t.logprobs for t in traces]), gathered([t.end_logprobs for t in traces])
    alpha = gathered([t.alpha(images, k) for t in traces])
    betas = [each for t in traces if (each := t.beta(images, k)) is not None]
    beta = gathered(betas) if betas else None

    def walk(image: int, score: float, step: int, beam: int) -> Hypothesis:
        path, log_p = [], [float(ends[step, image, beam])]
        looked = []
        for t in range(step - 1, -1, -1):
            path.append(int(words[t, image, beam]))
            log_p.append(float(logprobs[t, image, beam]))
            beam = int(parents[t, image, beam])
            looked.append((t, image, beam))  # the attention belongs to the beam the word was chosen from
        looked.reverse()
        return Hypothesis(
            words=tuple(reversed(path)),
            logprobs=tuple(reversed(log_p)),
            score=score,
            alpha=np.stack([alpha[at] for at in looked]),
            beta=None if beta is None else np.stack([beta[at] for at in looked]),
        )

    found: list[list[Hypothesis]] = []
    triples = zip(pool.scores.tolist(), pool.steps.tolist(), pool.beams.tolist(), strict=True)
    for image, (scores, steps, beams) in enumerate(triples):
        ended = [each for each in zip(scores, steps, beams, strict=True) if each[0] > -np.inf]
        found.append([walk(image, *each) for each in ended])
    return found
