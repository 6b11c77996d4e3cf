"""Decoding: from image features to captions, by beam search, greedy decoding or sampling."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saywhy.data.tokenizer import as_text
    from saywhy.decoding.beam import beam_search
    from saywhy.decoding.caption import Caption
    from saywhy.decoding.config import decode
    from saywhy.decoding.sampling import greedy, sample
    from saywhy.decoding.settings import Decoding, Hypothesis, decoding_methods

__all__ = [
    "Caption",
    "Decoding",
    "Hypothesis",
    "as_text",
    "beam_search",
    "decode",
    "decoding_methods",
    "greedy",
    "sample",
]

_MODULES = {
    "Caption": "saywhy.decoding.caption",
    "Decoding": "saywhy.decoding.settings",
    "Hypothesis": "saywhy.decoding.settings",
    "as_text": "saywhy.data.tokenizer",
    "beam_search": "saywhy.decoding.beam",
    "decode": "saywhy.decoding.config",
    "decoding_methods": "saywhy.decoding.settings",
    "greedy": "saywhy.decoding.sampling",
    "sample": "saywhy.decoding.sampling",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: the settings and captions of other engines need no torch."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'saywhy.decoding' has no attribute {name!r}")
