"""Exports that `saywhy caption --engine onnx` makes of models of torch, once for each model.

They are in `$SAYWHY_CACHE/onnx`, by default `~/.cache/saywhy/onnx`, in a folder named after the contents of the model.
Making one needs torch; using it does not.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from saywhy.errors import UserError
from saywhy.files import file_lock
from saywhy.model_names import CONFIG, VOCABULARY, WEIGHTS, locate
from saywhy.onnx_engine.engine import OnnxModel
from saywhy.onnx_engine.manifest import FORMAT, MANIFEST, digest

FILES = (CONFIG, VOCABULARY, WEIGHTS, "familiarity.safetensors")


def load_exported(model: str | Path | None, on_export: Callable[[str], None] = lambda message: None) -> OnnxModel:
    """The ONNX model of a folder that `saywhy export` wrote, or of a model of torch, which is exported first.

    `on_export` is called with a line of progress before an export, which takes a minute.
    """
    folder = locate(model)
    if (folder / MANIFEST).is_file() or not (folder / CONFIG).is_file():
        return OnnxModel(folder)
    cached = cache_folder() / f"{folder.resolve().name}-{_key(folder)}"
    with suppress(UserError):  # not exported yet, or damaged
        return OnnxModel(cached)
    on_export(f"exporting {folder.name} to ONNX, once, which takes about a minute: {cached}")
    with file_lock(cached.with_name(f"{cached.name}.lock")):
        with suppress(UserError):  # another process has exported it meanwhile
            return OnnxModel(cached)
        _export(folder, cached)
    return OnnxModel(cached)


def cache_folder() -> Path:
    """Where exports are kept."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saywhy"
    return Path(os.environ.get("SAYWHY_CACHE") or default) / "onnx"


def _key(folder: Path) -> str:
    """A digest of everything that an export depends on."""
    key = hashlib.blake2b(f"format {FORMAT}".encode(), digest_size=8)
    for name in FILES:
        path = folder / name
        key.update(f"{name} {digest(path) if path.is_file() else None}".encode())
    return key.hexdigest()


def _export(folder: Path, cached: Path) -> None:
    from saywhy.inference.model import load  # an export needs torch
    from saywhy.onnx_engine.export import export_model

    export_model(load(folder, "cpu"), cached)
