"""Models of Hugging Face transformers that a user names: a folder, or hf:NAME.

Weights are read from safetensors only: nothing is unpickled, and no code of a model is run.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from saywhy.errors import UserError
from saywhy.files import read_json

HUB = "hf:"
ADAPTER = "adapter"
"""The kind of a model folder that refers to a model of transformers."""
_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
_NO_NETWORK = ("connect", "offline", "resolve", "Max retries", "cached files", "cached snapshot", "timed out")
"""What the messages of transformers and huggingface_hub say without a network."""
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
    if location.startswith(HUB) and not location.startswith((f"{HUB}/", f"{HUB}.")):
        return location.removeprefix(HUB)
    location = location.removeprefix(HUB)
    if not Path(location).is_dir():
        raise UserError(f"{location}: no such folder; give the folder of {what} of Hugging Face, or hf:NAME")
    return location


@dataclass(frozen=True)
class HubSource:
    """Where a model of transformers came from.

    Attributes:
        model: hf:NAME, or a folder.
        prompt: what it is asked in place of its adapter's own prompt.
    """

    model: str
    prompt: str | None = None

    @classmethod
    def read(cls, folder: str | Path) -> HubSource | None:
        """What a folder refers to that `Model.save_pretrained` wrote for a model of transformers; else None."""
        contents = _config(folder)
        if contents.get("kind") != ADAPTER:
            return None
        model, prompt = contents.get("model"), contents.get("prompt")
        if not isinstance(model, str) or not isinstance(prompt, str | None):
            raise UserError(f"{folder}/config.json: names no model; write it again with save_pretrained")
        return cls(model, prompt)


def is_transformers_model(location: str | Path) -> bool:
    """Whether a location is hf:NAME or hf:FOLDER, a folder of transformers, or one that refers to such a model."""
    if str(location).startswith(HUB):
        return True
    contents = _config(location)
    return "model_type" in contents or contents.get("kind") == ADAPTER


def is_hub_name(location: str | Path) -> bool:
    """Whether a location can only be a name on the Hub.

    >>> is_hub_name("user/model"), is_hub_name("examples/images"), is_hub_name("model")
    (True, False, False)
    """
    return bool(_NAME.fullmatch(str(location))) and not Path(str(location).partition("/")[0]).exists()


def download(name: str) -> Path:
    """The folder of a model on the Hub: its configuration, safetensors, texts and tokenizer."""
    try:
        import huggingface_hub
    except ImportError:
        raise UserError(f'{name}: models of the Hub need huggingface_hub: pip install "saywhy[hf]"') from None
    try:
        with quiet():
            return Path(huggingface_hub.snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # many kinds, of several packages
        raise _explained(f"{HUB}{name}", "a model", error) from None


def _config(folder: str | Path) -> dict[str, Any]:
    path = Path(folder) / "config.json"
    contents = read_json(path) if path.is_file() else {}
    return contents if isinstance(contents, dict) else {}


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
            return cls.from_pretrained(place, **{"trust_remote_code": False, **options})
    except Exception as error:  # loaders raise exceptions of any type for broken files
        raise _explained(location, what, error) from None


def load_weights(cls: Any, location: str, what: str, device: torch.device | str, **options: Any) -> Any:
    """A model, by default in single precision, ready to score; weights that are missing in its file are an error."""
    options = {"use_safetensors": True, "dtype": torch.float32, **options, "output_loading_info": True}
    model, info = load_part(cls, location, what, **options)
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith(_UNUSED)):
        raise unusable(location, what, f"its weights lack {len(missing)} tensors, such as {missing[0]}")
    return torch.nn.Module.to(model.eval(), device)


def _explained(location: str, what: str, error: Exception) -> UserError:
    """What is wrong with a location, and what to do."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        advice = "; saywhy.load(…, trust_remote_code=True) does" if what.startswith("a captioner") else ""
        return UserError(f"{location}: needs code from its repository, which is not run unless you ask for it{advice}")
    is_name = location.startswith(HUB) and not Path(location.removeprefix(HUB)).is_dir()
    if is_name and any(sign in text for sign in _NO_NETWORK):
        return UserError(
            f"{location}: not on this machine, and the Hub cannot be reached; download it where there is a network, "
            "and give its folder"
        )
    return unusable(location, what, error)


def unusable(location: str, what: str, reason: object) -> UserError:
    """One line for a model that cannot be loaded."""
    return UserError(f"{location}: not {what} that can be loaded ({' '.join(str(reason).split())[:200]})")
