"""Captioners whose output layer reads a sum of terms, one of the image and the others of the words.

    logits = W dropout(Σ_n y_n) + b

The terms y_n are c and h of Ada-LSTM and MH-FC, and E y, L_h h and L_z z of soft attention. Fine-tuning can weight them
by their relevance (`saywhy.training.relevance_weighting`).
"""

from __future__ import annotations

import operator
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any, ClassVar

from torch import Tensor, nn

from saywhy.captioners.base import Attention, Captioner, Linear, S, Step
from saywhy.encoders.base import Features

Terms = Sequence[Tensor]
"""The terms y_n, each (B, d) of one step, or (B, T, d) of teacher forcing, in the order in which they are added."""

LogitsOfTerms = Callable[[Any, Terms, Tensor, Attention], Tensor]
"""From a captioner, its terms, its logits and its attention, the logits to use instead."""


class SummedOutputCaptioner(Captioner[S]):
    """A captioner with logits = output_layer(dropout(Σ terms)).

    A subclass implements `step_terms` and `forward_terms`, from which `step` and `forward` follow, and names its
    output layer.

    Attributes:
        image_term: the index of the term that comes from the attended image; the others come from the words.
        dropout: of the sum, before the output layer.
    """

    image_term: ClassVar[int] = 0
    dropout: nn.Dropout
    _reweighting: Callable[[Terms, Tensor, Attention], Tensor] | None = None

    @property
    @abstractmethod
    def output_layer(self) -> Linear:
        """The layer that scores the words."""

    @abstractmethod
    def step_terms(self, tokens: Tensor, state: S) -> tuple[Terms, S, Attention]:
        """As `step`, with the terms (B, d) of the output layer in place of the logits."""

    @abstractmethod
    def forward_terms(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Terms, Attention]:
        """As `forward`, with the terms (B, T, d) of the output layer in place of the logits."""

    def logits(self, terms: Terms) -> Tensor:
        """The output layer on the sum of the terms: (…, d) ↦ (…, V)."""
        return self.output_layer(self.dropout(reduce(operator.add, terms)))

    def step(self, tokens: Tensor, state: S) -> Step[S]:
        """Read the previous words (B,) and compute logits of the next words."""
        terms, state, attention = self.step_terms(tokens, state)
        return Step(self._logits(terms, attention), state, attention)

    def forward(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Tensor, Attention]:
        """Teacher forcing: as `step` for each word, with the output layer computed for all words at once."""
        terms, attention = self.forward_terms(features, captions, active)
        return self._logits(terms, attention), attention

    @contextmanager
    def reweighted(self, reweighting: LogitsOfTerms) -> Iterator[None]:
        """Within the block, `step` and `forward` return the logits of weighted terms, such as `RelevanceWeighting`."""
        previous, self._reweighting = self._reweighting, partial(reweighting, self)
        try:
            yield
        finally:
            self._reweighting = previous

    def _logits(self, terms: Terms, attention: Attention) -> Tensor:
        logits = self.logits(terms)
        return logits if self._reweighting is None else self._reweighting(terms, logits, attention)
