"""A model as a folder that is enough to caption images on another machine.

    model.safetensors    all parameters and buffers
    config.json          architecture, encoder, preprocessing, decoding, conditioning dropout
    vocabulary.json      the words

Nothing in it is ever unpickled.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from saywhy.captioners.base import Captioner, build
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSettings
from saywhy.data.tokenizer import Vocabulary
from saywhy.encoders.base import build_from_settings
from saywhy.encoders.registry import EncoderSettings
from saywhy.errors import UserError
from saywhy.files import read_json, whole_file, write_text
from saywhy.model_names import CONFIG, VOCABULARY, WEIGHTS
from saywhy.provenance import saywhy_version

FORMAT = 2
Module = TypeVar("Module", bound=nn.Module)
CAPTIONER, LANGUAGE_MODEL, JUDGE = "captioner", "language-model", "judge"  # kinds of model folders


@dataclass(frozen=True)
class SavedModel:
    """The contents of a model folder.

    Attributes:
        name: of the model.
        captioner: with its weights.
        vocabulary: its words.
        preprocessing: how images become the encoder's input.
        decoding: the default decoding settings, as in config.json.
        regions: which regions it attends to; None for the encoder's grid.
        conditioning_dropout: share of the captions that it was trained on without their image; None if unknown.
    """

    name: str
    captioner: Captioner
    vocabulary: Vocabulary
    preprocessing: Preprocessing
    decoding: dict[str, Any] = field(default_factory=dict)
    regions: RegionSettings | None = None
    conditioning_dropout: float | None = None

    def config(self) -> dict[str, Any]:
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
            "conditioning_dropout": self.conditioning_dropout,
        }

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write the folder; `dtype=torch.float16` halves its size."""
        save_weights(self.captioner, Path(folder) / WEIGHTS, dtype)
        self.save_config(folder)

    def save_config(self, folder: str | Path) -> None:
        """Write everything except the weights."""
        self.vocabulary.save(Path(folder) / VOCABULARY)
        write_text(Path(folder) / CONFIG, json.dumps(self.config(), indent=2) + "\n")


def save_weights(module: nn.Module, path: Path, dtype: torch.dtype | None = None) -> None:
    """Write the weights as one complete file; tied tensors are written once."""
    tensors, written = {}, set()
    for name, tensor in module.state_dict().items():
        if tensor.data_ptr() in written and tensor.numel():
            continue
        written.add(tensor.data_ptr())
        convert = dtype is not None and tensor.is_floating_point()
        tensors[name] = tensor.to("cpu", dtype if convert else tensor.dtype).contiguous()
    save_tensors(tensors, path)


def save_tensors(tensors: dict[str, Tensor], path: Path, metadata: dict[str, str] | None = None) -> None:
    """Write one complete safetensors file, or raise a `UserError` that names it."""
    with whole_file(path) as part:
        try:
            save_file(tensors, part, metadata=metadata)
        except SafetensorError as error:  # a full disk; safetensors does not raise an OSError
            raise UserError(f"{path}: cannot be written ({error}); is the disk full?") from None
        except UnicodeEncodeError:
            raise UserError(f"{path}: safetensors writes to UTF-8 names only; choose another folder") from None


def load(folder: str | Path, device: torch.device | str = "cpu") -> SavedModel:
    """Read a model folder; the captioner is in float32 and in evaluation mode."""
    folder = Path(folder)
    config = read_config(folder)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    tensors = read_tensors(folder / WEIGHTS)
    with configuration_errors(folder / CONFIG, "a saywhy model"):
        encoder = build_from_settings(EncoderSettings.from_dict(config["encoder"]))
        architecture, settings = config["captioner"]["name"], config["captioner"]["settings"]
        make = partial(build, architecture, encoder, len(vocabulary), **settings)
        captioner = with_weights(make, tensors, folder / WEIGHTS)
        preprocessing = Preprocessing(**config["preprocessing"])
        name, decoding = str(config["name"]), dict(config["decoding"])
        regions = RegionSettings(**config["regions"]) if config.get("regions") else None  # older files have no entry
        dropout = config.get("conditioning_dropout")  # nor this one
        dropout = None if dropout is None else _share("conditioning_dropout", dropout)
    captioner.styles = len(vocabulary.styles)
    return SavedModel(name, captioner.to(device).eval(), vocabulary, preprocessing, decoding, regions, dropout)


@contextmanager
def configuration_errors(path: Path, what: str) -> Iterator[None]:
    """Within the block, which reads the configuration of `what` at this path, every error becomes one line with it."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UserError(f"{path}: not a configuration of {what} ({error!r})") from None
    except UserError as error:
        raise UserError(str(error) if str(path.parent) in str(error) else f"{path}: {error}") from None


def _share(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise UserError(f"{name} must be a number from 0 to 1, not {value!r:.40}")
    return float(value)


def read_config(folder: Path, kind: str = CAPTIONER) -> dict[str, Any]:
    """The contents of config.json, in the current format; a `UserError` where the model is of another kind."""
    if not folder.is_dir():
        raise UserError(
            f"no model at {folder}: give a folder that `saywhy train` wrote, or a name from `saywhy models`"
        )
    if not (folder / CONFIG).exists():
        raise UserError(f"{folder} has no {CONFIG}: it is not a saywhy model")
    config = read_json(folder / CONFIG)
    if isinstance(config, dict) and "model_type" in config:
        raise UserError(f"{folder} is a model of Hugging Face, not a {kind} of saywhy")
    version, writer = (config.get("format"), config.get("saywhy")) if isinstance(config, dict) else (None, None)
    if type(version) is not int or not 1 <= version <= FORMAT:
        raise UserError(
            f"{folder}: written by saywhy {writer} in format {version}; this is saywhy {saywhy_version()}, which reads "
            f"formats 1 to {FORMAT}: use that version, or train the model again"
        )
    if (actual := config.get("kind", CAPTIONER)) != kind:  # folders of captioners name no kind
        raise UserError(f"{folder} is a {actual}, not a {kind}: give the folder of a {kind}")
    return config if version == FORMAT else _upgrade(config)


FORMAT_1_NAMES = {
    "settings": {"no_picture": "no_image", "picture_dropout": "image_dropout"},
    "decoding": {"attend": "attention", "length": "length_penalty"},
    "tensors": {"no_picture": "no_image", "contrastive.of_picture.weight": "contrastive.of_image.weight"},
}
"""Names that changed since format 1 (saywhy 0.1): captioner settings, decoding settings, tensors."""


def _current_names(section: str, values: Any) -> Any:
    names = FORMAT_1_NAMES[section]
    return {names.get(key, key): value for key, value in values.items()} if isinstance(values, dict) else values


def _upgrade(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration of format 1 in the current format; `load` reports what is malformed."""
    captioner = config.get("captioner")
    if isinstance(captioner, dict) and "settings" in captioner:
        captioner = captioner | {"settings": _current_names("settings", captioner["settings"])}
    return config | {"captioner": captioner, "decoding": _current_names("decoding", config.get("decoding"))}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a model, under their current names; a `UserError` names one that is not finite."""
    try:
        tensors = _current_names("tensors", load_file(path))
    except FileNotFoundError:
        raise UserError(f"{path} is missing: the model folder is incomplete") from None
    except SafetensorError as error:
        raise UserError(f"{path}: not readable as safetensors ({error})") from None
    if "baseline" in tensors:  # NaN in saywhy 0.1 if hard attention was saved before its first batch
        tensors["baseline"] = tensors["baseline"].nan_to_num(0.0)
    for name, tensor in tensors.items():
        if not tensor.isfinite().all():
            raise UserError(f"{path}: {name} contains NaN or infinite values; the model is damaged, train it again")
    return tensors


class _SizeLimit(TorchFunctionMode):
    """While it is active, tensors of more than `limit` elements are refused before they are allocated."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn):
            shape = (kwargs or {}).get("size", args[0] if args and isinstance(args[0], tuple | list) else args)
            if math.prod(shape) > self.limit:
                raise UserError(f"a tensor of shape {tuple(shape)} is far larger than any in {WEIGHTS}")
        return func(*args, **(kwargs or {}))


def with_weights(make: Callable[[], Module], tensors: Mapping[str, Tensor], path: Path) -> Module:
    """The module that `make` builds, with the tensors of the file at this path, which have to fit."""
    largest = max((tensor.numel() for tensor in tensors.values()), default=0)
    with _SizeLimit(4 * largest + 10**6):  # room for buffers that are not saved
        module = make()
    _check_fit(module.state_dict(keep_vars=True), tensors, path)
    module.load_state_dict(tensors, strict=False)  # tied tensors are in the file once
    return module


def _check_fit(expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor], path: Path) -> None:
    """Raise a `UserError` unless the tensors of a file are those that a module expects."""
    tied = {name for name in expected if name not in tensors and _is_tied(name, expected, tensors)}
    misfits = [name for name, tensor in expected.items() if name not in tied and not _fits(tensor, tensors.get(name))]
    misfits += sorted(set(tensors) - set(expected))
    if misfits:
        raise UserError(f"{path} does not fit {CONFIG} beside it: {_mismatch(misfits[0], expected, tensors)}")


def _fits(expected: Tensor, tensor: Tensor | None) -> bool:
    if tensor is None:
        return False
    return tensor.shape == expected.shape and tensor.is_floating_point() == expected.is_floating_point()


def _mismatch(name: str, expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """What is wrong with the tensor of this name."""
    if name not in expected:
        return f"the model has no tensor {name}"
    if name not in tensors:
        return f"{name} is missing"
    tensor, needed = tensors[name], expected[name]
    if tensor.shape != needed.shape:
        return f"{name} has shape {tuple(tensor.shape)} and should have {tuple(needed.shape)}"
    return f"{name} has type {tensor.dtype} and should have {needed.dtype}"


def _is_tied(name: str, expected: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> bool:
    return any(other in tensors and expected[other] is expected[name] for other in expected)
