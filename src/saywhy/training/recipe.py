"""A recipe: one TOML file that reproduces one experiment."""

from __future__ import annotations

import dataclasses
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from saywhy.captioners import captioners
from saywhy.data.augment import Augmentation
from saywhy.data.batches import samplers
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSettings
from saywhy.decoding import Decoding
from saywhy.errors import UserError, closest
from saywhy.training.optimisers import optimisers, schedules

T = TypeVar("T")


def refuse_out_of_range(table: str, settings: Any, bounds: Mapping[str, tuple[float, float]]) -> None:
    """Raise a `UserError` that names the first setting outside its bounds; None is always within."""
    for name, (least, most) in bounds.items():
        value = getattr(settings, name)
        if value is not None and not (least <= value <= most and math.isfinite(value)):
            raise UserError(f"{table}.{name} = {value} is out of range")


SELECTIONS = ("cider", "bleu4")


@dataclass(frozen=True)
class VocabularyRecipe:
    """Words that occur `min_count` times in the training captions, or the `size` most frequent.

    With neither, words that occur five times.
    """

    min_count: int | None = None
    size: int | None = None

    def __post_init__(self) -> None:
        refuse_out_of_range("vocabulary", self, {"min_count": (1, math.inf), "size": (1, math.inf)})


@dataclass(frozen=True)
class EncoderRecipe:
    """Which encoder, with which weights, and what of it is trained.

    Attributes:
        name: a registered encoder, "timm:NAME", or "features" where regions come with their vectors.
        weights: "imagenet", "none", or a file.
        finetune_from: the first block that is trained, "all", or "" for none.
        lr: the trained blocks' learning rate.
        output_stride: for a finer grid, where the encoder can.
    """

    name: str = "efficientnet-lite2"
    weights: str = "imagenet"
    finetune_from: str = ""
    lr: float = 1e-4
    output_stride: int | None = None
    train_batch_norm: bool = False

    def __post_init__(self) -> None:
        refuse_out_of_range("encoder", self, {"lr": (0, 10)})


@dataclass(frozen=True)
class CaptionerRecipe:
    """Which architecture, and its settings."""

    name: str = "soft-attention"
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingRecipe:
    """How it is trained.

    Attributes:
        epochs: how often every training caption is seen.
        batches: "images" or "equal-length".
        batch: images, or captions of one length, in a batch, all processes together.
        accumulate: batches added up before each step.
        optimiser: "adam" or "rmsprop".
        lr: the decoder's learning rate.
        warmup: steps over which rates rise from zero.
        schedule: how rates fall afterwards: "constant", "linear" or "cosine".
        weight_decay: pull towards zero.
        clip: largest norm of a gradient, 0 for any.
        label_smoothing: share of each target spread over all words.
        doubly_stochastic: λ of the attention penalty.
        distil: weight of the teachers' word distributions as targets; the teachers are given when training starts.
        drop_image: share of the captions that are taught without their image (conditioning dropout).
        average: memory of the running average of the weights, 0 for none.
        select: what picks the best epoch on freely decoded dev captions: "cider" or "bleu4".
        evaluate_every: epochs from one look at dev to the next; the last epoch is always looked at.
        patience: epochs without a better score before training ends, 0 for never.
        checkpoint_every: steps between checkpoints within an epoch, 0 for one an epoch.
        precision: "auto" (bfloat16 where the machine has it), "bf16" or "float32".
    """

    epochs: int = 15
    batches: str = "images"
    batch: int = 64
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
    drop_image: float = 0.0
    average: float = 0.0
    select: str = "cider"
    evaluate_every: int = 1
    patience: int = 0
    checkpoint_every: int = 0
    precision: str = "auto"

    def __post_init__(self) -> None:
        whole, share = (1, math.inf), (0, 1)
        bounds = {
            "epochs": whole,
            "batch": whole,
            "accumulate": whole,
            "evaluate_every": whole,
            "lr": (0, 10),
            "warmup": (0, math.inf),
        }
        bounds |= dict.fromkeys(("clip", "doubly_stochastic", "patience", "checkpoint_every"), (0, math.inf))
        bounds |= {"weight_decay": (0, 10), "label_smoothing": (0, 0.999), "average": (0, 0.99999)}
        bounds |= {"distil": share, "drop_image": share}
        refuse_out_of_range("training", self, bounds)


@dataclass(frozen=True)
class Recipe:
    """All of it. Every table may be left out; what is left out has its default."""

    name: str = "captioner"
    seed: int = 0
    vocabulary: VocabularyRecipe = VocabularyRecipe()
    preprocessing: Preprocessing = Preprocessing()
    augmentation: Augmentation | None = None
    regions: RegionSettings | None = None
    encoder: EncoderRecipe = EncoderRecipe()
    captioner: CaptionerRecipe = CaptionerRecipe()
    training: TrainingRecipe = TrainingRecipe()
    decoding: Decoding = Decoding()

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**32:
            raise UserError(f"seed = {self.seed} is out of range")
        for registry, name in (
            (samplers, self.training.batches),
            (optimisers, self.training.optimiser),
            (schedules, self.training.schedule),
            (captioners, self.captioner.name),
        ):
            _ = registry[name]
        if self.training.select not in SELECTIONS:
            raise UserError(f"unknown selection {self.training.select!r}: {closest(self.training.select, SELECTIONS)}")
        settings = _build(captioners[self.captioner.name].Settings, self.captioner.settings, "captioner.")
        if settings.no_image == "learned" and not self.training.drop_image:
            raise UserError('captioner.no_image = "learned" is learned by training.drop_image above 0')
        captioners[self.captioner.name].check_attention_mode(self.decoding.attend)
        self._refuse_odd_regions()

    def _refuse_odd_regions(self) -> None:
        given = self.regions is not None and self.regions.kind == "features"
        if given != (self.encoder.name == "features"):
            raise UserError('regions.kind = "features" and encoder.name = "features" go together: give both or neither')
        if given and self.augmentation:
            raise UserError('regions.kind = "features" leaves no pixels to vary: take the table [augmentation] out')


def read_recipe(path: str | Path, **changes: Any) -> Recipe:
    """Read a recipe; `changes` such as `seed=1` or `encoder={"weights": "none"}` go over what it says."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such recipe") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not TOML ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        return from_table(_merged(table, changes))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def from_table(table: dict[str, Any]) -> Recipe:
    """A recipe from nested dictionaries, as TOML and JSON give them."""
    table = dict(table)
    if isinstance(table.get("captioner"), dict) and "settings" not in table["captioner"]:
        settings = dict(table["captioner"])  # in a recipe the settings stand beside the name
        table["captioner"] = {"name": settings.pop("name", CaptionerRecipe.name), "settings": settings}
    return _build(Recipe, table, "")


def _merged(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    merged = dict(table)
    for key, value in changes.items():
        under = merged.get(key, {})
        if not isinstance(value, dict):
            merged[key] = value
        elif isinstance(under, dict):  # what should be a table and is none is left, to be refused by name
            merged[key] = _merged(under, value)
    return merged


def _build(cls: type[T], table: dict[str, Any], place: str) -> T:
    """Fill a dataclass, refusing keys it does not have and values of another type."""
    hints = typing.get_type_hints(cls)
    values = {}
    for key, value in table.items():
        if key not in hints:
            raise UserError(f"unknown key {place + key!r}: {closest(key, hints)}")
        values[key] = _fitted(hints[key], value, place + key)
    return cls(**values)


def _fitted(hint: Any, value: Any, place: str) -> Any:
    if isinstance(hint, types.UnionType):
        if value is None:
            return None
        hint = next(each for each in typing.get_args(hint) if each is not types.NoneType)
    if dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise UserError(f"{place!r} must be a table")
        return _build(typing.cast(type, hint), value, f"{place}.")
    if typing.get_origin(hint) is tuple and isinstance(value, list | tuple):
        each = typing.get_args(hint)
        if len(value) != len(each):
            raise UserError(f"{place!r} must be {len(each)} values, not {len(value)}")
        return tuple(_fitted(kind, part, place) for kind, part in zip(each, value, strict=True))
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    plain = typing.get_origin(hint) or hint
    if not isinstance(value, plain) or (plain is int and isinstance(value, bool)):
        raise UserError(f"{place!r} must be {plain.__name__}, not {value!r}")
    return value
