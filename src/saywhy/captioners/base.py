"""The one seam: what every captioner answers to.

Decoding, training, explaining and exporting know a captioner by `encode`, `start`, `step` and `forward` alone.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from saywhy.encoders.annotations import Annotations, take_rows
from saywhy.encoders.base import Encoder
from saywhy.errors import UserError, closest
from saywhy.registry import Registry

captioners: Registry[type[Captioner]] = Registry("captioner")


@dataclass(frozen=True)
class State:
    """What a decoder carries from word to word. Every field is a tensor, or Annotations, with the batch first."""

    def select(self, rows: Tensor) -> Self:
        """The states of these rows: how beams are reordered and finished pictures dropped."""
        return dataclasses.replace(self, **{name: _select(part, rows) for name, part in self._parts()})

    def _parts(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]


def _select(part: Any, rows: Tensor) -> Any:
    return take_rows(part, rows) if isinstance(part, Tensor) else part.select(rows)


@dataclass(frozen=True)
class Glance:
    """What the model looked at while choosing a word.

    Attributes:
        alpha: attention over the annotations, (B, [heads,] L), each row summing to one; with a time axis after
            the batch when it comes from teacher forcing.
        beta: how far the gate lets the picture in, (B,), or None where an architecture has no gate.
    """

    alpha: Tensor
    beta: Tensor | None = None


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Step(Generic[S]):
    """One word's worth of decoding: logits (B, V), the next state, and the glance."""

    logits: Tensor
    state: S
    glance: Glance


class Captioner(nn.Module, ABC, Generic[S]):
    """An encoder and a decoder over its annotations.

    A subclass registers itself, names the dataclass of its settings and writes `start`, `step` and `forward`.
    """

    name: ClassVar[str]
    Settings: ClassVar[type]

    def __init__(self, encoder: Encoder, words: int, settings: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.words = words
        self.settings = settings

    def encode(self, pixels: Tensor) -> Annotations:
        """Annotations of pictures (B, 3, H, W), RGB 0–255."""
        return self.encoder(pixels)

    @abstractmethod
    def start(self, annotations: Annotations) -> S:
        """The state before the first word."""

    @abstractmethod
    def step(self, words: Tensor, state: S) -> Step[S]:
        """Read the words (B,) just said and score the next ones."""

    @abstractmethod
    def forward(self, annotations: Annotations, captions: Tensor) -> tuple[Tensor, Glance]:
        """Teacher forcing: captions (B, T) in, logits (B, T, V) of the word after each, and the glances."""

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device


def build(name: str, encoder: Encoder, words: int, **settings: Any) -> Captioner:
    """A registered captioner with fresh decoder weights."""
    cls = captioners[name]
    known = {field.name for field in dataclasses.fields(cls.Settings)}
    for key in settings:
        if key not in known:
            raise UserError(f"captioner {name} has no setting {key!r}: {closest(key, known)}")
    return cls(encoder, words, cls.Settings(**settings))
