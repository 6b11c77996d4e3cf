"""saywhy: an image captioner that shows its work.

>>> import saywhy
>>> model = saywhy.load()
>>> caption = model.caption("examples/images/chelsea.png")  # doctest: +SKIP
>>> caption.text  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saywhy.decoding import Caption
    from saywhy.errors import UserError
    from saywhy.explain import Explanation
    from saywhy.inference.model import Model, load

__all__ = ["Caption", "Explanation", "Model", "UserError", "load"]

_HOMES = {
    "Caption": "saywhy.decoding",
    "Explanation": "saywhy.explain",
    "Model": "saywhy.inference.model",
    "UserError": "saywhy.errors",
    "load": "saywhy.inference.model",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for only then: `saywhy --help` must not wait for torch."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'saywhy' has no attribute {name!r}")
