"""The tensors of a TorchScript archive, read as data.

The file is a zip archive: `data.pkl` is the pickled tree of modules, `data/N` the numbers of storage N, `code/` the
programs. Only the tree and the numbers are read. The unpickler allows three harmless constructors (an ordered
dictionary, a tensor with storage, offset, size and stride, and typed lists); every class of the archive becomes
an object with attributes and no methods.
"""

from __future__ import annotations

import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}
TYPED_LISTS = ("build_intlist", "build_doublelist", "build_boollist", "build_tensorlist", "restore_type_tag")


def is_torchscript(path: str | Path) -> bool:
    """Whether a zip archive is a TorchScript archive, which has constants beside its data."""
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Read the parameters and buffers of an archive under their dotted names, without running its code."""
    with zipfile.ZipFile(path) as archive:
        pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
        with archive.open(pickled) as file:
            root = _TreeUnpickler(file, archive, pickled.removesuffix(".pkl")).load()
    return dict(_walk(root, ""))


class _Module:
    """A module of the archive: its attributes."""

    def __setstate__(self, state: Any) -> None:
        self.attributes = state if isinstance(state, dict) else {}


class _TreeUnpickler(pickle.Unpickler):
    def __init__(self, file: Any, archive: zipfile.ZipFile, folder: str) -> None:
        super().__init__(file)
        self.archive, self.folder = archive, folder

    def find_class(self, module: str, name: str) -> Any:
        if module.split(".")[0] == "__torch__":
            return _Module
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor
        if module == "torch.jit._pickle" and name in TYPED_LISTS:
            return lambda values, *_: values
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        raise pickle.UnpicklingError(f"refused {module}.{name}")

    def persistent_load(self, pid: Any) -> Tensor:
        _, dtype, key, _, count = pid
        numbers = bytearray(self.archive.read(f"{self.folder}/{key}"))
        return torch.frombuffer(numbers, dtype=dtype, count=count) if count else torch.empty(0, dtype=dtype)


def _tensor(storage: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    # `as_strided` refuses a view beyond the end of the storage
    return storage.as_strided(size, stride, offset).clone()


def _walk(value: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, _Module):
        for key, attribute in value.attributes.items():
            yield from _walk(attribute, f"{name}.{key}" if name else key)
