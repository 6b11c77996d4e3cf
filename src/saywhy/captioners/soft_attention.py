"""Show, attend and tell with soft attention (Xu et al. 2015, https://arxiv.org/abs/1502.03044).

With features a_1 … a_L (D each), the previous word y, and the previous state (h, c):

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
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from saywhy.captioners.base import (
    Attention,
    CaptionerSettings,
    Linear,
    LSTMCell,
    State,
    SummedOutputCaptioner,
    Terms,
    active_rows,
    captioners,
    stack_over_time,
)
from saywhy.encoders.base import Encoder, Features
from saywhy.errors import UserError
from saywhy.registry import Registry


class Score(nn.Module, ABC):
    """The energies e_i: how well each feature matches the LSTM's state."""

    def __init__(self, feature: int, settings: SoftAttentionSettings) -> None:
        super().__init__()

    @abstractmethod
    def keys(self, vectors: Tensor) -> Tensor:
        """The part that does not depend on words, computed once per image: (B, L, D) ↦ (B, L, A)."""

    @abstractmethod
    def forward(self, keys: Tensor, h: Tensor) -> Tensor:
        """Energies (B, L)."""


scores: Registry[type[Score]] = Registry("attention score")


@dataclass(frozen=True)
class SoftAttentionSettings(CaptionerSettings):
    """Widths and options.

    Attributes:
        embedding: m, width of E y and of the deep output.
        hidden: n, width of the LSTM.
        attention: width of the hidden layer of the MLP score.
        score: "mlp" or "bilinear".
        dropout: of word embeddings, context, LSTM output and deep output.
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
    """h, c (B, n); the features, and the keys of the score, computed once per image."""

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
        self.of_hidden = Linear(settings.hidden, settings.attention, bias=False)
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
        """Wᵀ a_i, (B, L, n)."""
        return self.of_annotation(vectors)

    def forward(self, keys: Tensor, h: Tensor) -> Tensor:
        """Energies (B, L)."""
        return torch.bmm(keys, h.unsqueeze(-1)).squeeze(-1)


def _initial_state(feature: int, hidden: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(feature, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.Tanh())


@captioners.register("soft-attention")
class SoftAttention(SummedOutputCaptioner[SoftAttentionState]):
    """The captioner; the symbols are those of the module docstring."""

    name = "soft-attention"
    Settings = SoftAttentionSettings
    image_term = 2  # of E y, L_h h and L_z z

    def __init__(self, encoder: Encoder, vocabulary_size: int, settings: SoftAttentionSettings) -> None:
        super().__init__(encoder, vocabulary_size, settings)
        feature, m, n = encoder.width, settings.embedding, settings.hidden
        self.E = nn.Embedding(vocabulary_size, m)
        self.h0 = _initial_state(feature, n)
        self.c0 = _initial_state(feature, n)
        self.score: Score = scores[settings.score](feature, settings)
        self.gate = nn.Linear(n, 1)
        self.lstm = LSTMCell(m + feature, n)
        self.L_h = Linear(n, m)
        self.L_z = Linear(feature, m, bias=False)
        self.L_o = Linear(m, vocabulary_size)
        self.dropout = nn.Dropout(settings.dropout)
        nn.init.normal_(self.E.weight, std=m**-0.5)
        if settings.tie:
            self.L_o.weight = self.E.weight

    def start(self, features: Features) -> SoftAttentionState:
        """h₀ and c₀ from the mean feature."""
        mean = features.mean()  # (B, D)
        keys = self.score.keys(features.vectors)
        return SoftAttentionState(self.h0(mean), self.c0(mean), features, keys)

    @property
    def output_layer(self) -> Linear:
        """The layer L_o."""
        return self.L_o

    def step_terms(self, tokens: Tensor, state: SoftAttentionState) -> tuple[Terms, SoftAttentionState, Attention]:
        """Attend and update the LSTM: the three terms of the deep output."""
        Ey = self.dropout(self.E(tokens))
        state, z, attention = self._attend(Ey, state)
        return self._terms(Ey, state.h, z), state, attention

    def forward_terms(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Terms, Attention]:
        """As `step_terms` for each word, with embeddings and deep output computed for all words at once."""
        Ey = self.dropout(self.E(captions))  # (B, T, m)
        state = self.start(features)
        hs, zs, attentions = [], [], []
        for t, rows in enumerate(active or active_rows(captions)):
            state, z, attention = self._attend(Ey[:rows, t], state.first(rows))
            hs.append(state.h)
            zs.append(z)
            attentions.append(attention)
        return self._terms(Ey, stack_over_time(hs), stack_over_time(zs)), Attention.over_time(attentions)

    def _attend(self, Ey: Tensor, state: SoftAttentionState) -> tuple[SoftAttentionState, Tensor, Attention]:
        """The next state, z (B, D), and the attention."""
        alpha = state.features.attend(self.score(state.keys, state.h))  # (B, L)
        weights, drawn = self._weights(alpha, state)
        beta = torch.sigmoid(self.gate(state.h))  # (B, 1)
        z = beta * torch.bmm(weights.unsqueeze(1), state.features.vectors).squeeze(1)  # (B, D)
        h, c = self.lstm(torch.cat([Ey, z], dim=-1), (state.h, state.c))
        return replace(state, h=h, c=c), z, Attention(alpha, beta.squeeze(-1), drawn)

    def _weights(self, alpha: Tensor, state: SoftAttentionState) -> tuple[Tensor, Tensor | None]:
        """The weights of the features in the context (B, L), and the sampled index: here α, and None."""
        return alpha, None

    def _terms(self, Ey: Tensor, h: Tensor, z: Tensor) -> Terms:
        return Ey, self.L_h(self.dropout(h)), self.L_z(self.dropout(z))


def doubly_stochastic(alpha: Tensor, mask: Tensor, feature_mask: Tensor | None = None) -> Tensor:
    """The penalty Σ_i (1 − Σ_t α_ti)² of each caption, (B,): the attention to each feature should sum to one.

    It is summed over features as in the paper; the caller averages over captions, as it averages the log-likelihood,
    so that λ has the same meaning as in the paper. (The authors' code sums over the batch and averages over features;
    most later code averages over both, which makes λ L times smaller.)

    Args:
        alpha: (B, T, L), or (B, T, heads, L), of which the mean over heads counts.
        mask: (B, T), false at padding, where attention does not count.
        feature_mask: (B, L), false where there is no feature.
    """
    if alpha.ndim == 4:
        alpha = alpha.mean(dim=2)
    total = (alpha * mask.unsqueeze(-1)).sum(dim=1)  # (B, L)
    penalty = (1 - total).square()
    return (penalty if feature_mask is None else penalty * feature_mask).sum(dim=-1)
