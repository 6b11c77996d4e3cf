"""How much memory a model needs, from the headers of its safetensors files, before its weights are read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from saywhy.errors import UserError
from saywhy.pretrained import HUB

BYTES = 4  # of a weight in single precision
SHARE = 0.9  # of the available memory that weights may take; activations need the rest
LARGEST_HEADER = 100_000_000  # bytes; safetensors allows no larger one


def check_memory(location: str, device: torch.device | str) -> None:
    """Raise a `UserError` if the weights of a model do not fit into the memory of the device."""
    count = _weights(location)
    available = available_memory(torch.device(device))
    if count is not None and available is not None and count * BYTES > SHARE * available:
        raise UserError(
            f"{location}: {count / 1e9:.1f} billion weights need {_gigabytes(count * BYTES)} in single precision, and "
            f"{_gigabytes(available)} are free; use a smaller model or a larger machine"
        )


def available_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None


def weights_of_file(path: Path) -> int:
    """The number of weights in a safetensors file, from its header."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > LARGEST_HEADER:
            raise UserError(f"{path}: not a safetensors file; is the download complete?")
        header = file.read(length)
    try:
        return _weights_of_shapes(tensor["shape"] for name, tensor in json.loads(header).items() if name[:2] != "__")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"{path}: not a safetensors file; is the download complete?") from None


def _weights(location: str) -> int | None:
    folder = Path(location.removeprefix(HUB))
    if folder.is_dir():
        return sum(weights_of_file(path) for path in folder.glob("*.safetensors")) or None
    return _weights_on_hub(location.removeprefix(HUB))


def _weights_on_hub(name: str) -> int | None:
    """The number of weights of a model on the Hub; None if it cannot be asked."""
    import huggingface_hub

    try:
        metadata: Any = huggingface_hub.get_safetensors_metadata(name)
    except Exception:  # without a network, or without safetensors: reading the model will say so
        return None
    return sum(metadata.parameter_count.values())


def _weights_of_shapes(shapes: Iterable[list[int]]) -> int:
    return sum(math.prod(shape) for shape in shapes)


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
