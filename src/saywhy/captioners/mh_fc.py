"""MH-FC: gated multi-head attention, eqs. (12)–(16) of Sun et al. 2021 (https://arxiv.org/abs/2001.01037).

With features a_1 … a_L (D each), the previous word w, and the previous state (h, m):

    I_k  = ReLU(W a_k + b)                                    (d_h)
    I_g  = 1/L Σ_k I_k                                        (d_h) the mean over the image
    x    = [E w; I_g]                                         (1)
    h, m ← LSTM(x, h, m)                                      (2)
    Q = h,  K = I W_k,  V = I W_v                             (12), each split into n_h heads along d_h
    α⁽ⁱ⁾ = softmax(Q⁽ⁱ⁾ K⁽ⁱ⁾ᵀ / √(d_h / n_h))                 (13), (L) of each head
    v⁽ⁱ⁾ = Σ_k α⁽ⁱ⁾_k V⁽ⁱ⁾_k                                  (13), (d_h / n_h)
    v̂    = W_o [v⁽¹⁾; …; v⁽ⁿ⁾] + b_o                          (14), where the paper writes W_v a second time
    c    = σ(W_mh h + b_mh) ⊙ v̂                               (15) a gate per dimension
    p(word) ∝ exp fc(c + h)

The state starts at zero. The context is not fed back into the LSTM, so teacher forcing runs only the LSTM word by word.
The β of `Attention` is the mean of the gate over its dimensions. The query of each head is its own part of h, as in the
paper; the authors' code projects h first.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class MHFCSettings(CaptionerSettings):
    """Widths and dropout rates.

    Attributes:
        embedding: d_w, width of E w.
        hidden: d_h, width of the LSTM and of I.
        heads: n_h, a divisor of `hidden`.
        dropout: of word embeddings, and of c + h before the output layer.
        image_dropout: of I.
    """

    embedding: int = 512
    hidden: int = 512
    heads: int = 8
    dropout: float = 0.5
    image_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        dropouts = (self.dropout, self.image_dropout)
        if min(self.embedding, self.hidden, self.heads) < 1 or not all(0 <= rate < 1 for rate in dropouts):
            raise UserError("mh-fc: embedding, hidden and heads are at least 1, and dropouts are below 1")
        if self.hidden % self.heads:
            raise UserError(f"mh-fc: hidden is split into heads, and {self.heads} does not divide {self.hidden}")


@dataclass(frozen=True)
class MHFCState(State):
    """h, m (B, d_h), and what is computed from the features once per image."""

    h: Tensor
    m: Tensor
    I_g: Tensor  # (B, d_h)
    K: Tensor  # (B, L, n_h, d_h / n_h)
    V: Features  # (B, L, d_h)


@captioners.register("mh-fc")
class MHFC(SummedOutputCaptioner[MHFCState]):
    """The captioner; the symbols are those of the module docstring."""

    name = "mh-fc"
    Settings = MHFCSettings

    def __init__(self, encoder: Encoder, vocabulary_size: int, settings: MHFCSettings) -> None:
        super().__init__(encoder, vocabulary_size, settings)
        self.heads = settings.heads
        d_w, d_h = settings.embedding, settings.hidden
        self.W = nn.Linear(encoder.width, d_h)
        self.E = nn.Embedding(vocabulary_size, d_w)
        self.lstm = LSTMCell(d_w + d_h, d_h)
        self.W_k = nn.Linear(d_h, d_h, bias=False)
        self.W_v = nn.Linear(d_h, d_h, bias=False)
        self.W_o = Linear(d_h, d_h)
        self.W_mh = Linear(d_h, d_h)
        self.fc = Linear(d_h, vocabulary_size)
        self.dropout = nn.Dropout(settings.dropout)
        self.image_dropout = nn.Dropout(settings.image_dropout)
        nn.init.normal_(self.E.weight, std=d_w**-0.5)

    def start(self, features: Features) -> MHFCState:
        """A zero state, and the keys and values of the image."""
        image = replace(features, vectors=self.image_dropout(torch.relu(self.W(features.vectors))))
        I_g = image.mean()  # (B, d_h)
        zero = torch.zeros_like(I_g)
        K, V = self._split(self.W_k(image.vectors)), self.W_v(image.vectors)
        return MHFCState(zero, zero, I_g, K, replace(image, vectors=V))

    @property
    def output_layer(self) -> Linear:
        """The layer fc."""
        return self.fc

    def step_terms(self, tokens: Tensor, state: MHFCState) -> tuple[Terms, MHFCState, Attention]:
        """Read the word and attend: c and h."""
        state = self._read(self.dropout(self.E(tokens)), state)
        terms, attention = self._attend(state.h, state)
        return terms, state, attention

    def forward_terms(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Terms, Attention]:
        """As `step_terms` for each word, with all but the LSTM computed for all words at once."""
        Ew = self.dropout(self.E(captions))  # (B, T, d_w)
        state = self.start(features)
        initial, h = state, []
        for t, rows in enumerate(active or active_rows(captions)):
            state = self._read(Ew[:rows, t], state.first(rows))
            h.append(state.h)
        return self._attend(stack_over_time(h), initial)

    def _read(self, Ew: Tensor, state: MHFCState) -> MHFCState:
        h, m = self.lstm(torch.cat([Ew, state.I_g], dim=-1), (state.h, state.m))
        return replace(state, h=h, m=m)

    def _attend(self, h: Tensor, state: MHFCState) -> tuple[Terms, Attention]:
        """c and h, and the attention, for h (B, d_h), or for h of all words (B, T, d_h)."""
        if self.isolated_head is not None:
            h = h.detach()  # the LSTM's state belongs to no head
        Q, K, V = self._split(h), state.K, self._split(state.V.vectors)  # (B, …, n_h, d_h / n_h)
        energies = torch.einsum("b...nd, blnd -> b...nl", Q, K) / Q.shape[-1] ** 0.5
        alpha = state.V.attend(energies)  # (B, [T,] n_h, L)
        v = torch.einsum("b...nl, blnd -> b...nd", alpha, V)  # (B, [T,] n_h, d_h / n_h)
        if self.isolated_head is not None:
            others = torch.arange(self.heads, device=v.device).unsqueeze(-1) != self.isolated_head  # (n_h, 1)
            v = torch.where(others, v.detach(), v)
        gate = torch.sigmoid(self.W_mh(h))
        c = gate * self.W_o(v.flatten(-2))  # (B, [T,] d_h)
        return (c, h), Attention(alpha, gate.mean(dim=-1))

    def _split(self, vectors: Tensor) -> Tensor:
        """(…, d_h) ↦ (…, n_h, d_h / n_h)."""
        return vectors.unflatten(-1, (self.settings.heads, -1))
