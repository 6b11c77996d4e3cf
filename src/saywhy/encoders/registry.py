"""The table of encoders: what each one is, how to build it, where its weights come from.

No module that fills the table imports torch before a network is built, so that listing encoders is fast.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from saywhy.errors import UserError
from saywhy.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor, nn

    StateDict = dict[str, Tensor]

SMALLEST_STD = 0.01  # in 0–255 units; a smaller one scales pixels beyond any useful range
SIZES = range(8, 4096)  # pixels; larger inputs take many gigabytes of memory


@dataclass(frozen=True)
class InputConvention:
    """How RGB pixels in 0–255 become a network's input: x ↦ (x − mean) / std, per channel.

    Attributes:
        mean: in 0–255 units, in the order of `channels`.
        std: in 0–255 units, in the order of `channels`.
        channels: the channel order the network was trained on, "rgb" or "bgr".
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    channels: str = "rgb"

    def __post_init__(self) -> None:
        for name in ("mean", "std"):
            object.__setattr__(self, name, _three_numbers(name, getattr(self, name)))
        if self.channels not in ("rgb", "bgr"):
            raise UserError(f'unknown channel order {self.channels!r}: "rgb" or "bgr"')
        if min(self.std) < SMALLEST_STD:
            raise UserError(f"the std of an input convention is at least {SMALLEST_STD} per channel, not {self.std}")


def _three_numbers(name: str, values: Any) -> tuple[float, ...]:
    """The values as a tuple (JSON has lists), if they are three finite numbers."""
    numbers = tuple(values) if isinstance(values, list | tuple) else ()
    if len(numbers) != 3 or not all(_is_number(value) and math.isfinite(value) for value in numbers):
        raise UserError(f"the {name} of an input convention is three finite numbers, one per channel, not {values!r}")
    return numbers


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@dataclass(frozen=True)
class EncoderSettings:
    """Everything needed to build an encoder again, except its weights.

    The settings of a built encoder have no `None` for size and convention, so that a saved model does not change
    when a default does. `build(weights=None, **dataclasses.asdict(settings))` gives the same network.

    Attributes:
        name: a registered name, or one with the prefix of a family: "timm:NAME", "features:D".
        size: side in pixels of its default square input.
        convention: the pixel normalisation its weights were trained with.
        output_stride: pixels between neighbouring features, if finer than the default.
        train_batch_norm: batch normalisation uses and updates batch statistics in training.
    """

    name: str
    size: int | None = None
    convention: InputConvention | None = None
    output_stride: int | None = None
    train_batch_norm: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.convention, Mapping):
            object.__setattr__(self, "convention", InputConvention(**self.convention))
        if not isinstance(self.name, str):
            raise UserError(f"the name of an encoder is a string, not {self.name!r}")
        if not isinstance(self.convention, InputConvention | None):
            raise UserError(f"{self.name}: convention has the keys mean, std and channels, not {self.convention!r}")
        for name in ("size", "output_stride"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"{self.name}: {name} is a number of pixels, not {value!r}")
        if self.size is not None and self.size not in SIZES:
            raise UserError(f"{self.name}: size {self.size} is not in {SIZES.start}–{SIZES.stop - 1} pixels")
        if not isinstance(self.train_batch_norm, bool):
            raise UserError(f"{self.name}: train_batch_norm is true or false, not {self.train_batch_norm!r}")

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> EncoderSettings:
        """Read the result of `dataclasses.asdict`, also from JSON."""
        unknown = sorted(set(settings) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise UserError(f"unknown encoder setting {unknown[0]!r}: an encoder takes {known}")
        return cls(**settings)


def no_download(name: str) -> StateDict:
    """Raise a `UserError`: these weights exist as a file only."""
    raise UserError(f"{name} has no ImageNet weights to download: pass --weights FILE, or --weights none")


def same_names(state: StateDict, body: nn.Module) -> StateDict:
    """The state dict unchanged: the tensor names of the file are the network's."""
    return state


@dataclass(frozen=True)
class EncoderSpec:
    """One encoder of the table.

    Attributes:
        name: the name in recipes and in `build`.
        width: D, the length of a feature vector.
        stride: pixels between neighbouring features.
        side: features along one side at the default size.
        size: side of the default input in pixels.
        convention: the pixel normalisation its weights were trained with.
        source: where its weights come from, for `saywhy models`.
        licence: of the weights.
        make: builds the network, normalised pixels ↦ (B, D, rows, columns), with random weights.
        fetch: returns its ImageNet weights, given its name.
        translate: renames the tensors of a file to the network's names.
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
    fetch: Callable[[str], StateDict] = no_download
    translate: Callable[[StateDict, nn.Module], StateDict] = same_names

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of features at the default size."""
        return self.side, self.side


encoders: Registry[EncoderSpec] = Registry(
    "encoder",
    entry_points="saywhy.encoders",
    builtin=(
        "saywhy.encoders.efficientnet_lite",
        "saywhy.encoders.torchvision_models",
        "saywhy.encoders.converted_models",
    ),
)
"""Encoders by name, each with a fixed network."""

families: Registry[Callable[[EncoderSettings, Any], Any]] = Registry(
    "encoder family",
    entry_points="saywhy.encoder_families",
    builtin=("saywhy.encoders.timm_models", "saywhy.encoders.precomputed"),
)
"""Families of encoders by the prefix of their names, "timm" of "timm:resnet18".

An entry builds an `Encoder` from settings and weights ("imagenet", a file, or None), as `encoders.base.build` does.
"""


def registered() -> list[EncoderSpec]:
    """All encoders of the table."""
    return [encoders[name] for name in encoders]


def refuse_output_stride(settings: EncoderSettings) -> None:
    """Raise a `UserError` if an output stride is set for a network that has one grid only."""
    if settings.output_stride is not None:
        raise UserError(f"{settings.name} cannot change its output stride: leave the setting output_stride out")


def import_extra(module: str, extra: str) -> Any:
    """Import a module of an optional package, or raise a `UserError` that names the extra to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UserError(f'this encoder needs the package {extra}: pip install "saywhy[{extra}]" ({error})') from None


IMAGENET = InputConvention((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
