"""What an encoder is, in plain data: enough to build it again, small enough for a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from saywhy.errors import UserError


@dataclass(frozen=True)
class InputConvention:
    """How RGB pixels in 0–255 become a network's input: x ↦ (x − mean) / std, channel by channel.

    Attributes:
        mean: in 0–255 units, in the order of `channels`.
        std: in 0–255 units, in the order of `channels`.
        channels: the order the network was trained on, "rgb" or "bgr".
    """

    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    channels: str = "rgb"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(self.mean))  # JSON gives lists back
        object.__setattr__(self, "std", tuple(self.std))
        if self.channels not in ("rgb", "bgr"):
            raise UserError(f'unknown order of channels {self.channels!r}: "rgb" or "bgr"')
        if len(self.mean) != 3 or len(self.std) != 3 or 0 in self.std:
            raise UserError("an input convention needs three means and three standard deviations other than 0")


@dataclass(frozen=True)
class EncoderSettings:
    """Everything needed to build an encoder again, weights apart.

    A finished encoder carries them with no `None` for size and convention, so that its meaning does not
    change when a default does. `build(weights=None, **dataclasses.asdict(settings))` gives the same network.

    Attributes:
        name: a registered name, or "timm:NAME".
        size: the side in pixels of its usual square input.
        convention: what its weights expect of the pixels.
        output_stride: pixels from one feature to the next where a finer grid than the usual was asked for.
        train_batch_norm: let batch normalisation use and update the statistics of the batch in training.
    """

    name: str
    size: int | None = None
    convention: InputConvention | None = None
    output_stride: int | None = None
    train_batch_norm: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.convention, Mapping):
            object.__setattr__(self, "convention", InputConvention(**self.convention))

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> EncoderSettings:
        """Read what `dataclasses.asdict` wrote, also after a way through JSON."""
        unknown = sorted(set(settings) - set(cls.__dataclass_fields__))
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise UserError(f"unknown encoder setting {unknown[0]!r}: an encoder takes {known}")
        return cls(**settings)


IMAGENET = InputConvention((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
