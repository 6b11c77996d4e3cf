"""Reading weights without running anything a file may carry.

Three kinds of file are read, told apart by their first bytes and not by their names: safetensors; PyTorch's
own files, through its unpickler that builds tensors only; TorchScript archives, of which only the tensors
are looked at.
"""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saywhy.encoders import torchscript
from saywhy.errors import UserError

State = dict[str, Tensor]


def read_weights(path: str | Path) -> State:
    """Read a file of named tensors; whatever else the file is, a `UserError` says so in one line."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder: --weights wants a file of weights")
    try:
        with path.open("rb") as file:
            beginning = file.read(9)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}: --weights wants a file of weights") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if not beginning:
        raise UserError(f"{path} is empty: --weights wants a file of weights")
    return _tensors(_read(path, beginning), path)


def load_into(module: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Fill a network; what has no place in it (a classifier) is left out, what it lacks is a `UserError`.

    Args:
        module: the network to fill.
        state: named tensors.
        path: what to call them in a message.
    """
    places = module.state_dict()
    counters = [name for name in places if name.endswith("num_batches_tracked")]  # many files leave them out
    missing = [name for name in places if name not in state and name not in counters]
    if missing:
        raise UserError(f"{path} does not fit this network: it lacks {_first(missing)}")
    fitting = {name: tensor for name, tensor in state.items() if name in places}
    misshapen = [
        f"{name} is {tuple(tensor.shape)} and should be {tuple(places[name].shape)}"
        for name, tensor in fitting.items()
        if tensor.shape != places[name].shape
    ]
    if misshapen:
        raise UserError(f"{path} does not fit this network: {_first(misshapen)}")
    module.load_state_dict(fitting, strict=False)


def _read(path: Path, beginning: bytes) -> Any:
    if beginning[8:] == b"{":  # safetensors: the header's length in 8 bytes, then the header in JSON
        return _read_safetensors(path)
    try:
        if zipfile.is_zipfile(path) and torchscript.is_torchscript(path):
            return torchscript.read_tensors(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(_refusal(path, str(error))) from None
    except Exception:  # a damaged file can fail anywhere in a reader; all of it means the same to the user
        raise UserError(f"{path} is damaged, cut short, or no file of weights") from None


def _read_safetensors(path: Path) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError:
        raise UserError(f"{path} is damaged or cut short: it begins like a safetensors file") from None


def _refusal(path: Path, reason: str) -> str:
    if "Unsupported" in reason or "GLOBAL" in reason or "refused" in reason:
        return f"{path} holds more than tensors and was not opened: save its state dict, best as safetensors"
    return f"{path} is damaged, cut short, or no file of weights"


def _tensors(loaded: Any, path: Path) -> State:
    """Unwrap a state dict from a training checkpoint and keep its tensors."""
    for wrapper in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping):
        raise UserError(f"{path} holds no named tensors: save the network's state dict, best as safetensors")
    state = {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
    if not state:
        raise UserError(f"{path} holds no named tensors: save the network's state dict, best as safetensors")
    return state


def _first(names: list[str], count: int = 3) -> str:
    rest = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + rest
