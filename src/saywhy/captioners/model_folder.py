"""A captioner as a folder: enough to caption on a machine that never saw the data.

    model.safetensors    every parameter and buffer
    config.json          architecture, encoder, preprocessing, decoding
    vocabulary.json      the words

Nothing in it is ever unpickled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from saywhy.captioners.base import Captioner, build
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSettings
from saywhy.data.vocabulary import Vocabulary
from saywhy.encoders.building import build_without_weights
from saywhy.encoders.settings import EncoderSettings
from saywhy.errors import UserError
from saywhy.files import whole_file, write_text
from saywhy.provenance import saywhy_version

FORMAT = 1
WEIGHTS, CONFIG, VOCABULARY = "model.safetensors", "config.json", "vocabulary.json"


@dataclass(frozen=True)
class SavedModel:
    """What a model folder holds."""

    name: str
    captioner: Captioner
    vocabulary: Vocabulary
    preprocessing: Preprocessing
    decoding: dict[str, Any] = field(default_factory=dict)
    regions: RegionSettings | None = None
    """What it looks at in place of a grid, where it does."""

    def describe(self) -> dict[str, Any]:
        """The contents of config.json."""
        return {
            "format": FORMAT,
            "saywhy": saywhy_version(),
            "name": self.name,
            "captioner": {"name": self.captioner.name, "settings": asdict(self.captioner.settings)},
            "encoder": asdict(self.captioner.encoder.settings),
            "preprocessing": asdict(self.preprocessing),
            "decoding": self.decoding,
            "regions": asdict(self.regions) if self.regions else None,
        }

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write the folder; `dtype=torch.float16` halves it."""
        save_weights(self.captioner, Path(folder) / WEIGHTS, dtype)
        self.describe_in(folder)

    def describe_in(self, folder: str | Path) -> None:
        """Write all but the weights."""
        self.vocabulary.save(Path(folder) / VOCABULARY)
        write_text(Path(folder) / CONFIG, json.dumps(self.describe(), indent=2) + "\n")


def save_weights(captioner: Captioner, path: Path, dtype: torch.dtype | None = None) -> None:
    """Write the weights whole; tied tensors are written once."""
    tensors, seen = {}, set()
    for name, tensor in captioner.state_dict().items():
        if tensor.data_ptr() in seen and tensor.numel():
            continue
        seen.add(tensor.data_ptr())
        narrow = dtype is not None and tensor.is_floating_point()
        tensors[name] = tensor.to("cpu", dtype if narrow else tensor.dtype).contiguous()
    with whole_file(path) as part:
        save_file(tensors, part)


def load(folder: str | Path, device: torch.device | str = "cpu") -> SavedModel:
    """Read a folder that `save` wrote, in float32 and in evaluation mode."""
    folder = Path(folder)
    config = read_config(folder)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    try:
        captioner = _rebuild(config, len(vocabulary))
        preprocessing = Preprocessing(**config["preprocessing"])
        name, decoding = config["name"], config["decoding"]
        regions = RegionSettings(**config["regions"]) if config.get("regions") else None  # older files have no entry
    except (KeyError, TypeError) as error:
        raise UserError(f"{folder / CONFIG}: not a configuration saywhy {saywhy_version()} wrote ({error})") from None
    _fill(captioner, folder / WEIGHTS)
    return SavedModel(name, captioner.to(device).eval(), vocabulary, preprocessing, decoding, regions)


def read_config(folder: Path) -> dict[str, Any]:
    """The contents of config.json, if this version can read it."""
    if not folder.is_dir():
        raise UserError(
            f"no model at {folder}: give a folder that `saywhy train` wrote, or a name from `saywhy models`"
        )
    try:
        config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder} holds no {CONFIG}: it is not a saywhy model") from None
    except ValueError as error:
        raise UserError(f"{folder / CONFIG}: not JSON ({error})") from None
    found = config.get("format") if isinstance(config, dict) else None
    if found != FORMAT:
        wrote = config.get("saywhy", "another version") if isinstance(config, dict) else "something else"
        raise UserError(
            f"{folder}: written by saywhy {wrote} in format {found}; this is saywhy {saywhy_version()}, which reads "
            f"format {FORMAT}: use that version, or train the model again"
        )
    return config


def _rebuild(config: dict[str, Any], words: int) -> Captioner:
    encoder = build_without_weights(EncoderSettings.from_dict(config["encoder"]))
    architecture = config["captioner"]
    return build(architecture["name"], encoder, words, **architecture["settings"])


def _fill(captioner: Captioner, path: Path) -> None:
    try:
        tensors = load_file(path)
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the model's folder is not whole") from None
    except SafetensorError as error:
        raise UserError(f"{path}: not readable as safetensors ({error})") from None
    own = captioner.state_dict()
    tied = {name for name in own if name not in tensors and _is_tied(name, own, tensors)}
    wrong = [name for name in own if name not in tied and _shape(tensors, name) != own[name].shape]
    if wrong or set(tensors) - set(own):
        names = ", ".join((wrong or sorted(set(tensors) - set(own)))[:3])
        raise UserError(f"{path} does not fit {CONFIG} beside it (first of all: {names})")
    captioner.load_state_dict(tensors, strict=False)


def _is_tied(name: str, own: dict[str, torch.Tensor], tensors: dict[str, torch.Tensor]) -> bool:
    return any(other in tensors and own[other].data_ptr() == own[name].data_ptr() for other in own)


def _shape(tensors: dict[str, torch.Tensor], name: str) -> torch.Size | None:
    return tensors[name].shape if name in tensors else None
