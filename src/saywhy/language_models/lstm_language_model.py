"""An LSTM language model (Zaremba et al. 2014, https://arxiv.org/abs/1409.2329; tied weights, Press and Wolf 2017).

    x_t       = E y_{t−1}                          (B, width)
    h_t, c_t  = LSTM(x_t, h_{t−1}, c_{t−1})        of each layer, with dropout between layers
    logits_t  = E P h_t + b                        (B, W); E is also the output layer

E is the embedding of words (W, width), P a linear map.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saywhy.captioners.base import Linear, State, decoding_linear
from saywhy.language_models.base import LanguageModel, LanguageModelSettings, language_models


@dataclass(frozen=True)
class LSTMLanguageModelSettings(LanguageModelSettings):
    """Widths and dropout.

    Attributes:
        hidden: width of each layer's state.
    """

    hidden: int = 1024


@dataclass(frozen=True)
class LSTMLanguageModelState(State):
    """The state of each layer, (B, layers, hidden)."""

    h: Tensor
    c: Tensor


@language_models.register("lstm")
class LSTMLanguageModel(LanguageModel[LSTMLanguageModelState]):
    """The symbols are those of the module docstring."""

    name = "lstm"
    Settings = LSTMLanguageModelSettings

    def __init__(self, words: int, settings: LSTMLanguageModelSettings) -> None:
        super().__init__(words, settings)
        width, hidden, layers = settings.width, settings.hidden, settings.layers
        self.E = nn.Embedding(words, width)
        nn.init.normal_(self.E.weight, std=width**-0.5)
        between = settings.dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, hidden, layers, batch_first=True, dropout=between)
        self.P = Linear(hidden, width)
        self.b = nn.Parameter(torch.zeros(words))
        self.dropout = nn.Dropout(settings.dropout)

    def start(self, rows: int) -> LSTMLanguageModelState:
        """Zeros."""
        zeros = self.E.weight.new_zeros(rows, self.settings.layers, self.settings.hidden)
        return LSTMLanguageModelState(zeros, zeros)

    def step(self, tokens: Tensor, state: LSTMLanguageModelState) -> tuple[Tensor, LSTMLanguageModelState]:
        """Read one word of each row; by hand, as one step of torch's LSTM is several times slower on a CPU."""
        x, hs, cs = self.dropout(self.E(tokens)), list[Tensor](), list[Tensor]()
        for (w_x, w_h, b_x, b_h), h, c in zip(self.lstm.all_weights, state.h.unbind(1), state.c.unbind(1), strict=True):
            x = self.dropout(x) if hs else x
            gates = decoding_linear(x, w_x, b_x) + decoding_linear(h.contiguous(), w_h, b_h)
            i, f, g, o = gates.chunk(4, dim=-1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            x = torch.sigmoid(o) * torch.tanh(c)
            hs.append(x)
            cs.append(c)
        return self._logits(x), LSTMLanguageModelState(torch.stack(hs, dim=1), torch.stack(cs, dim=1))

    def forward(self, captions: Tensor) -> Tensor:
        """As `step`, for all words at once."""
        outputs, _ = self.lstm(self.dropout(self.E(captions)))  # (B, T, hidden)
        return self._logits(outputs)

    def _logits(self, outputs: Tensor) -> Tensor:
        return decoding_linear(self.dropout(self.P(self.dropout(outputs))), self.E.weight, self.b)
