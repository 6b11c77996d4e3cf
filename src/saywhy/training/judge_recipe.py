"""The recipe of a judge: a TOML file, read like that of a captioner, with the table [judge] for its network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhy.data.augment import Augmentation
from saywhy.data.mixture import DataSettings, check_settings
from saywhy.data.preprocess import Preprocessing
from saywhy.encoders import precomputed
from saywhy.errors import UserError
from saywhy.judges.dual_encoder import DualEncoderSettings
from saywhy.training.optimisers import optimisers, schedules
from saywhy.training.recipe import EncoderRecipe, VocabularyRecipe, check_ranges, fill_dataclass, read_table


@dataclass(frozen=True)
class JudgeTraining:
    """How a judge is trained.

    Attributes:
        epochs: passes over the training images, with one of its captions for each image.
        batch: images per batch. All others of the batch are wrong answers, so that larger batches train better.
        max_words: captions with more words are left out.
        optimiser: "adam" or "rmsprop".
        lr: learning rate of the text transformer and the pooling; that of the image network is `encoder.lr`.
        warmup: steps over which learning rates rise from zero.
        schedule: learning rates after the warm-up: "constant", "linear" or "cosine".
        weight_decay: decoupled weight decay.
        clip: largest norm of the gradient, 0 for no clipping.
        average: decay of the moving average of the weights, 0 for none.
        dev_images: most images of each dev split that are ranked after an epoch.
        patience: epochs without a better recall on dev before training stops, 0 for no early stopping.
        precision: "auto" (bfloat16 where the device supports it), "bf16" or "float32".
    """

    epochs: int = 10
    batch: int = 512
    max_words: int = 30
    optimiser: str = "adam"
    lr: float = 5e-4
    warmup: int = 200
    schedule: str = "cosine"
    weight_decay: float = 0.05
    clip: float = 1.0
    average: float = 0.995
    dev_images: int = 1000
    patience: int = 0
    precision: str = "auto"

    def __post_init__(self) -> None:
        ranges: dict[str, tuple[float, float]] = dict.fromkeys(("epochs", "max_words"), (1, math.inf))
        ranges |= dict.fromkeys(("batch", "dev_images"), (2, math.inf))
        ranges |= dict.fromkeys(("warmup", "clip", "patience"), (0, math.inf))
        ranges |= {"lr": (0, 10), "weight_decay": (0, 10), "average": (0, 0.99999)}
        check_ranges("training", self, ranges)
        _ = optimisers[self.optimiser], schedules[self.schedule]  # a UserError where a name is unknown


@dataclass(frozen=True)
class JudgeRecipe:
    """A complete recipe. Every table and key can be left out and then has its default."""

    name: str = "judge"
    seed: int = 0
    data: tuple[DataSettings, ...] = ()
    vocabulary: VocabularyRecipe = VocabularyRecipe()
    preprocessing: Preprocessing = Preprocessing()
    augmentation: Augmentation | None = None
    encoder: EncoderRecipe = EncoderRecipe(name="resnet50-keras", finetune_from="all")
    judge: DualEncoderSettings = DualEncoderSettings()
    training: JudgeTraining = JudgeTraining()

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed = {self.seed} is out of range")
        check_settings(self.data)
        if self.encoder.name.startswith(precomputed.PREFIX.rstrip(":")):
            raise UserError("a judge sees images: set encoder.name to a network, not to precomputed features")


def read_judge_recipe(path: str | Path, **changes: Any) -> JudgeRecipe:
    """Read a recipe; `changes` such as `seed=1` or `encoder={"weights": "none"}` replace values of the file."""
    table = read_table(path, changes)
    try:
        return fill_dataclass(JudgeRecipe, table, "")
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
