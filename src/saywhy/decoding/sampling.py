"""Greedy decoding and sampling: one caption an image, word by word."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from saywhy.captioners.base import Attention, Captioner
from saywhy.data.vocabulary import END, START
from saywhy.decoding.config import Decoding, log_probabilities, permitted
from saywhy.decoding.hypothesis import Hypothesis
from saywhy.encoders.features import Features


def greedy(captioner: Captioner, features: Features, decoding: Decoding) -> list[Hypothesis]:
    """The likeliest word each time."""
    return _roll(captioner, features, decoding, lambda log_p: log_p.argmax(dim=-1))


def sample(captioner: Captioner, features: Features, decoding: Decoding) -> list[Hypothesis]:
    """Draw each word from the model's distribution, sharpened and cut as `decoding` says.

    The draw is made on the CPU from `decoding.seed`, so that every device draws the same.
    """
    generator = torch.Generator().manual_seed(decoding.seed)

    def draw(log_p: Tensor) -> Tensor:
        p = cut(log_p / decoding.temperature, decoding.top_k, decoding.top_p).softmax(dim=-1)
        return torch.multinomial(p.cpu(), 1, generator=generator).squeeze(1).to(log_p.device)

    return _roll(captioner, features, decoding, draw)


def cut(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits (R, V) with −∞ outside the `top_k` likeliest words and outside the smallest set with mass `top_p`."""
    if 0 < top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True)
        p = ranked.softmax(dim=-1)
        beyond = p.cumsum(dim=-1) - p >= top_p  # the word that crosses the line still belongs to the set
        logits = logits.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    return logits


def _roll(
    captioner: Captioner, features: Features, decoding: Decoding, choose: Callable[[Tensor], Tensor]
) -> list[Hypothesis]:
    rows = len(features)
    word = torch.full((rows,), START, device=captioner.device)
    said = torch.empty(rows, 0, dtype=torch.long, device=captioner.device)
    ended = torch.zeros(rows, dtype=torch.bool, device=captioner.device)
    state, logprobs, attentions = captioner.start(features), [], []
    while not bool(ended.all()):
        step = captioner.step(word, state)
        log_p = log_probabilities(step.logits)
        word, state = choose(permitted(log_p, said, decoding)), step.state
        logprobs.append(log_p.gather(1, word[:, None]).squeeze(1))
        attentions.append(step.attention)
        said = torch.cat([said, word[:, None]], dim=1)
        ended |= word == END
    return _hypotheses(said, torch.stack(logprobs, 1), attentions, decoding)


def _hypotheses(said: Tensor, logprobs: Tensor, attentions: list[Attention], decoding: Decoding) -> list[Hypothesis]:
    alpha = torch.stack([attention.alpha for attention in attentions], 1).float().cpu().numpy()
    betas = [attention.beta for attention in attentions if attention.beta is not None]
    beta = torch.stack(betas, 1).float().cpu().numpy() if betas else None
    found = []
    for row, numbers in enumerate(said.tolist()):
        words = numbers.index(END)
        log_p = logprobs[row, : words + 1]
        found.append(
            Hypothesis(
                words=tuple(numbers[:words]),
                logprobs=tuple(log_p.tolist()),
                score=float(decoding.rank(log_p.cpu().double().sum(), words)),
                alpha=alpha[row, :words],
                beta=None if beta is None else beta[row, :words],
            )
        )
    return found
