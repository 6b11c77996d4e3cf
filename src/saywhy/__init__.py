"""saywhy: an image captioner that explains its captions.

>>> import saywhy
>>> model = saywhy.load()
>>> caption = model.caption("examples/images/chelsea.jpg")  # doctest: +SKIP
>>> caption.text  # doctest: +SKIP
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from saywhy.decoding.caption import Caption
    from saywhy.errors import UserError
    from saywhy.explain.explanation import Explanation
    from saywhy.inference.model import Model, load
    from saywhy.onnx_engine.engine import OnnxModel, load_onnx

__all__ = ["Caption", "Explanation", "Model", "OnnxModel", "UserError", "load", "load_onnx"]

_MODULES = {
    "Caption": "saywhy.decoding.caption",
    "Explanation": "saywhy.explain.explanation",
    "Model": "saywhy.inference.model",
    "OnnxModel": "saywhy.onnx_engine.engine",
    "UserError": "saywhy.errors",
    "load": "saywhy.inference.model",
    "load_onnx": "saywhy.onnx_engine.engine",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `saywhy --help` must not wait for torch."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'saywhy' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
