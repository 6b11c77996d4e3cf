"""A captioner as three modules over plain tensors, which torch can export.

The decoder's state is a dataclass of tensors and `Features`. As inputs and outputs of a graph it is a list of tensors,
in the order of its fields; a `StateLayout` turns one into the other. Nothing here knows an architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn

from saywhy.captioners.base import Captioner, State
from saywhy.decoding.config import without_markers
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.inference.map_statistics import encode_with_statistics

Grid = tuple[int, int]


@dataclass(frozen=True)
class StateLayout:
    """The tensors of a decoder's state.

    Attributes:
        kind: the class of the state.
        names: of its fields.
        grids: of each field, None for a tensor; rows and columns of the grid for features.
        constant: of each field, whether a step returns the tensor it was given.
        growing: of each field, the dimensions that grow with each word, such as a cache of earlier words.
    """

    kind: type[State]
    names: tuple[str, ...]
    grids: tuple[Grid | None, ...]
    constant: tuple[bool, ...] = ()
    growing: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, captioner: Captioner, features: Features, start: int) -> StateLayout:
        """The layout of a captioner's states, found by taking two steps."""
        first = captioner.start(features)
        tokens = torch.full((len(features),), start)
        second = captioner.step(tokens, first).state
        third = captioner.step(tokens, second).state
        values = [getattr(first, field.name) for field in fields(first)]
        for field, value in zip(fields(first), values, strict=True):
            _require_plain(captioner, field.name, value)
        names = tuple(field.name for field in fields(first))
        layout = cls(type(first), names, tuple(getattr(value, "grid", None) for value in values))
        flat = [layout.flatten(state) for state in (first, second, third)]
        constant = tuple(a is b for a, b in zip(flat[0], flat[1], strict=True))
        growing = tuple(_differing(a.shape, b.shape) for a, b in zip(flat[1], flat[2], strict=True))
        return cls(layout.kind, layout.names, layout.grids, constant, growing)

    def flatten(self, state: State) -> list[Tensor]:
        """The tensors of a state."""
        values = [getattr(state, name) for name in self.names]
        return [value.vectors if isinstance(value, Features) else value for value in values]

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """The state of these tensors."""
        pairs = zip(tensors, self.grids, strict=True)
        values = [tensor if grid is None else Features(tensor, grid) for tensor, grid in pairs]
        return self.kind(**dict(zip(self.names, values, strict=True)))

    def changing(self, state: State) -> list[Tensor]:
        """The tensors that a step computes anew."""
        return [tensor for tensor, constant in zip(self.flatten(state), self.constant, strict=True) if not constant]


def _require_plain(captioner: Captioner, name: str, value: Any) -> None:
    if isinstance(value, Tensor) or (isinstance(value, Features) and value.mask is None and value.grid is not None):
        return
    raise UserError(
        f"captioner {captioner.name} cannot be exported: {name} of its state is neither a tensor nor a grid of features"
    )


def _differing(a: torch.Size, b: torch.Size) -> tuple[int, ...]:
    return tuple(dimension for dimension, (m, n) in enumerate(zip(a, b, strict=True)) if m != n)


class EncoderGraph(nn.Module):
    """Pixels ↦ features, and the statistics of the encoder's maps in the order of `maps`."""

    def __init__(self, captioner: Captioner, maps: Sequence[str], blocks: Sequence[str]) -> None:
        super().__init__()
        self.captioner, self.maps, self.blocks = captioner, maps, blocks

    def forward(self, pixels: Tensor) -> tuple[Tensor, ...]:
        """(B, 3, S, S) ↦ (B, L, D), and (B, 2C) of each map."""
        if not self.maps:
            return (self.captioner.encode(pixels).vectors,)
        features, statistics = encode_with_statistics(self.captioner, pixels, None, self.blocks)
        return features.vectors, *(statistics[name] for name in self.maps)


class StartGraph(nn.Module):
    """Features ↦ the tensors of the state before the first word."""

    def __init__(self, captioner: Captioner, layout: StateLayout, grid: Grid) -> None:
        super().__init__()
        self.captioner, self.layout, self.grid = captioner, layout, grid

    def forward(self, vectors: Tensor) -> tuple[Tensor, ...]:
        """(B, L, D) ↦ the tensors of the state."""
        state = self.captioner.start(Features(vectors, self.grid))
        return tuple(
            tensor.clone() for tensor in self.layout.flatten(state)
        )  # no output is an input, or another output


class StepGraph(nn.Module):
    """Tokens and the tensors of the state ↦ log p, α, perhaps β, and the tensors of the state that change."""

    no_markers: Tensor

    def __init__(self, captioner: Captioner, layout: StateLayout) -> None:
        super().__init__()
        self.captioner, self.layout = captioner, layout
        no_markers = without_markers(torch.zeros(captioner.vocabulary_size), captioner.styles)
        self.register_buffer("no_markers", no_markers, persistent=False)  # (V), 0 at words and −∞ at markers

    def forward(self, tokens: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """(R,) and tensors (R, …) ↦ log p (R, V), α (R, …, L), β (R,), tensors (R, …)."""
        step = self.captioner.step(tokens, self.layout.build(state))
        log_p = (step.logits + self.no_markers).log_softmax(dim=-1)  # as `log_probabilities`
        beta = () if step.attention.beta is None else (step.attention.beta,)
        alpha = step.attention.alpha
        return log_p, alpha.clone(), *beta, *(tensor.clone() for tensor in self.layout.changing(step.state))
