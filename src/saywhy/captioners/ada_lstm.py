"""Ada-LSTM: adaptive attention, eqs. (1)–(10) of Sun et al. 2021 (https://arxiv.org/abs/2001.01037).

With features a_1 … a_L (D each), the previous word w, and the previous states (h, m) and (h², m²):

    I_k  = ReLU(W a_k + b)                                    (d_h)
    I_g  = 1/L Σ_k I_k                                        (d_h) the mean over the image
    x    = [h²; I_g; E w]
    h', m' = LSTM(x, h, m)                                    (1), (2)
    s    = σ(W_x x + W_h h) ⊙ tanh(m')                        (5) the sentinel: information from the words
    a_k  = w_a · tanh(W_I I_k + W_g h')                       (6) the energy of a feature
    b    = w_a · tanh(W_s s + W_g h')                         (7) the energy of the sentinel
    α    = softmax(a)                                         (8), (L)
    β    = softmax([a, b])_{L+1}                              (9) the sentinel's share
    c    = (1 − β) Σ_k α_k I_k + β s                          (10), (d_h)
    h², m² ← LSTM([c; h'], h², m²)                            the language LSTM
    p(word) ∝ exp fc(c + h²)

All states start at zero. The gate of the sentinel uses the previous h, as in (5). The hidden layer of the energies has
a width of its own; in the paper it is the number of features, which could not vary then.
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
class AdaLSTMSettings(CaptionerSettings):
    """Widths and dropout rates.

    Attributes:
        embedding: d_w, width of E w.
        hidden: d_h, width of both LSTMs and of I.
        attention: width of the hidden layer of the energies.
        dropout: of word embeddings, and of c + h² before the output layer.
        image_dropout: of I.
        language_dropout: of [c; h'], the input of the language LSTM.
    """

    embedding: int = 512
    hidden: int = 512
    attention: int = 512
    dropout: float = 0.5
    image_dropout: float = 0.0
    language_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        dropouts = (self.dropout, self.image_dropout, self.language_dropout)
        if min(self.embedding, self.hidden, self.attention) < 1 or not all(0 <= rate < 1 for rate in dropouts):
            raise UserError("ada-lstm: embedding, hidden and attention are at least 1, and dropouts are below 1")


@dataclass(frozen=True)
class AdaLSTMState(State):
    """The states of the two LSTMs, each (B, d_h), and what is computed from the features once per image."""

    h: Tensor
    m: Tensor
    h2: Tensor
    m2: Tensor
    image: Features  # I, (B, L, d_h)
    I_g: Tensor  # (B, d_h)
    keys: Tensor  # W_I I, (B, L, A)


@captioners.register("ada-lstm")
class AdaLSTM(SummedOutputCaptioner[AdaLSTMState]):
    """The captioner; the symbols are those of the module docstring."""

    name = "ada-lstm"
    Settings = AdaLSTMSettings
    beta_admits = "words"

    def __init__(self, encoder: Encoder, vocabulary_size: int, settings: AdaLSTMSettings) -> None:
        super().__init__(encoder, vocabulary_size, settings)
        d_w, d_h, attention = settings.embedding, settings.hidden, settings.attention
        d_x = d_h + d_h + d_w
        self.W = nn.Linear(encoder.width, d_h)
        self.E = nn.Embedding(vocabulary_size, d_w)
        self.lstm = LSTMCell(d_x, d_h)
        self.W_x = Linear(d_x, d_h, bias=False)
        self.W_h = Linear(d_h, d_h, bias=False)
        self.W_I = nn.Linear(d_h, attention, bias=False)
        self.W_g = Linear(d_h, attention, bias=False)
        self.W_s = Linear(d_h, attention, bias=False)
        self.w_a = nn.Linear(attention, 1, bias=False)
        self.language_lstm = LSTMCell(d_h + d_h, d_h)
        self.fc = Linear(d_h, vocabulary_size)
        self.dropout = nn.Dropout(settings.dropout)
        self.image_dropout = nn.Dropout(settings.image_dropout)
        self.language_dropout = nn.Dropout(settings.language_dropout)
        nn.init.normal_(self.E.weight, std=d_w**-0.5)

    def start(self, features: Features) -> AdaLSTMState:
        """Zero states, and the projected features."""
        image = replace(features, vectors=self.image_dropout(torch.relu(self.W(features.vectors))))
        I_g = image.mean()  # (B, d_h)
        zero = torch.zeros_like(I_g)
        return AdaLSTMState(zero, zero, zero, zero, image, I_g, self.W_I(image.vectors))

    @property
    def output_layer(self) -> Linear:
        """The layer fc."""
        return self.fc

    def step_terms(self, tokens: Tensor, state: AdaLSTMState) -> tuple[Terms, AdaLSTMState, Attention]:
        """Read the word and attend to image or sentinel: c and h²."""
        state, c, attention = self._attend(self.dropout(self.E(tokens)), state)
        return (c, state.h2), state, attention

    def forward_terms(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Terms, Attention]:
        """As `step_terms` for each word, with embeddings computed for all words at once."""
        Ew = self.dropout(self.E(captions))  # (B, T, d_w)
        state = self.start(features)
        cs, h2s, attentions = [], [], []
        for t, rows in enumerate(active or active_rows(captions)):
            state, c, attention = self._attend(Ew[:rows, t], state.first(rows))
            cs.append(c)
            h2s.append(state.h2)
            attentions.append(attention)
        return (stack_over_time(cs), stack_over_time(h2s)), Attention.over_time(attentions)

    def _attend(self, Ew: Tensor, state: AdaLSTMState) -> tuple[AdaLSTMState, Tensor, Attention]:
        """The next state, c (B, d_h), and the attention."""
        x = torch.cat([state.h2, state.I_g, Ew], dim=-1)
        h, m = self.lstm(x, (state.h, state.m))
        s = torch.sigmoid(self.W_x(x) + self.W_h(state.h)) * torch.tanh(m)

        query = self.W_g(h)  # (B, A)
        a = self.w_a(torch.tanh(state.keys + query.unsqueeze(1))).squeeze(-1)  # (B, L)
        b = self.w_a(torch.tanh(self.W_s(s) + query)).squeeze(-1)  # (B,)
        a = state.image.hide(a)
        alpha = a.softmax(dim=-1)
        beta = torch.sigmoid(b - a.logsumexp(dim=-1)).unsqueeze(-1)  # e^b / (Σ e^a + e^b), without overflow

        c = (1 - beta) * torch.bmm(alpha.unsqueeze(1), state.image.vectors).squeeze(1) + beta * s  # (B, d_h)
        language_input = self.language_dropout(torch.cat([c, h], dim=-1))
        h2, m2 = self.language_lstm(language_input, (state.h2, state.m2))
        return replace(state, h=h, m=m, h2=h2, m2=m2), c, Attention(alpha, beta.squeeze(-1))
