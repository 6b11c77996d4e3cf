"""MH-FC: gated multi-head attention, eqs. (12)–(16) of Sun et al. 2021 (https://arxiv.org/abs/2001.01037).

With features a_1 … a_L (D each), the word before w, and the state (h, m) before it:

    I_k  = ReLU(W a_k + b)                                    (d_h) as wide as the state
    I_g  = 1/L Σ_k I_k                                        (d_h) the whole image
    x    = [E w; I_g]                                         (1)
    h, m ← LSTM(x, h, m)                                      (2)
    Q = h,  K = I W_k,  V = I W_v                             (12), each cut into n_h heads along d_h
    α⁽ⁱ⁾ = softmax(Q⁽ⁱ⁾ K⁽ⁱ⁾ᵀ / √(d_h / n_h))                 (13), (L) of each head
    v⁽ⁱ⁾ = Σ_k α⁽ⁱ⁾_k V⁽ⁱ⁾_k                                  (13), (d_h / n_h)
    v̂    = W_o [v⁽¹⁾; …; v⁽ⁿ⁾] + b_o                          (14), where the paper says W_v a second time
    c    = σ(W_mh h + b_mh) ⊙ v̂                               (15) a gate of each dimension
    p(word) ∝ exp fc(c + h)

The state begins at zero. What was looked at does not feed back into the LSTM, so of a whole caption only the LSTM
goes word by word. A attention's β is the mean of the gate over its dimensions. The query is h itself, each head asking
with its own part of it, as in the paper; the authors' code projects h first.
"""

from __future__ import annotations

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


@dataclass(frozen=True)
class MHFCSettings(CaptionerSettings):
    """Sizes.

    Attributes:
        embedding: d_w, of E w.
        hidden: d_h, of the LSTM and of I.
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
        if min(self.embedding, self.hidden, self.heads) < 1 or not all(0 <= each < 1 for each in dropouts):
            raise UserError("mh-fc: embedding, hidden and heads are at least 1, and dropouts are below 1")
        if self.hidden % self.heads:
            raise UserError(f"mh-fc: hidden is shared out among heads, and {self.heads} does not divide {self.hidden}")


@dataclass(frozen=True)
class MHFCState(State):
    """h, m (B, d_h), and what is made of the features once an image."""

    h: Tensor
    m: Tensor
    I_g: Tensor  # (B, d_h)
    K: Tensor  # (B, L, n_h, d_h / n_h)
    V: Features  # (B, L, d_h)


@captioners.register("mh-fc")
class MHFC(Captioner[MHFCState]):
    """The captioner; the letters are the module docstring's."""

    name = "mh-fc"
    Settings = MHFCSettings

    def __init__(self, encoder: Encoder, words: int, settings: MHFCSettings) -> None:
        super().__init__(encoder, words, settings)
        self.heads = settings.heads
        d_w, d_h = settings.embedding, settings.hidden
        self.W = nn.Linear(encoder.width, d_h)
        self.E = nn.Embedding(words, d_w)
        self.lstm = nn.LSTMCell(d_w + d_h, d_h)
        self.W_k = nn.Linear(d_h, d_h, bias=False)
        self.W_v = nn.Linear(d_h, d_h, bias=False)
        self.W_o = nn.Linear(d_h, d_h)
        self.W_mh = nn.Linear(d_h, d_h)
        self.fc = nn.Linear(d_h, words)
        self.dropout = nn.Dropout(settings.dropout)
        self.image_dropout = nn.Dropout(settings.image_dropout)
        nn.init.normal_(self.E.weight, std=d_w**-0.5)

    def start(self, features: Features) -> MHFCState:
        """Nothing said yet: zeros, and the image's keys and values."""
        places = replace(features, vectors=self.image_dropout(torch.relu(self.W(features.vectors))))
        I_g = places.mean()  # (B, d_h)
        zero = torch.zeros_like(I_g)
        K, V = self._cut(self.W_k(places.vectors)), self.W_v(places.vectors)
        return MHFCState(zero, zero, I_g, K, replace(places, vectors=V))

    def step(self, words: Tensor, state: MHFCState) -> Step[MHFCState]:
        """Read the word, look, and score the next word."""
        state = self._read(self.dropout(self.E(words)), state)
        logits, attention = self._look_and_speak(state.h, state)
        return Step(logits, state, attention)

    def forward(self, features: Features, captions: Tensor) -> tuple[Tensor, Attention]:
        """As `step` word by word, with all but the LSTM done for all words at once."""
        Ew = self.dropout(self.E(captions))  # (B, T, d_w)
        state = self.start(features)
        begun, h = state, []
        for t, rows in enumerate(active_rows(captions)):
            state = self._read(Ew[:rows, t], state.first(rows))
            h.append(state.h)
        return self._look_and_speak(stack_over_time(h), begun)

    def _read(self, Ew: Tensor, state: MHFCState) -> MHFCState:
        h, m = self.lstm(torch.cat([Ew, state.I_g], dim=-1), (state.h, state.m))
        return replace(state, h=h, m=m)

    def _look_and_speak(self, h: Tensor, state: MHFCState) -> tuple[Tensor, Attention]:
        """Logits and attentions for h (B, d_h), or for h of many words (B, T, d_h)."""
        if self.isolated_head is not None:
            h = h.detach()  # what goes back through the state is no head's
        Q, K, V = self._cut(h), state.K, self._cut(state.V.vectors)  # (B, …, n_h, d_h / n_h)
        energies = torch.einsum("b...nd, blnd -> b...nl", Q, K) / Q.shape[-1] ** 0.5
        alpha = state.V.attend(energies)  # (B, [T,] n_h, L)
        v = torch.einsum("b...nl, blnd -> b...nd", alpha, V)  # (B, [T,] n_h, d_h / n_h)
        if self.isolated_head is not None:
            others = torch.arange(self.heads, device=v.device).unsqueeze(-1) != self.isolated_head  # (n_h, 1)
            v = torch.where(others, v.detach(), v)
        gate = torch.sigmoid(self.W_mh(h))
        c = gate * self.W_o(v.flatten(-2))  # (B, [T,] d_h)
        return self.fc(self.dropout(c + h)), Attention(alpha, gate.mean(dim=-1))

    def _cut(self, vectors: Tensor) -> Tensor:
        """(…, d_h) in heads: (…, n_h, d_h / n_h)."""
        return vectors.unflatten(-1, (self.settings.heads, -1))
