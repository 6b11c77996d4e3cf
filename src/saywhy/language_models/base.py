"""Language models over the words of captions: q(word | earlier words), without an image.

A language model reads token ids of its own vocabulary, `<start>` first, and predicts the next word or `<end>`:

    start(rows) -> state                     before `<start>` is read; batch first
    step(tokens, state) -> logits, state     (B,) ↦ (B, W)
    forward(captions) -> logits              (B, T) ↦ (B, T, W), all words at once, for training

A model is one file with a subclass of `LanguageModel` that registers itself.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from saywhy.captioners.base import State
from saywhy.errors import UserError, did_you_mean
from saywhy.registry import Registry

language_models: Registry[type[LanguageModel]] = Registry(
    "language model",
    builtin=("saywhy.language_models.lstm_language_model", "saywhy.language_models.transformer_language_model"),
)

MOST_LAYERS = 100


@dataclass(frozen=True)
class LanguageModelSettings:
    """The settings of every language model; a model may add its own.

    Attributes:
        width: of word embeddings and layers.
        layers: number of layers.
        dropout: of embeddings and of the output of each layer.
    """

    width: int = 512
    layers: int = 1
    dropout: float = 0.3

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            number = type(value) is int or (type(value) is float and field.type == "float" and math.isfinite(value))
            if not number:
                raise UserError(f"language model setting {field.name} must be {field.type}, not {value!r}")
            if field.type == "int" and value < 1:
                raise UserError(f"language model setting {field.name} = {value} must be at least 1")
        if self.layers > MOST_LAYERS:
            raise UserError(f"language model setting layers = {self.layers} is above {MOST_LAYERS}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"language model setting dropout = {self.dropout} must be from 0 to below 1")


S = TypeVar("S", bound=State)


class LanguageModel(nn.Module, ABC, Generic[S]):
    """A language model over `words` token ids."""

    name: ClassVar[str]
    Settings: ClassVar[type[LanguageModelSettings]]

    def __init__(self, words: int, settings: Any) -> None:
        super().__init__()
        self.words, self.settings = words, settings

    @abstractmethod
    def start(self, rows: int) -> S:
        """The state before `<start>` is read."""

    @abstractmethod
    def step(self, tokens: Tensor, state: S) -> tuple[Tensor, S]:
        """Read the previous words (B,): logits (B, W) of the next words, and the next state."""

    @abstractmethod
    def forward(self, captions: Tensor) -> Tensor:
        """Teacher forcing: from captions (B, T), logits (B, T, W) of the word after each."""

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device


def build(name: str, words: int, **settings: Any) -> LanguageModel:
    """A registered language model with random weights."""
    cls = language_models[name]
    known = {field.name for field in dataclasses.fields(cls.Settings)}
    for key in settings:
        if key not in known:
            raise UserError(f"language model {name} has no setting {key!r}: {did_you_mean(key, known)}")
    return cls(words, cls.Settings(**settings))
