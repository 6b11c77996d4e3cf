"""An exported model as a folder that captions images with ONNX Runtime and numpy alone.

    encoder.onnx              pixels (B, 3, S, S) uint8 ↦ features (B, L, D), and statistics for the familiarity
    start.onnx                features ↦ the decoder's state before the first word
    step.onnx                 tokens (R,) and the state ↦ log p of the next word (R, V), attention, the next state
    onnx.json                 this manifest: geometry, decoding, the tensors of the state, a digest of each file
    vocabulary.json           the words
    familiarity.safetensors   how familiar images are, where the model has it

R rows of the step are beams; tensors of the state that no word changes are computed once per image ("constant").
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from saywhy.data.preprocess import Preprocessing
from saywhy.decoding.settings import Decoding
from saywhy.errors import UserError
from saywhy.files import read_json, write_text
from saywhy.model_names import CONFIG
from saywhy.provenance import saywhy_version

FORMAT = 1
MANIFEST = "onnx.json"
ENCODER, START_GRAPH, STEP = "encoder.onnx", "start.onnx", "step.onnx"
GRAPHS = (ENCODER, START_GRAPH, STEP)
PRECISIONS = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class StateTensor:
    """A tensor of the decoder's state: its name, and whether it is computed once per image."""

    name: str
    constant: bool


@dataclass(frozen=True)
class Manifest:
    """What the engine needs to know besides the graphs.

    Attributes:
        name: of the model.
        precision: "fp32", "fp16" or "int8".
        captioner: name of the architecture.
        encoder: name of the network.
        grid: rows and columns of the features.
        preprocessing: how images become pixels.
        decoding: the default decoding settings.
        state: the tensors of the state, in the order of the graphs.
        outputs: the outputs of a step before the state: "log_p", "alpha" and perhaps "beta".
        maps: the maps whose statistics the encoder returns, for the familiarity.
        model: the digest of the weights (`model_digest`); empty for a model that was never saved.
        digests: of each file of the folder.
    """

    name: str
    precision: str
    captioner: str
    encoder: str
    grid: tuple[int, int]
    preprocessing: Preprocessing
    decoding: Mapping[str, Any]
    state: tuple[StateTensor, ...]
    outputs: tuple[str, ...]
    maps: tuple[str, ...] = ()
    model: str = ""
    digests: Mapping[str, str] = field(default_factory=dict)

    def write(self, folder: Path, names: Sequence[str]) -> None:
        """Write the manifest of a folder that holds these files."""
        contents = asdict(self) | {"digests": {name: digest(folder / name) for name in names}}
        about = {"format": FORMAT, "saywhy": saywhy_version()}
        write_text(folder / MANIFEST, json.dumps(about | contents, indent=2) + "\n")

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read a folder's manifest; a `UserError` where a file is missing, damaged or of another model."""
        folder = Path(folder)
        contents = read_json(_manifest_path(folder), "export the model again")
        version = contents.get("format") if isinstance(contents, dict) else None
        if version != FORMAT:
            raise UserError(
                f"{folder}: an ONNX export of format {version}; this is saywhy {saywhy_version()}, which reads format "
                f"{FORMAT}: export the model again with `saywhy export`"
            )
        try:
            manifest = cls._of(contents)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{folder / MANIFEST}: not a manifest of `saywhy export` ({error!r})") from None
        except UserError as error:
            raise UserError(f"{folder / MANIFEST}: {error}") from None
        manifest.check(folder)
        return manifest

    @classmethod
    def _of(cls, contents: Mapping[str, Any]) -> Manifest:
        values = {name: contents[name] for name in cls.__dataclass_fields__}
        rows, columns = values["grid"]
        Decoding.from_config(values["decoding"])
        return cls(
            **values
            | {
                "grid": (int(rows), int(columns)),
                "preprocessing": Preprocessing(**values["preprocessing"]),
                "state": tuple(StateTensor(**tensor) for tensor in values["state"]),
                "outputs": tuple(values["outputs"]),
                "maps": tuple(values["maps"]),
                "digests": dict(values["digests"]),
            }
        )

    def check(self, folder: Path) -> None:
        """Raise a `UserError` where a file of the folder is missing or is not the one that was exported."""
        for name, expected in self.digests.items():
            path = folder / name
            if not path.is_file():
                raise UserError(f"{path} is missing: export the model again with `saywhy export`")
            if digest(path) != expected:
                raise UserError(
                    f"{path}: damaged, or of another model than {MANIFEST} beside it; export the model again with "
                    "`saywhy export`"
                )


def _manifest_path(folder: Path) -> Path:
    if not folder.is_dir():
        raise UserError(f"no model at {folder}: give a folder that `saywhy export` wrote")
    if not (folder / MANIFEST).is_file():
        kind = (
            "a model of torch; export it with `saywhy export`" if (folder / CONFIG).is_file() else "not a saywhy model"
        )
        raise UserError(f"{folder} has no {MANIFEST}: it is {kind}")
    return folder / MANIFEST


def digest(path: Path) -> str:
    """A hash of a file's contents."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]
