"""A recipe: one TOML file that reproduces one experiment. Its tables are the dataclasses of this module."""

from __future__ import annotations

import dataclasses
import math
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from saywhy.captioners import captioners
from saywhy.data.augment import Augmentation
from saywhy.data.mixture import DataSettings, check_settings
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSettings
from saywhy.data.training_batches import samplers
from saywhy.decoding import Decoding
from saywhy.errors import UserError, did_you_mean
from saywhy.files import read_toml
from saywhy.training.optimisers import optimisers, schedules
from saywhy.training.relevance_weighting import check_architecture, relevance_weights
from saywhy.training.rewards import rewards
from saywhy.training.self_critical import BASELINES

T = TypeVar("T")

SELECTION_METRICS = ("cider", "bleu4")


def check_ranges(table: str, settings: Any, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raise a `UserError` that names the first setting out of its range; None is always allowed."""
    for name, (least, most) in ranges.items():
        value = getattr(settings, name)
        if value is not None and not (least <= value <= most and math.isfinite(value)):
            raise UserError(f"{table}.{name} = {value} is out of range")


@dataclass(frozen=True)
class VocabularyRecipe:
    """The vocabulary: words that occur `min_count` times in the training captions, or the `size` most frequent.

    With neither, words that occur five times.
    """

    min_count: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        check_ranges("vocabulary", self, {"min_count": (1, math.inf), "size": (1, math.inf)})


@dataclass(frozen=True)
class EncoderRecipe:
    """The encoder, its weights, and which of its blocks are trained.

    Attributes:
        name: a registered encoder, "timm:NAME", or "features" for precomputed region features.
        weights: "imagenet", "none" (random), a file, or a model folder, whose encoder is used.
        finetune_from: the first block that is trained, "all", or "" for a frozen encoder.
        lr: learning rate of the trained blocks.
        output_stride: a smaller stride for a finer grid, where the encoder supports it.
        train_batch_norm: update batch-norm statistics while fine-tuning.
    """

    name: str = "efficientnet-lite2"
    weights: str = "imagenet"
    finetune_from: str = ""
    lr: float = 1e-4
    output_stride: int | None = None
    train_batch_norm: bool = False

    def __post_init__(self) -> None:
        check_ranges("encoder", self, {"lr": (0, 10)})


class PixelRecipe(Protocol):
    """The tables of a recipe that say how an image becomes pixels."""

    @property
    def preprocessing(self) -> Preprocessing:
        """The geometry of the encoder's input."""

    @property
    def augmentation(self) -> Augmentation | None:
        """Random changes of training images; None for none."""


@dataclass(frozen=True)
class CaptionerRecipe:
    """The architecture and its settings."""

    name: str = "soft-attention"
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingRecipe:
    """How the captioner is trained.

    Attributes:
        epochs: passes over the training images. The number may grow when a run is resumed; the learning-rate
            schedule is then recomputed for the new number of steps.
        batches: "images" or "equal-length".
        batch: images per batch, or captions of one length, over all processes.
        max_words: captions with more words are not trained on; None for no limit.
        accumulate: batches whose gradients are added for one optimiser step.
        optimiser: "adam" or "rmsprop".
        lr: learning rate of the decoder.
        warmup: steps over which learning rates rise from zero.
        schedule: learning rates after the warm-up: "constant", "linear" or "cosine".
        weight_decay: decoupled weight decay.
        clip: largest norm of the gradient, 0 for no clipping.
        label_smoothing: share of each target that is spread over the vocabulary.
        doubly_stochastic: λ of the doubly stochastic attention penalty.
        distil: weight of the teachers' word distributions as targets; teachers are named when training starts.
        conditioning_dropout: share of the captions that are trained without their image.
        average: decay of the moving average of the weights, 0 for none.
        select: metric on freely decoded dev captions that selects the best epoch: "cider" or "bleu4".
        evaluate_every: epochs between evaluations on dev; the last epoch is always evaluated.
        patience: epochs without a better score before training stops, 0 for no early stopping.
        checkpoint_every: steps between checkpoints within an epoch, 0 for one checkpoint per epoch.
        precision: "auto" (bfloat16 where the device supports it), "bf16" or "float32".
    """

    epochs: int = 15
    batches: str = "images"
    batch: int = 64
    max_words: int | None = None
    accumulate: int = 1
    optimiser: str = "adam"
    lr: float = 5e-4
    warmup: int = 100
    schedule: str = "cosine"
    weight_decay: float = 0.0
    clip: float = 5.0
    label_smoothing: float = 0.0
    doubly_stochastic: float = 1.0
    distil: float = 0.0
    conditioning_dropout: float = 0.0
    average: float = 0.0
    select: str = "cider"
    evaluate_every: int = 1
    patience: int = 0
    checkpoint_every: int = 0
    precision: str = "auto"

    def __post_init__(self) -> None:
        positive, share = (1, math.inf), (0, 1)
        ranges = dict.fromkeys(("epochs", "batch", "max_words", "accumulate", "evaluate_every"), positive)
        ranges |= dict.fromkeys(("warmup", "clip", "doubly_stochastic", "patience", "checkpoint_every"), (0, math.inf))
        ranges |= {"lr": (0, 10), "weight_decay": (0, 10), "label_smoothing": (0, 0.999), "average": (0, 0.99999)}
        ranges |= {"distil": share, "conditioning_dropout": share}
        check_ranges("training", self, ranges)


@dataclass(frozen=True)
class RewardRecipe:
    """Self-critical training; `saywhy.training.self_critical` has the equations.

    Attributes:
        metric: what rewards a sampled caption: "cider".
        samples: captions that are drawn for each image.
        baseline: "others", the mean reward of the image's other samples, or "greedy", that of its greedy caption.
        weight: of the reward's loss; 1 − weight is that of cross-entropy.
        temperature: of sampling.
        hallucination: subtracted from the reward, on CIDEr's scale of 0 to 10, for every object of COCO's 80 that a
            sample names and no caption of its image does.
    """

    metric: str = "cider"
    samples: int = 5
    baseline: str = "others"
    weight: float = 1.0
    temperature: float = 1.0
    hallucination: float = 0.0

    def __post_init__(self) -> None:
        _ = rewards[self.metric]  # a UserError where the name is unknown
        if self.baseline not in BASELINES:
            raise UserError(f"unknown reward.baseline {self.baseline!r}: {did_you_mean(self.baseline, BASELINES)}")
        ranges = {"samples": (1, 1000), "weight": (0, 1), "temperature": (0.01, 100), "hallucination": (0, 10)}
        check_ranges("reward", self, ranges)
        if self.baseline == "others" and self.samples < 2:
            raise UserError('reward.baseline = "others" needs reward.samples of at least 2; or use "greedy"')


@dataclass(frozen=True)
class RelevanceRecipe:
    """LRP-inference fine-tuning; `saywhy.training.relevance_weighting` has the equations.

    With a table [reward], captions are drawn from p̂.

    Attributes:
        weights: where ω comes from: "lrp", or a control: "random", "sharpened", "gradient-input", "gradient",
            "attention".
        cross_entropy: λ of λ·CE(p) + (1 − λ)·CE(p̂).
    """

    weights: str = "lrp"
    cross_entropy: float = 0.5

    def __post_init__(self) -> None:
        _ = relevance_weights[self.weights]  # a UserError where the name is unknown
        check_ranges("relevance", self, {"cross_entropy": (0, 1)})


@dataclass(frozen=True)
class Recipe:
    """A complete recipe. Every table and key can be left out and then has its default."""

    name: str = "captioner"
    seed: int = 0
    data: tuple[DataSettings, ...] = ()
    vocabulary: VocabularyRecipe = VocabularyRecipe()
    preprocessing: Preprocessing = Preprocessing()
    augmentation: Augmentation | None = None
    regions: RegionSettings | None = None
    encoder: EncoderRecipe = EncoderRecipe()
    captioner: CaptionerRecipe = CaptionerRecipe()
    training: TrainingRecipe = TrainingRecipe()
    reward: RewardRecipe | None = None
    relevance: RelevanceRecipe | None = None
    decoding: Decoding = Decoding()

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed = {self.seed} is out of range")
        check_settings(self.data)
        architecture, metric = captioners[self.captioner.name], self.training.select
        for registry, name in (
            (samplers, self.training.batches),
            (optimisers, self.training.optimiser),
            (schedules, self.training.schedule),
        ):
            _ = registry[name]  # a UserError where the name is unknown
        if metric not in SELECTION_METRICS:
            raise UserError(f"unknown training.select {metric!r}: {did_you_mean(metric, SELECTION_METRICS)}")
        settings = fill_dataclass(architecture.Settings, self.captioner.settings, "captioner.")
        if settings.no_image == "learned" and not self.training.conditioning_dropout:
            raise UserError('captioner.no_image = "learned" needs training.conditioning_dropout above 0')
        architecture.check_attention_mode(self.decoding.attention)
        if self.decoding.lm:
            raise UserError("decoding.lm: a model folder holds no language model: give --lm to saywhy caption instead")
        if self.decoding.is_guided and not self.training.conditioning_dropout:
            raise UserError("decoding.guidance needs training.conditioning_dropout above 0")
        if self.relevance:
            check_architecture(architecture)
        self._check_regions()
        if self.reward and self.training.batches != "images":
            raise UserError('[reward] needs all captions of an image in its batch: set training.batches = "images"')
        if self.reward and self.training.distil:
            raise UserError("[reward] and training.distil exclude each other: remove one of them")

    def _check_regions(self) -> None:
        precomputed = self.regions is not None and self.regions.kind == "features"
        if precomputed != (self.encoder.name == "features"):
            raise UserError('regions.kind = "features" and encoder.name = "features" go together: give both or neither')
        if precomputed and self.augmentation:
            raise UserError('regions.kind = "features" has no pixels to augment: remove the table [augmentation]')


def read_recipe(path: str | Path, **changes: Any) -> Recipe:
    """Read a recipe; `changes` such as `seed=1` or `encoder={"weights": "none"}` replace values of the file."""
    table = read_table(path, changes)
    try:
        return from_table(table)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def read_table(path: str | Path, changes: dict[str, Any]) -> dict[str, Any]:
    """The contents of a recipe's file, with changed values."""
    if not os.path.exists(path):
        raise UserError(f"{path}: no such recipe")
    return _merge(read_toml(path), changes)


def from_table(table: dict[str, Any]) -> Recipe:
    """A recipe from nested dictionaries, as TOML and JSON files hold them."""
    table = dict(table)
    if isinstance(table.get("captioner"), dict) and "settings" not in table["captioner"]:
        settings = dict(table["captioner"])  # in a TOML file the settings are beside the name
        table["captioner"] = {"name": settings.pop("name", CaptionerRecipe.name), "settings": settings}
    return fill_dataclass(Recipe, table, "")


def _merge(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for key, value in changes.items():
        inner = merged.get(key, {})
        if not isinstance(value, dict):
            merged[key] = value
        elif isinstance(inner, dict):  # a value that should be a table is refused later, by name
            merged[key] = _merge(inner, value)
    return merged


def fill_dataclass(cls: type[T], table: dict[str, Any], prefix: str) -> T:
    """Build a dataclass from a table; a `UserError` names an unknown key or a value of the wrong type."""
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise UserError(f"unknown key {prefix + key!r}: {did_you_mean(key, hints)}")
        values[key] = _convert(hints[key], value, prefix + key)
    return cls(**values)


def _convert(hint: Any, value: Any, key: str) -> Any:
    """Check a value against its type hint: integers become floats, lists tuples, tables dataclasses."""
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(option for option in typing.get_args(hint) if option is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UserError(f"{key!r} must be a table")
        return fill_dataclass(typing.cast(type, hint), value, f"{key}.")
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        item_types = typing.get_args(hint)
        if item_types[-1:] == (Ellipsis,):
            return tuple(_convert(item_types[0], item, key) for item in value)
        if len(value) != len(item_types):
            raise UserError(f"{key!r} must be {len(item_types)} values, not {len(value)}")
        return tuple(_convert(item_type, item, key) for item_type, item in zip(item_types, value, strict=True))
    if hint is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**1000:
        return float(value)
    plain_type = typing.get_origin(hint) or hint
    if not isinstance(value, plain_type) or (plain_type is int and isinstance(value, bool)):
        raise UserError(f"{key!r} must be {plain_type.__name__}, not {value!r}")
    return value
