"""Encoders: images ↦ features.

>>> sorted(spec.name for spec in registered())[:2]
['alexnet', 'densenet121']

`build("efficientnet-lite2")` returns an `Encoder`; torch is imported then, not with this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from saywhy.encoders.registry import EncoderSettings, EncoderSpec, InputConvention, encoders, registered

if TYPE_CHECKING:
    from saywhy.encoders.base import Encoder, Features, build

__all__ = [
    "Encoder",
    "EncoderSettings",
    "EncoderSpec",
    "Features",
    "InputConvention",
    "build",
    "encoders",
    "registered",
]


def __getattr__(name: str) -> Any:
    """Import the names that need torch when they are first used."""
    if name in ("Encoder", "Features", "build"):
        return getattr(import_module("saywhy.encoders.base"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
