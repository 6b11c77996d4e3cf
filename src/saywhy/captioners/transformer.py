"""Layers of a causal transformer (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

With queries Q, keys K and values V of d numbers per head:

    A = softmax(Q Kᵀ / √d)                       (B, heads, T, P) the attention
    context = A V                                (B, heads, T, d)

A layer is pre-norm, with x (B, T, width):

    x ← x + attention(norm x, words so far)
    x ← x + MLP(norm x)

Keys and values of previous words are cached, so that decoding computes each word once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Context (B, heads, T, d) and attention (B, heads, T, P), which is 0 where `hidden` (…, T, P) is true."""
    energies = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, heads, T, P)
    if hidden is not None:
        energies = energies.masked_fill(hidden, -torch.inf)
    A = energies.softmax(dim=-1)
    return A @ v, A


class MultiHeadAttention(nn.Module):
    """Attention from vectors of `width` numbers to vectors of `memory` numbers."""

    def __init__(self, width: int, heads: int, memory: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(memory or width, width, bias=False)  # a bias would add the same to all energies of a query
        self.v = nn.Linear(memory or width, width)
        self.out = nn.Linear(width, width)

    def keys_values(self, vectors: Tensor) -> Tensor:
        """Keys and values of vectors (B, P, memory): (B, 2, heads, P, d)."""
        return torch.stack([self._split(self.k(vectors)), self._split(self.v(vectors))], dim=1)

    def forward(self, x: Tensor, keys_values: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output for x (B, T, width), (B, T, width), and the attention (B, heads, T, P)."""
        k, v = keys_values.unbind(1)
        context, A = scaled_dot_product(self._split(self.q(x)), k, v, hidden)
        return self.out(context.transpose(1, 2).flatten(2)), A  # (B, T, width)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, T, d)


class Layer(nn.Module):
    """A pre-norm layer over words; each word attends to itself and to the words before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """The output for x (B, T, width) after t cached words (B, 2, heads, t, d), and the cache of t + T words."""
        x, cache = self.self_attention(x, cache)
        return self.feed_forward(x), cache

    def self_attention(self, x: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """The first sublayer, and the keys and values of all words so far."""
        normed = self.attention_norm(x)
        cache = torch.cat([cache, self.attention.keys_values(normed)], dim=-2)  # (B, 2, heads, t + T, d)
        context, _ = self.attention(normed, cache, later_words(x.shape[1], cache.shape[-2], x.device))
        return x + self.dropout(context), cache

    def feed_forward(self, x: Tensor) -> Tensor:
        """The second sublayer, the MLP."""
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


def later_words(new: int, total: int, device: torch.device | None = None) -> Tensor | None:
    """Which of `total` words come after each of the last `new` words, (new, total); None for a single word.

    >>> later_words(2, 3)
    tensor([[False, False,  True],
            [False, False, False]])
    """
    return None if new == 1 else torch.ones(new, total, dtype=torch.bool, device=device).triu(total - new + 1)


def positions(first: int, count: int, like: Tensor) -> Tensor:
    """Sinusoidal embeddings of positions `first` and on, (count, width of `like`), wavelengths 2π to 10000 · 2π."""
    half = like.shape[-1] // 2
    position = torch.arange(first, first + count, dtype=like.dtype, device=like.device)
    frequency = 10000 ** (-torch.arange(half, dtype=like.dtype, device=like.device) / half)
    angle = torch.outer(position, frequency)  # (count, half)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
