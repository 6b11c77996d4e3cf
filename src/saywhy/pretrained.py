"""Models of Hugging Face transformers that a user names: a folder, or hf:NAME.

Weights are read from safetensors only: nothing is unpickled, and no code of a model is run.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from saywhy.errors import UserError
from saywhy.files import read_json

HUB = "hf:"
_UNUSED = ("pooler.",)  # weights that many files leave out, and no score reads


def short_name(location: str) -> str:
    """The name of a model on the Hub, or that of its folder.

    >>> short_name("hf:openai/clip-vit-base-patch32"), short_name("models/MiniLM/")
    ('openai/clip-vit-base-patch32', 'MiniLM')
    """
    name = location.removeprefix(HUB)
    return name if location.startswith(HUB) and not Path(name).is_dir() else Path(name).resolve().name


def source(location: str, what: str) -> str:
    """The argument of `from_pretrained`; a `UserError` for a folder that does not exist."""
    if location.startswith(HUB):
        return location.removeprefix(HUB)
    if not Path(location).is_dir():
        raise UserError(f"{location}: no such folder; give the folder of {what} of Hugging Face, or hf:NAME")
    return location


def is_transformers_model(location: str | Path) -> bool:
    """Whether a location is hf:NAME or hf:FOLDER, or a folder whose config.json is one of transformers."""
    if str(location).startswith(HUB):
        return True
    config = Path(location) / "config.json"
    contents = read_json(config) if config.is_file() else None
    return isinstance(contents, dict) and "model_type" in contents


def import_transformers(what: str) -> ModuleType:
    """The package, or one line that names the extra."""
    try:
        import transformers
    except ImportError:
        raise UserError(f'{what} needs transformers: pip install "saywhy[hf]"') from None
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """No log lines and progress bars while a model is loaded: errors are one line, and what is missing is checked."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def load_part(cls: Any, location: str, what: str, **options: Any) -> Any:
    """A configuration, tokenizer or image processor; `what` is the model, for the error message."""
    place = source(location, what)
    try:
        with quiet():
            return cls.from_pretrained(place, trust_remote_code=False, **options)
    except Exception as error:  # loaders raise exceptions of any type for broken files
        raise unusable(location, what, error) from None


def load_weights(cls: Any, location: str, what: str, device: torch.device | str, **options: Any) -> Any:
    """A model in single precision, ready to score; weights that are missing in its file are an error."""
    options |= {"use_safetensors": True, "dtype": torch.float32, "output_loading_info": True}
    model, info = load_part(cls, location, what, **options)
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith(_UNUSED)):
        raise unusable(location, what, f"its weights lack {len(missing)} tensors, such as {missing[0]}")
    return torch.nn.Module.to(model.eval(), device)


def unusable(location: str, what: str, reason: object) -> UserError:
    """One line for a model that cannot be loaded."""
    return UserError(f"{location}: not {what} that can be loaded ({' '.join(str(reason).split())[:200]})")
