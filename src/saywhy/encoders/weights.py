"""Read weights without running code that a file may contain.

Three formats are read, recognised by content and not by name: safetensors; PyTorch files, with its unpickler that
builds tensors only (`weights_only=True`); TorchScript archives, of which only the tensors are read.
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
    """Read a file of named tensors; a `UserError` of one line for any other file."""
    path = Path(path)
    if path.is_dir():
        raise UserError(f"{path} is a folder: --weights takes a file")
    try:
        with path.open("rb") as file:
            beginning = file.read(9)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}: --weights takes a file of weights") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if not beginning:
        raise UserError(f"{path} is empty: --weights takes a file of weights")
    return _tensors(_read(path, beginning), path)


def load_into(module: nn.Module, state: Mapping[str, Tensor], path: str | Path) -> None:
    """Load tensors into a network. Others than the network's (a classifier) are ignored; missing ones are an error.

    Args:
        module: the network.
        state: named tensors.
        path: where they come from, for error messages.
    """
    expected = module.state_dict()
    optional = [name for name in expected if name.endswith("num_batches_tracked")]  # not in many files
    missing = [name for name in expected if name not in state and name not in optional]
    if missing:
        raise UserError(f"{path} does not fit this network: it has no {_first(missing)}")
    tensors = {name: tensor for name, tensor in state.items() if name in expected}
    mismatches = [
        f"{name} is {tuple(tensor.shape)} and should be {tuple(expected[name].shape)}"
        for name, tensor in tensors.items()
        if tensor.shape != expected[name].shape
    ]
    if mismatches:
        raise UserError(f"{path} does not fit this network: {_first(mismatches)}")
    for name, tensor in tensors.items():
        if tensor.is_floating_point() != expected[name].is_floating_point():
            raise UserError(f"{path} does not fit this network: {name} is {tensor.dtype}, not {expected[name].dtype}")
        if not tensor.isfinite().all():
            raise UserError(f"{path}: {name} contains NaN or infinite values; use another file")
    module.load_state_dict(tensors, strict=False)


def _read(path: Path, beginning: bytes) -> Any:
    if beginning[8:] == b"{":  # safetensors: the length of the header in 8 bytes, then the header as JSON
        return _read_safetensors(path)
    try:
        if zipfile.is_zipfile(path) and torchscript.is_torchscript(path):
            return torchscript.read_tensors(path)
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise UserError(_pickle_error(path, str(error))) from None
    except Exception:  # a damaged file can fail anywhere in a reader
        raise UserError(f"{path} is damaged, truncated, or not a file of weights") from None


def _read_safetensors(path: Path) -> State:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError:
        raise UserError(f"{path} is damaged or truncated: it begins like a safetensors file") from None


def _pickle_error(path: Path, reason: str) -> str:
    if "Unsupported" in reason or "GLOBAL" in reason or "refused" in reason:
        return f"{path} contains more than tensors and was not opened: save its state dict, preferably as safetensors"
    return f"{path} is damaged, truncated, or not a file of weights"


def _tensors(loaded: Any, path: Path) -> State:
    """The tensors of a state dict, also of one inside a training checkpoint."""
    for wrapper in ("state_dict", "model", "model_state_dict"):
        if isinstance(loaded, Mapping) and isinstance(loaded.get(wrapper), Mapping):
            loaded = loaded[wrapper]
    if not isinstance(loaded, Mapping):
        raise UserError(f"{path} has no named tensors: save the network's state dict, preferably as safetensors")
    state = {name: value for name, value in loaded.items() if isinstance(value, Tensor)}
    if not state:
        raise UserError(f"{path} has no named tensors: save the network's state dict, preferably as safetensors")
    return state


def _first(names: list[str], count: int = 3) -> str:
    rest = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + rest
