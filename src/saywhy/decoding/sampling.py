"""Greedy decoding and sampling: one caption per image, word by word."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.base import Attention, Captioner
from saywhy.data.tokenizer import END
from saywhy.decoding.config import Decoding, Hypothesis, constrained, decoding_methods, next_word_log_probabilities
from saywhy.encoders.base import Features


@decoding_methods.register("greedy")
def greedy(
    captioner: Captioner, features: Features, decoding: Decoding, indices: Sequence[int], start: int
) -> list[Hypothesis]:
    """The most probable word at each step."""
    return _decode_word_by_word(captioner, features, decoding, start, lambda log_p: log_p.argmax(dim=-1))


@decoding_methods.register("sample")
def sample(
    captioner: Captioner, features: Features, decoding: Decoding, indices: Sequence[int], start: int
) -> list[Hypothesis]:
    """Draw each word from the model's distribution, changed by temperature, top_k and top_p.

    Every image has its own random numbers, seeded by (seed, index) and drawn on the CPU: its caption depends neither
    on the other images of the batch nor on the device.
    """
    draws = iter(_uniforms(decoding.seed, indices, decoding.max_words + 1))

    def draw(log_p: Tensor) -> Tensor:
        logits = filter_top_k_top_p(log_p / decoding.temperature, decoding.top_k, decoding.top_p)
        return inverse_cdf(logits.softmax(dim=-1), next(draws))

    return _decode_word_by_word(captioner, features, decoding, start, draw)


def _uniforms(seed: int, indices: Sequence[int], steps: int) -> Tensor:
    """Random numbers in [0, 1), (steps, B)."""
    columns = [np.random.default_rng((seed, index)).random(steps) for index in indices]
    return torch.from_numpy(np.stack(columns, axis=1))


def inverse_cdf(p: Tensor, u: Tensor) -> Tensor:
    """The words (R,) at which the cumulative distributions of `p` (R, V) pass `u` (R,), in float64 on the CPU."""
    cdf = p.cpu().double().cumsum(dim=-1)
    cdf = cdf / cdf[:, -1:]  # ends with exactly 1, which is above u: a word with p > 0 is found
    return torch.searchsorted(cdf, u[:, None], right=True).squeeze(1).to(p.device)


def filter_top_k_top_p(logits: Tensor, top_k: int, top_p: float) -> Tensor:
    """Logits (R, V) with −∞ outside the `top_k` most probable words and outside the smallest set with mass `top_p`."""
    if 0 < top_k < logits.shape[-1]:
        kth = logits.topk(top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p < 1:
        ranked, order = logits.sort(dim=-1, descending=True)
        p = ranked.softmax(dim=-1)
        outside = p.cumsum(dim=-1) - p >= top_p  # the word with which the mass passes top_p belongs to the set
        logits = logits.masked_fill(outside.scatter(-1, order, outside), -torch.inf)
    return logits


def _decode_word_by_word(
    captioner: Captioner, features: Features, decoding: Decoding, start: int, choose: Callable[[Tensor], Tensor]
) -> list[Hypothesis]:
    """Captions whose every word is `choose(log_p)`, (R, V) → (R,); rows go on until all have ended."""
    rows = len(features)
    token = torch.full((rows,), start, device=captioner.device)
    tokens = torch.empty(rows, 0, dtype=torch.long, device=captioner.device)
    ended = torch.zeros(rows, dtype=torch.bool, device=captioner.device)
    state, logprobs, guided_logprobs, attentions = captioner.start(features), [], [], []
    while not bool(ended.all()):
        step = captioner.step(token, state)
        log_p, guided = next_word_log_probabilities(step, captioner.styles)
        token, state = choose(constrained(guided, tokens, decoding)), step.state
        logprobs.append(log_p.gather(1, token[:, None]).squeeze(1))
        guided_logprobs.append(guided.gather(1, token[:, None]).squeeze(1))
        attentions.append(step.attention)
        tokens = torch.cat([tokens, token[:, None]], dim=1)
        ended |= token == END
    return _hypotheses(tokens, torch.stack(logprobs, 1), torch.stack(guided_logprobs, 1), attentions, decoding)


def _hypotheses(
    tokens: Tensor, logprobs: Tensor, guided_logprobs: Tensor, attentions: list[Attention], decoding: Decoding
) -> list[Hypothesis]:
    alpha = torch.stack([attention.alpha for attention in attentions], 1).float().cpu().numpy()
    betas = [attention.beta for attention in attentions if attention.beta is not None]
    beta = torch.stack(betas, 1).float().cpu().numpy() if betas else None
    hypotheses = []
    for row, numbers in enumerate(tokens.tolist()):
        words = numbers.index(END)
        hypotheses.append(
            Hypothesis(
                tokens=tuple(numbers[:words]),
                logprobs=tuple(logprobs[row, : words + 1].tolist()),
                score=float(decoding.score(guided_logprobs[row, : words + 1].cpu().double().sum(), words)),
                alpha=alpha[row, :words],
                beta=None if beta is None else beta[row, :words],
            )
        )
    return hypotheses
