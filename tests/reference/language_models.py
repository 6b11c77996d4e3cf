"""Language models by their definition: one pass over the whole text per question, no cache, no batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def next_token_log_p(model: Any, ids: Sequence[int]) -> Tensor:
    """log P of the token after a text of a Hugging Face model."""
    with torch.no_grad():
        return model(torch.tensor([list(ids)])).logits[0, -1].double().log_softmax(-1)


def tokens_log_p(model: Any, prefix: Sequence[int], ids: Sequence[int]) -> float:
    """log P of tokens after a text, token by token."""
    text, total = list(prefix), 0.0
    for token in ids:
        total += float(next_token_log_p(model, text)[token])
        text.append(token)
    return total


def mass(model: Any, prefix: Sequence[int], tokens: Sequence[int]) -> float:
    """log of the probability that one of these tokens follows."""
    return math.log(sum(math.exp(float(next_token_log_p(model, prefix)[token])) for token in tokens))


def caption_log_q(model: Any, tokens: Tensor) -> list[float]:
    """log q of each word of a caption, `<start>` to `<end>`, of a language model of saywhy; one step per word."""
    state, scores = model.start(1), []
    with torch.no_grad():
        for before, word in zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True):
            logits, state = model.step(torch.tensor([before]), state)
            scores.append(float(logits[0].double().log_softmax(-1)[word]))
    return scores
