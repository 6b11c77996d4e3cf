"""The parts of a causal transformer, written out (Vaswani et al. 2017, https://arxiv.org/abs/1706.03762).

With queries Q, keys K and values V of d numbers a head:

    A = softmax(Q Kᵀ / √d)                       (B, heads, T, P) the attention
    context = A V                                (B, heads, T, d)

A layer is pre-norm, with x (B, T, width):

    x ← x + attention(norm x, words so far)
    x ← x + MLP(norm x)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def attend(q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Context (B, heads, T, d) and attention (B, heads, T, P); none goes where `hidden` (…, T, P) is true."""
    energies = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])  # (B, heads, T, P)
    if hidden is not None:
        energies = energies.masked_fill(hidden, -torch.inf)
    A = energies.softmax(dim=-1)
    return A @ v, A


class MultiHeadAttention(nn.Module):
    """Several heads that look from vectors of `width` numbers at vectors of `memory` numbers."""

    def __init__(self, width: int, heads: int, memory: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(memory or width, width, bias=False)  # softmax forgets what all energies have in common
        self.v = nn.Linear(memory or width, width)
        self.out = nn.Linear(width, width)

    def remember(self, memory: Tensor) -> Tensor:
        """Keys and values of vectors (B, P, memory), which is all that looking needs: (B, 2, heads, P, d)."""
        return torch.stack([self._split(self.k(memory)), self._split(self.v(memory))], dim=1)

    def forward(self, x: Tensor, remembered: Tensor, hidden: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """What x (B, T, width) finds there, (B, T, width), and the attention (B, heads, T, P)."""
        k, v = remembered.unbind(1)
        context, A = attend(self._split(self.q(x)), k, v, hidden)
        return self.out(context.transpose(1, 2).flatten(2)), A  # (B, T, width)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, heads, T, d)


class Layer(nn.Module):
    """A pre-norm layer over words, of which each sees itself and those before it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = MultiHeadAttention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        """Read x (B, T, width) after what was said, (B, 2, heads, t, d): the new x and all that is said now."""
        x, said = self.listen(x, said)
        return self.think(x), said

    def listen(self, x: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
        """The half that attention_modes to the words so far."""
        normed = self.attention_norm(x)
        said = torch.cat([said, self.attention.remember(normed)], dim=-2)  # (B, 2, heads, t + T, d)
        heard, _ = self.attention(normed, said, later(x.shape[1], said.shape[-2], x.device))
        return x + self.dropout(heard), said

    def think(self, x: Tensor) -> Tensor:
        """The half that looks at each word alone."""
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


def later(new: int, known: int, device: torch.device | None = None) -> Tensor | None:
    """Which of the `known` words come after each of the last `new` ones, (new, known); None for a single word.

    >>> later(2, 3)
    tensor([[False, False,  True],
            [False, False, False]])
    """
    return None if new == 1 else torch.ones(new, known, dtype=torch.bool, device=device).triu(known - new + 1)


def positions(first: int, count: int, like: Tensor) -> Tensor:
    """Sines and cosines of wavelengths 2π to 10000 · 2π for places `first` and on, (count, width of `like`)."""
    half = like.shape[-1] // 2
    place = torch.arange(first, first + count, dtype=like.dtype, device=like.device)
    frequency = 10000 ** (-torch.arange(half, dtype=like.dtype, device=like.device) / half)
    angle = torch.outer(place, frequency)  # (count, half)
    return torch.cat([angle.sin(), angle.cos()], dim=-1)
