"""A trained judge as a folder, like that of a captioner.

    model.safetensors    all parameters and buffers
    config.json          kind ("judge"), network, encoder and preprocessing
    vocabulary.json      the words of its text transformer

`load` refuses the folder of a captioner, and `saywhy.load` that of a judge.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from saywhy.captioners.model_folder import (
    CONFIG,
    FORMAT,
    JUDGE,
    VOCABULARY,
    WEIGHTS,
    configuration_errors,
    read_config,
    read_tensors,
    save_weights,
    with_weights,
)
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import Vocabulary
from saywhy.encoders.base import build_from_settings
from saywhy.encoders.registry import EncoderSettings
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.judges.dual_encoder import DualEncoder, DualEncoderSettings
from saywhy.provenance import saywhy_version


@dataclass(frozen=True)
class SavedJudge:
    """The contents of a judge's folder."""

    name: str
    model: DualEncoder
    vocabulary: Vocabulary
    preprocessing: Preprocessing

    @property
    def encoder(self) -> str:
        """The name of the image network, such as "resnet50-keras"."""
        return self.model.encoder.settings.name

    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        return {
            "format": FORMAT,
            "kind": JUDGE,
            "saywhy": saywhy_version(),
            "name": self.name,
            "dual_encoder": asdict(self.model.settings),
            "encoder": asdict(self.model.encoder.settings),
            "preprocessing": asdict(self.preprocessing),
        }

    def save(self, folder: str | Path) -> None:
        """Write the folder."""
        save_weights(self.model, Path(folder) / WEIGHTS)
        self.save_config(folder)

    def save_config(self, folder: str | Path) -> None:
        """Write everything except the weights."""
        self.vocabulary.save(Path(folder) / VOCABULARY)
        write_text(Path(folder) / CONFIG, json.dumps(self.config(), indent=2) + "\n")


def read_judge_config(folder: str | Path) -> dict[str, Any]:
    """The contents of a judge's config.json; a `UserError` where the folder is no judge."""
    folder = Path(folder)
    if not folder.is_dir():
        raise UserError(f"no judge at {folder}: give a folder that `saywhy train-judge` wrote")
    return read_config(folder, kind=JUDGE)


def load(folder: str | Path, device: torch.device | str = "cpu") -> SavedJudge:
    """Read a judge's folder; the network is in float32 and in evaluation mode."""
    folder = Path(folder)
    config = read_judge_config(folder)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    tensors = read_tensors(folder / WEIGHTS)
    with configuration_errors(folder / CONFIG, "a judge"):
        encoder = build_from_settings(EncoderSettings.from_dict(config["encoder"]))
        settings = DualEncoderSettings(**config["dual_encoder"])
        model = with_weights(partial(DualEncoder, encoder, len(vocabulary), settings), tensors, folder / WEIGHTS)
        preprocessing = Preprocessing(**config["preprocessing"])
    return SavedJudge(str(config.get("name", "")), model.to(device).eval(), vocabulary, preprocessing)
