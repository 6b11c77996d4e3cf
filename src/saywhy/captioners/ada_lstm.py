"""Ada-LSTM: adaptive attention, eqs. (1)–(10) of Sun et al. 2021 (https://arxiv.org/abs/2001.01037).

With features a_1 … a_L (D each), the word before w, and the states (h, m) and (h², m²) before it:

    I_k  = ReLU(W a_k + b)                                    (d_h) as wide as the states
    I_g  = 1/L Σ_k I_k                                        (d_h) the whole image
    x    = [h²; I_g; E w]
    h', m' = LSTM(x, h, m)                                    (1), (2)
    s    = σ(W_x x + W_h h) ⊙ tanh(m')                        (5) the sentinel: what is known without looking
    a_k  = w_a · tanh(W_I I_k + W_g h')                       (6) the energy of a place
    b    = w_a · tanh(W_s s + W_g h')                         (7) the energy of the sentinel
    α    = softmax(a)                                         (8), (L)
    β    = softmax([a, b])_{L+1}                              (9) the sentinel's share
    c    = (1 − β) Σ_k α_k I_k + β s                          (10), (d_h)
    h², m² ← LSTM([c; h'], h², m²)                            the predictor's own LSTM
    p(word) ∝ exp fc(c + h²)

All states begin at zero. The sentinel's gate sees h from before this word, as (5) has it. The energies' hidden layer
has a width of its own, where the paper's is the number of places: places may so be of any number.
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
class AdaLSTMSettings(CaptionerSettings):
    """Sizes.

    Attributes:
        embedding: d_w, of E w.
        hidden: d_h, of both LSTMs and of I.
        attention: of the hidden layer of the energies.
        dropout: of word embeddings, and of c + h² before the output layer.
        image_dropout: of I.
        language_dropout: of [c; h'], where the predictor's LSTM reads it.
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
        if min(self.embedding, self.hidden, self.attention) < 1 or not all(0 <= each < 1 for each in dropouts):
            raise UserError("ada-lstm: embedding, hidden and attention are at least 1, and dropouts are below 1")


@dataclass(frozen=True)
class AdaLSTMState(State):
    """The two LSTMs' states, each (B, d_h), and what is made of the features once an image."""

    h: Tensor
    m: Tensor
    h2: Tensor
    m2: Tensor
    places: Features  # I, (B, L, d_h)
    I_g: Tensor  # (B, d_h)
    keys: Tensor  # W_I I, (B, L, A)


@captioners.register("ada-lstm")
class AdaLSTM(Captioner[AdaLSTMState]):
    """The captioner; the letters are the module docstring's."""

    name = "ada-lstm"
    Settings = AdaLSTMSettings
    gate_admits = "words"

    def __init__(self, encoder: Encoder, words: int, settings: AdaLSTMSettings) -> None:
        super().__init__(encoder, words, settings)
        d_w, d_h, attention = settings.embedding, settings.hidden, settings.attention
        d_x = d_h + d_h + d_w
        self.W = nn.Linear(encoder.width, d_h)
        self.E = nn.Embedding(words, d_w)
        self.lstm = nn.LSTMCell(d_x, d_h)
        self.W_x = nn.Linear(d_x, d_h, bias=False)
        self.W_h = nn.Linear(d_h, d_h, bias=False)
        self.W_I = nn.Linear(d_h, attention, bias=False)
        self.W_g = nn.Linear(d_h, attention, bias=False)
        self.W_s = nn.Linear(d_h, attention, bias=False)
        self.w_a = nn.Linear(attention, 1, bias=False)
        self.language_lstm = nn.LSTMCell(d_h + d_h, d_h)
        self.fc = nn.Linear(d_h, words)
        self.dropout = nn.Dropout(settings.dropout)
        self.image_dropout = nn.Dropout(settings.image_dropout)
        self.language_dropout = nn.Dropout(settings.language_dropout)
        nn.init.normal_(self.E.weight, std=d_w**-0.5)

    def start(self, features: Features) -> AdaLSTMState:
        """Nothing said yet: zeros, and the image brought to the states' width."""
        places = replace(features, vectors=self.image_dropout(torch.relu(self.W(features.vectors))))
        I_g = places.mean()  # (B, d_h)
        zero = torch.zeros_like(I_g)
        return AdaLSTMState(zero, zero, zero, zero, places, I_g, self.W_I(places.vectors))

    def step(self, words: Tensor, state: AdaLSTMState) -> Step[AdaLSTMState]:
        """Read the word, look or recall, and score the next word."""
        state, c, attention = self._look(self.dropout(self.E(words)), state)
        return Step(self._speak(c, state.h2), state, attention)

    def forward(self, features: Features, captions: Tensor) -> tuple[Tensor, Attention]:
        """As `step` word by word, with embeddings and the output layer done for all words at once."""
        Ew = self.dropout(self.E(captions))  # (B, T, d_w)
        state = self.start(features)
        cs, h2s, attentions = [], [], []
        for t, rows in enumerate(active_rows(captions)):
            state, c, attention = self._look(Ew[:rows, t], state.first(rows))
            cs.append(c)
            h2s.append(state.h2)
            attentions.append(attention)
        return self._speak(stack_over_time(cs), stack_over_time(h2s)), Attention.of_words(attentions)

    def _look(self, Ew: Tensor, state: AdaLSTMState) -> tuple[AdaLSTMState, Tensor, Attention]:
        """The next state, c (B, d_h), and the attention."""
        x = torch.cat([state.h2, state.I_g, Ew], dim=-1)
        h, m = self.lstm(x, (state.h, state.m))
        s = torch.sigmoid(self.W_x(x) + self.W_h(state.h)) * torch.tanh(m)

        sought = self.W_g(h)  # (B, A)
        a = self.w_a(torch.tanh(state.keys + sought.unsqueeze(1))).squeeze(-1)  # (B, L)
        b = self.w_a(torch.tanh(self.W_s(s) + sought)).squeeze(-1)  # (B,)
        a = state.places.hide(a)
        alpha = a.softmax(dim=-1)
        beta = torch.sigmoid(b - a.logsumexp(dim=-1)).unsqueeze(-1)  # e^b / (Σ e^a + e^b), and never overflows

        c = (1 - beta) * torch.bmm(alpha.unsqueeze(1), state.places.vectors).squeeze(1) + beta * s  # (B, d_h)
        read = self.language_dropout(torch.cat([c, h], dim=-1))
        h2, m2 = self.language_lstm(read, (state.h2, state.m2))
        return replace(state, h=h, m=m, h2=h2, m2=m2), c, Attention(alpha, beta.squeeze(-1))

    def _speak(self, c: Tensor, h2: Tensor) -> Tensor:
        return self.fc(self.dropout(c + h2))
