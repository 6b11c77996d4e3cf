"""A trained language model as a folder, like that of a captioner.

    model.safetensors    all parameters
    config.json          kind ("language-model"), architecture and settings
    vocabulary.json      the words

`load` refuses the folder of a captioner, and `saywhy.load` that of a language model.
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
    LANGUAGE_MODEL,
    VOCABULARY,
    WEIGHTS,
    configuration_errors,
    read_config,
    read_tensors,
    save_weights,
    with_weights,
)
from saywhy.data.tokenizer import Vocabulary
from saywhy.files import write_text
from saywhy.language_models.base import LanguageModel, build
from saywhy.provenance import saywhy_version


@dataclass(frozen=True)
class SavedLanguageModel:
    """The contents of a language model's folder."""

    name: str
    model: LanguageModel
    vocabulary: Vocabulary

    def config(self) -> dict[str, Any]:
        """The contents of config.json."""
        return {
            "format": FORMAT,
            "kind": LANGUAGE_MODEL,
            "saywhy": saywhy_version(),
            "name": self.name,
            "language_model": {"name": self.model.name, "settings": asdict(self.model.settings)},
        }

    def save(self, folder: str | Path) -> None:
        """Write the folder."""
        save_weights(self.model, Path(folder) / WEIGHTS)
        self.vocabulary.save(Path(folder) / VOCABULARY)
        write_text(Path(folder) / CONFIG, json.dumps(self.config(), indent=2) + "\n")


def load(folder: str | Path, device: torch.device | str = "cpu") -> SavedLanguageModel:
    """Read a language model's folder; the model is in float32 and in evaluation mode."""
    folder = Path(folder)
    config = read_config(folder, kind=LANGUAGE_MODEL)
    vocabulary = Vocabulary.load(folder / VOCABULARY)
    tensors = read_tensors(folder / WEIGHTS)
    with configuration_errors(folder / CONFIG, "a language model"):
        name, settings = config["language_model"]["name"], config["language_model"]["settings"]
        model = with_weights(partial(build, name, len(vocabulary), **settings), tensors, folder / WEIGHTS)
    return SavedLanguageModel(str(config.get("name", "")), model.to(device).eval(), vocabulary)
