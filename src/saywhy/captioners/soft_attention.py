"""Show, attend and tell with soft attention (Xu et al. 2015, https://arxiv.org/abs/1502.03044).

With features a_1 … a_L (D each), the word before y, and the state (h, c) before it:

    e_i = v · tanh(W_a a_i + W_h h)  or  a_i · W h            the two scoring functions
    α   = softmax(e)                                          (L)
    β   = σ(w_β · h + b_β)                                    a scalar gate
    z   = β Σ_i α_i a_i                                       (D) the context
    h, c ← LSTM([E y; z], h, c)
    p(word) ∝ exp L_o(E y + L_h h + L_z z)                    the deep output

h₀ and c₀ are two MLPs of the mean feature. Where the authors' code differs from the paper (a tanh inside the
deep output, zeros instead of an embedded start marker) this follows the paper, and embeds the marker.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from saywhy.captioners.base import (
    Attention,
    Captioner,
    CaptionerSettings,
    State,
    Step,
    active_rows,
    captioners,
    stack_over_time,
)
from saywhy.encoders.base import Encoder
from saywhy.encoders.features import Features
from saywhy.errors import UserError
from saywhy.registry import Registry


class Score(nn.Module, ABC):
    """How well a place suits what the LSTM looks for."""

    def __init__(self, feature: int, settings: SoftAttentionSettings) -> None:
        super().__init__()

    @abstractmethod
    def keys(self, vectors: Tensor) -> Tensor:
        """What can be made of features (B, L, D) before any word: (B, L, A)."""

    @abstractmethod
    def forward(self, keys: Tensor, h: Tensor) -> Tensor:
        """Energies (B, L)."""


scores: Registry[type[Score]] = Registry("attention score")


@dataclass(frozen=True)
class SoftAttentionSettings(CaptionerSettings):
    """Sizes and choices.

    Attributes:
        embedding: m, of E y and the deep output.
        hidden: n, of the LSTM.
        attention: width of the MLP score's hidden layer.
        score: "mlp" or "bilinear".
        dropout: of word embeddings, features' context, LSTM output and deep output.
        tie: L_o shares the embedding matrix E.
    """

    embedding: int = 512
    hidden: int = 512
    attention: int = 512
    score: str = "mlp"
    dropout: float = 0.5
    tie: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = (self.embedding, self.hidden, self.attention)
        if min(sizes) < 1 or not 0 <= self.dropout < 1:
            raise UserError("soft-attention: embedding, hidden and attention are at least 1, and dropout is below 1")
        _ = scores[self.score]


@dataclass(frozen=True)
class SoftAttentionState(State):
    """h, c (B, n); the features, and what the score function makes of them once an image."""

    h: Tensor
    c: Tensor
    features: Features
    keys: Tensor  # (B, L, A)


@scores.register("mlp")
class MLPScore(Score):
    """e_i = v · tanh(W_a a_i + W_h h)."""

    def __init__(self, feature: int, settings: SoftAttentionSettings) -> None:
        super().__init__(feature, settings)
        self.of_annotation = nn.Linear(feature, settings.attention)
        self.of_hidden = nn.Linear(settings.hidden, settings.attention, bias=False)
        self.v = nn.Linear(settings.attention, 1, bias=False)

    def keys(self, vectors: Tensor) -> Tensor:
        """W_a a_i, (B, L, A)."""
        return self.of_annotation(vectors)

    def forward(self, keys: Tensor, h: Tensor) -> Tensor:
        """Energies (B, L)."""
        return self.v(torch.tanh(keys + self.of_hidden(h).unsqueeze(1))).squeeze(-1)


@scores.register("bilinear")
class BilinearScore(Score):
    """e_i = a_i · W h."""

    def __init__(self, feature: int, settings: SoftAttentionSettings) -> None:
        super().__init__(feature, settings)
        self.of_annotation = nn.Linear(feature, settings.hidden, bias=False)

    def keys(self, vectors: Tensor) -> Tensor:
        """Wᵀ a_i, (B, L, n): the same product, with the part that no word changes done first."""
        return self.of_annotation(vectors)

    def forward(self, keys: Tensor, h: Tensor) -> Tensor:
        """Energies (B, L)."""
        return torch.bmm(keys, h.unsqueeze(-1)).squeeze(-1)


def _initial_state(feature: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(feature, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh())


@captioners.register("soft-attention")
class SoftAttention(Captioner[SoftAttentionState]):
    """The captioner; the letters are the module docstring's."""

    name = "soft-attention"
    Settings = SoftAttentionSettings

    def __init__(self, encoder: Encoder, words: int, settings: SoftAttentionSettings) -> None:
        super().__init__(encoder, words, settings)
        feature, m, n = encoder.width, settings.embedding, settings.hidden
        self.E = nn.Embedding(words, m)
        self.h0 = _initial_state(feature, n)
        self.c0 = _initial_state(feature, n)
        self.score: Score = scores[settings.score](feature, settings)
        self.gate = nn.Linear(n, 1)
        self.lstm = nn.LSTMCell(m + feature, n)
        self.L_h = nn.Linear(n, m)
        self.L_z = nn.Linear(feature, m, bias=False)
        self.L_o = nn.Linear(m, words)
        self.dropout = nn.Dropout(settings.dropout)
        nn.init.normal_(self.E.weight, std=m**-0.5)
        if settings.tie:
            self.L_o.weight = self.E.weight

    def start(self, features: Features) -> SoftAttentionState:
        """h₀ and c₀ from the mean feature."""
        mean = features.mean()  # (B, D)
        keys = self.score.keys(features.vectors)
        return SoftAttentionState(self.h0(mean), self.c0(mean), features, keys)

    def step(self, words: Tensor, state: SoftAttentionState) -> Step[SoftAttentionState]:
        """Look, remember, and score the next word."""
        Ey = self.dropout(self.E(words))
        state, z, attention = self._look(Ey, state)
        return Step(self._speak(Ey, state.h, z), state, attention)

    def forward(self, features: Features, captions: Tensor) -> tuple[Tensor, Attention]:
        """As `step` word by word, with embeddings and the deep output done for all words at once."""
        Ey = self.dropout(self.E(captions))  # (B, T, m)
        state = self.start(features)
        hs, zs, attentions = [], [], []
        for t, rows in enumerate(active_rows(captions)):
            state, z, attention = self._look(Ey[:rows, t], state.first(rows))
            hs.append(state.h)
            zs.append(z)
            attentions.append(attention)
        return self._speak(Ey, stack_over_time(hs), stack_over_time(zs)), Attention.of_words(attentions)

    def _look(self, Ey: Tensor, state: SoftAttentionState) -> tuple[SoftAttentionState, Tensor, Attention]:
        """The next state, z (B, D), and the attention."""
        alpha = state.features.attend(self.score(state.keys, state.h))  # (B, L)
        weights, drawn = self._places(alpha, state)
        beta = torch.sigmoid(self.gate(state.h))  # (B, 1)
        z = beta * torch.bmm(weights.unsqueeze(1), state.features.vectors).squeeze(1)  # (B, D)
        h, c = self.lstm(torch.cat([Ey, z], dim=-1), (state.h, state.c))
        return replace(state, h=h, c=c), z, Attention(alpha, beta.squeeze(-1), drawn)

    def _places(self, alpha: Tensor, state: SoftAttentionState) -> tuple[Tensor, Tensor | None]:
        """How much of each place is taken in (B, L), and which was drawn: soft attention takes in α of each."""
        return alpha, None

    def _speak(self, Ey: Tensor, h: Tensor, z: Tensor) -> Tensor:
        deep = Ey + self.L_h(self.dropout(h)) + self.L_z(self.dropout(z))
        return self.L_o(self.dropout(deep))


def doubly_stochastic(alpha: Tensor, spoken: Tensor, mask: Tensor | None = None) -> Tensor:
    """The penalty Σ_i (1 − Σ_t α_ti)² of each caption, (B,): every place should be looked at about once.

    Summed over places as the paper writes it; the caller averages over captions, as it averages the
    log-likelihood that the paper adds it to, so that λ weighs what it weighs in the paper. (The authors' code
    sums over the batch and averages over places; most later ones average over both, which makes λ L times
    smaller.) `spoken` (B, T) is true where a word is predicted: attention over padding does not count. `mask`
    (B, L) is true where there is a place. Heads of attention (B, T, heads, L) count by their mean.
    """
    if alpha.ndim == 4:
        alpha = alpha.mean(dim=2)
    looked = (alpha * spoken.unsqueeze(-1)).sum(dim=1)  # (B, L)
    missed = (1 - looked).square()
    return (missed if mask is None else missed * mask).sum(dim=-1)
