"""Encoders: images ↦ features.

>>> [card.name for card in registered()][:2]
['alexnet', 'vgg16']

`build("efficientnet-lite2")` gives an `Encoder`; torch is loaded then and not before.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from saywhy.encoders import converted_models, efficientnet_lite, torchvision_models  # noqa: F401 (they fill the table)
from saywhy.encoders.catalogue import Card, encoders
from saywhy.encoders.settings import EncoderSettings, InputConvention

if TYPE_CHECKING:
    from saywhy.encoders.base import Encoder
    from saywhy.encoders.features import Features

__all__ = [
    "Card",
    "Encoder",
    "EncoderSettings",
    "Features",
    "InputConvention",
    "build",
    "encoders",
    "registered",
]


def build(name: str, weights: str | Path | None = "imagenet", **settings: Any) -> Encoder:
    """Build an encoder.

    Args:
        name: one of `registered()`, or "timm:NAME" for any network timm knows.
        weights: "imagenet" for its usual weights, None or "none" for random ones, or a file.
        settings: the other fields of `EncoderSettings`; `**dataclasses.asdict(encoder.settings)`, which holds
            the name too, builds the same network.
    """
    from saywhy.encoders import building

    return building.build(EncoderSettings.from_dict({"name": name, **settings}), weights)


def registered() -> list[Card]:
    """List the table of encoders: name, width, stride, grid, size, source and licence of the weights."""
    return [encoders[name] for name in encoders]


def __getattr__(name: str) -> Any:
    """Give the two classes that need torch, loaded when first asked for."""
    if name == "Encoder":
        from saywhy.encoders.base import Encoder

        return Encoder
    if name == "Features":
        from saywhy.encoders.features import Features

        return Features
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
