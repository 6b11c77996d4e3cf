"""The table of encoders: what each is, how it is built, where its weights come from.

Nothing here or in the modules that fill the table loads torch before a network is built, so that listing it
is cheap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from saywhy.encoders.settings import EncoderSettings, InputConvention
from saywhy.errors import UserError
from saywhy.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

    State = dict[str, Tensor]


def no_download(name: str) -> State:
    """Refuse: these weights are to be had as a file only."""
    raise UserError(f"{name} has no ImageNet weights to download: pass --weights FILE, or --weights none")


def as_it_is(state: State, body: nn.Module) -> State:
    """The names in the file are already the network's."""
    return state


@dataclass(frozen=True)
class Card:
    """One encoder of the table.

    Attributes:
        name: what a user calls it.
        width: D, the length of an feature vector.
        stride: pixels from one feature to the next.
        side: features along one side at the usual size.
        size: the usual input's side in pixels.
        convention: what its weights expect of the pixels.
        source: where its weights come from, in words.
        licence: of the weights.
        make: builds the network, pixels already normalised ↦ (B, D, rows, columns), with random weights.
        fetch: gets its ImageNet weights, given its name.
        translate: renames the tensors of a file to the network's own names.
    """

    name: str
    width: int
    stride: int
    side: int
    size: int
    convention: InputConvention
    source: str
    licence: str
    make: Callable[[EncoderSettings], nn.Module]
    fetch: Callable[[str], State] = no_download
    translate: Callable[[State, nn.Module], State] = as_it_is

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of features at the usual size."""
        return self.side, self.side


encoders: Registry[Card] = Registry("encoder")


def enter(card: Card) -> Card:
    """Put a card in the table under its name."""
    return encoders.register(card.name)(card)


def refuse_output_stride(settings: EncoderSettings) -> None:
    """Say that this network has one grid only."""
    if settings.output_stride is not None:
        raise UserError(f"{settings.name} cannot change its output stride: leave the setting output_stride out")
