"""The recipe of a language model: a TOML file with the tables [language_model] and [training]."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from saywhy.errors import UserError
from saywhy.language_models import language_models
from saywhy.training.optimisers import optimisers, schedules
from saywhy.training.recipe import check_ranges, fill_dataclass, read_table


@dataclass(frozen=True)
class ModelRecipe:
    """The architecture ("lstm" or "transformer") and its settings."""

    name: str = "lstm"
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class LanguageModelTraining:
    """How a language model is trained.

    Attributes:
        epochs: passes over the text.
        batch: captions per batch; those of one batch have nearly the same length.
        max_words: captions with more words are left out.
        optimiser: "adam" or "rmsprop".
        lr: learning rate.
        warmup: steps over which the learning rate rises from zero.
        schedule: learning rate after the warm-up: "constant", "linear" or "cosine".
        weight_decay: decoupled weight decay.
        clip: largest norm of the gradient, 0 for no clipping.
        average: decay of the moving average of the weights, 0 for none.
        patience: epochs without a better perplexity on dev before training stops, 0 for no early stopping.
        precision: "auto" (bfloat16 where the device supports it), "bf16" or "float32".
    """

    epochs: int = 20
    batch: int = 512
    max_words: int = 40
    optimiser: str = "adam"
    lr: float = 1e-3
    warmup: int = 200
    schedule: str = "cosine"
    weight_decay: float = 0.01
    clip: float = 1.0
    average: float = 0.999
    patience: int = 3
    precision: str = "auto"

    def __post_init__(self) -> None:
        ranges: dict[str, tuple[float, float]] = dict.fromkeys(("epochs", "batch", "max_words"), (1, math.inf))
        ranges |= dict.fromkeys(("warmup", "clip", "patience"), (0, math.inf))
        ranges |= {"lr": (0, 10), "weight_decay": (0, 10), "average": (0, 0.99999)}
        check_ranges("training", self, ranges)
        _ = optimisers[self.optimiser], schedules[self.schedule]  # a UserError where a name is unknown


@dataclass(frozen=True)
class LanguageModelRecipe:
    """A complete recipe. Every table and key can be left out and then has its default."""

    name: str = "language-model"
    seed: int = 0
    language_model: ModelRecipe = ModelRecipe()
    training: LanguageModelTraining = LanguageModelTraining()

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed = {self.seed} is out of range")
        architecture = language_models[self.language_model.name]
        fill_dataclass(architecture.Settings, self.language_model.settings, "language_model.")


def read_language_model_recipe(path: str | Path, **changes: Any) -> LanguageModelRecipe:
    """Read a recipe; `changes` such as `seed=1` or `training={"epochs": 2}` replace values of the file."""
    table = read_table(path, changes)
    try:
        if isinstance(table.get("language_model"), dict):
            settings = dict(table["language_model"])  # the settings are beside the name
            table["language_model"] = {"name": settings.pop("name", ModelRecipe.name), "settings": settings}
        return fill_dataclass(LanguageModelRecipe, table, "")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
