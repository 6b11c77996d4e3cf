"""A causal transformer language model, of the layers of `saywhy.captioners.transformer`.

x        = √width · E y + positions             (B, T, width)
x        ← layer(x), for each layer             pre-norm, each word attends to itself and the words before it
logits   = E norm(x) + b                        (B, T, W); E is also the output layer
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saywhy.captioners.base import State, decoding_linear
from saywhy.captioners.transformer import Layer, positions
from saywhy.errors import UserError
from saywhy.language_models.base import LanguageModel, LanguageModelSettings, language_models


@dataclass(frozen=True)
class TransformerLanguageModelSettings(LanguageModelSettings):
    """Widths and dropout.

    Attributes:
        heads: of the attention of each layer.
    """

    width: int = 384
    layers: int = 4
    heads: int = 6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads or self.width % 2:
            raise UserError(
                f"language model setting width = {self.width} is odd or not divisible by {self.heads} heads"
            )


@dataclass(frozen=True)
class TransformerLanguageModelState(State):
    """Keys and values of the words so far, (B, layers, 2, heads, t, d)."""

    cache: Tensor


@language_models.register("transformer")
class TransformerLanguageModel(LanguageModel[TransformerLanguageModelState]):
    """The symbols are those of the module docstring."""

    name = "transformer"
    Settings = TransformerLanguageModelSettings

    def __init__(self, words: int, settings: TransformerLanguageModelSettings) -> None:
        super().__init__(words, settings)
        width, heads, dropout = settings.width, settings.heads, settings.dropout
        self.E = nn.Embedding(words, width)
        nn.init.normal_(self.E.weight, std=width**-0.5)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(settings.layers))
        self.norm = nn.LayerNorm(width)
        self.b = nn.Parameter(torch.zeros(words))
        self.dropout = nn.Dropout(dropout)

    def start(self, rows: int) -> TransformerLanguageModelState:
        """No words."""
        layers, heads, width = self.settings.layers, self.settings.heads, self.settings.width
        return TransformerLanguageModelState(self.E.weight.new_empty(rows, layers, 2, heads, 0, width // heads))

    def step(
        self, tokens: Tensor, state: TransformerLanguageModelState
    ) -> tuple[Tensor, TransformerLanguageModelState]:
        """Read one word of each row, with the cached keys and values of the words before it."""
        x, caches = self._read(tokens.unsqueeze(1), state.cache)
        return self._logits(x.squeeze(1)), TransformerLanguageModelState(torch.stack(caches, dim=1))

    def forward(self, captions: Tensor) -> Tensor:
        """As `step`, for all words at once."""
        x, _ = self._read(captions, self.start(len(captions)).cache)
        return self._logits(x)

    def _read(self, tokens: Tensor, cache: Tensor) -> tuple[Tensor, list[Tensor]]:
        """norm(x) of the words (B, T), (B, T, width), and the cache of each layer, (B, 2, heads, t + T, d)."""
        scaled = self.E(tokens) * math.sqrt(self.settings.width)
        x = self.dropout(scaled + positions(cache.shape[-2], tokens.shape[1], self.E.weight))
        caches = []
        for layer, previous in zip(self.layers, cache.unbind(1), strict=True):
            x, current = layer(x, previous)
            caches.append(current)
        return self.norm(x), caches

    def _logits(self, x: Tensor) -> Tensor:
        return decoding_linear(x, self.E.weight, self.b)
