"""Results files, as `saywhy evaluate --out` writes them, and recipes: read, checked, and grouped by model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

from saywhy.errors import UserError
from saywhy.files import read_json, read_toml
from saywhy.metrics.attention_stats import AttentionStats, Gate, GatedWord
from saywhy.metrics.objects import ObjectScore, Share
from saywhy.reports.json_fields import Fields
from saywhy.viz.tables import MISSING, decimal

STUDY = "flickr8k-encoder-"  # prefix of the names of the encoder study's recipes
AUDIT = "audit-"  # prefix of the names of files that `saywhy audit` writes


@dataclass(frozen=True)
class Scores:
    """The scores of one evaluation, in percent; METEOR is None if it was not available."""

    bleu: tuple[float, ...]
    bleu_no_penalty: tuple[float, ...]
    meteor: float | None
    rouge_l: float
    cider: float
    images: int | None
    signature: str


@dataclass(frozen=True)
class Training:
    """How a model was trained; None or empty where that is not recorded."""

    recipe: str
    seed: int | None
    encoder: str
    weights: str
    input_size: int | None
    seconds: float | None
    parameters: float | None
    device: str
    shared_gpu: bool
    teachers: tuple[str, ...]
    data: tuple[str, ...]


@dataclass(frozen=True)
class FrequentWord:
    """An object word that is frequent in training; its precision, in percent, is None if no caption has it."""

    word: str
    precision: float | None
    in_training: int
    in_captions: int


@dataclass(frozen=True)
class Hallucination:
    """Measures of hallucination, in percent; None where they could not be measured.

    Attributes:
        chair_sentence: captions that name an object their image does not have.
        chair_instance: mentions of such objects, of all mentions of objects.
        objects: where the objects of images come from.
        bad_endings: captions that end in the middle of a phrase.
        mean_precision: of frequent object words (mAP); `recall` and `f1` are of the same words.
        words: the frequent words.
    """

    chair_sentence: float | None
    chair_instance: float | None
    objects: str
    bad_endings: float | None
    mean_precision: float | None
    recall: float | None
    f1: float | None
    words: tuple[FrequentWord, ...]


@dataclass(frozen=True)
class Result:
    """One results file."""

    model: str
    data: str
    split: str
    decoding: str
    scores: Scores
    captions_per_second: float | None
    device: str
    threads: int | None
    shared_gpu: bool
    oracle_regions: bool
    training: Training | None
    attention: AttentionStats | None
    beta_admits: str
    objects: ObjectScore | None
    hallucination: Hallucination | None


@dataclass(frozen=True)
class Exploration:
    """One file of results/explored: a run that was tried on dev."""

    name: str
    description: str
    epochs: int
    planned_epochs: int
    length_penalty: float | None
    cider: float
    bleu4: float
    seconds: float


@dataclass(frozen=True)
class ModelResults:
    """The results of one model on one split, decoded in one way: one per seed."""

    name: str
    results: tuple[Result, ...]

    @property
    def training(self) -> list[Training]:
        """How each seed was trained, where that is recorded."""
        return [result.training for result in self.results if result.training]

    @property
    def recipe(self) -> str:
        """The name in the recipe, which may differ from the recipe's file name."""
        return (self.training[0].recipe if self.training else "") or self.name

    @property
    def in_study(self) -> bool:
        """Whether it belongs to the encoder study."""
        return self.recipe.startswith(STUDY)

    @property
    def oracle_regions(self) -> bool:
        """Whether its regions are boxes that people drew for these captions."""
        return any(result.oracle_regions for result in self.results)

    @property
    def cider(self) -> float:
        """The mean CIDEr."""
        return mean(result.scores.cider for result in self.results)

    @property
    def seeds(self) -> list[int]:
        """The seeds that are recorded."""
        return [training.seed for training in self.training if training.seed is not None]


def read_results(folder: Path) -> list[Result]:
    """The results files of a folder, without those of audits."""
    return [parse_result(Fields(read_json(path), path)) for path in result_paths(folder)]


def read_explorations(folder: Path) -> list[Exploration]:
    """The runs in the subfolder `explored`."""
    return [_exploration(path.stem, Fields(read_json(path), path)) for path in result_paths(folder / "explored")]


def result_paths(folder: Path) -> list[Path]:
    """The JSON files of a folder, without those of audits and without those of its subfolders."""
    return [path for path in sorted(folder.glob("*.json")) if not path.name.startswith(AUDIT)]


def parse_result(fields: Fields) -> Result:
    """The content of one results file."""
    attention = fields.optional_child("attention" if "attention" in fields else "glances")  # the name of saywhy 0.1
    return Result(
        model=fields.require("model", str),
        data=fields.require("data", str),
        split=fields.require("split", str),
        decoding=fields.get("decoding", str) or "",
        scores=_scores(fields.child("scores")),
        captions_per_second=fields.get("captions_per_second", float),
        device=fields.get("device", str) or "",
        threads=fields.get("threads", int),
        shared_gpu=fields.get("shared_gpu", bool) or False,
        oracle_regions=fields.optional_child("regions").get("oracle", bool) or False,
        training=_training(fields.child("training")) if "training" in fields else None,
        attention=_attention(attention) if "words" in attention else None,
        beta_admits=attention.get("beta_admits", str) or "",
        objects=_objects(fields.child("objects")) if "objects" in fields else None,
        hallucination=_hallucination(fields.child("hallucination")) if "hallucination" in fields else None,
    )


def _scores(fields: Fields) -> Scores:
    return Scores(
        bleu=fields.numbers("bleu", 4),
        bleu_no_penalty=fields.numbers("bleu_no_penalty", 4),
        meteor=fields.get("meteor", float),
        rouge_l=fields.require("rouge_l", float),
        cider=fields.require("cider", float),
        images=fields.get("n", int),
        signature=fields.require("signature", str),
    )


def _training(fields: Fields) -> Training:
    recipe = fields.optional_child("recipe")
    encoder = recipe.optional_child("encoder")
    return Training(
        recipe=recipe.get("name", str) or "",
        seed=recipe.get("seed", int),
        encoder=encoder.get("name", str) or "",
        weights=encoder.get("weights", str) or "imagenet",
        input_size=recipe.optional_child("preprocessing").get("size", int),
        seconds=fields.optional_child("progress").get("seconds", float),
        parameters=fields.get("parameters", float),
        device=fields.get("device", str) or "",
        shared_gpu=fields.get("shared_gpu", bool) or False,
        teachers=fields.names("teachers"),
        data=tuple(part.require("name", str) for part in recipe.children("data")),
    )


def _objects(fields: Fields) -> ObjectScore:
    persons, by_category = fields.child("invented_persons"), fields.child("by_category")
    return ObjectScore(
        recall=_share(fields.child("recall")),
        by_category={name: _share(by_category.child(name)) for name in fields.names("by_category")},
        invented_persons=_share(persons),
        boxes=persons.get("boxes", bool) or False,
    )


def _share(fields: Fields) -> Share:
    return Share(fields.require("count", int), fields.require("of", int))


def _hallucination(fields: Fields) -> Hallucination:
    chair, words = fields.child("chair"), fields.optional_child("frequent_words")
    return Hallucination(
        chair_sentence=_share(chair.child("sentence")).percent,
        chair_instance=_share(chair.child("instance")).percent,
        objects=chair.require("objects", str),
        bad_endings=_share(fields.child("bad_endings")).percent,
        mean_precision=words.get("map", float),
        recall=words.get("recall", float),
        f1=words.get("f1", float),
        words=tuple(map(_frequent_word, words.children("words"))),
    )


def _frequent_word(fields: Fields) -> FrequentWord:
    counts = [fields.require(name, int) for name in ("in_training", "in_captions")]
    return FrequentWord(fields.require("word", str), fields.get("precision", float), *counts)


def _attention(fields: Fields) -> AttentionStats:
    numbers = {name: fields.get(name, float) for name in ("features", "entropy", "share", "change", "largest")}
    if "places" in fields:  # the name of saywhy 0.1
        numbers["features"] = fields.get("places", float)
    gate = _gate(fields.child("gate")) if "gate" in fields else None
    return AttentionStats(words=fields.require("words", int), heads=fields.get("heads", int) or 1, gate=gate, **numbers)


def _gate(fields: Fields) -> Gate:
    def words(name: str) -> tuple[GatedWord, ...]:
        return tuple(
            GatedWord(word.require("word", str), word.require("beta", float), word.require("count", int))
            for word in fields.children(name)
        )

    mean_beta, least = fields.require("mean", float), fields.require("least", int)
    return Gate(mean_beta, least, words("lowest"), words("highest"), words("commonest"))


def _exploration(name: str, fields: Fields) -> Exploration:
    progress, recipe = fields.child("progress"), fields.child("recipe")
    history, decoding = progress.children("history"), recipe.optional_child("decoding")
    length = "length_penalty" if "length_penalty" in decoding else "length"  # the name of saywhy 0.1
    return Exploration(
        name=name,
        description=fields.require("description", str),
        epochs=max((event.require("epoch", int) for event in history), default=0),
        planned_epochs=recipe.child("training").require("epochs", int),
        length_penalty=decoding.get(length, float),
        cider=progress.require("best", float),
        bleu4=max((event.require("bleu4", float) for event in history), default=0.0),
        seconds=progress.require("seconds", float),
    )


def read_recipes(folder: Path) -> dict[str, str]:
    """The file name, without its ending, of the recipe with each name. Nothing else in a recipe is checked."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder of recipes")
    recipes = {}
    for path in sorted(folder.glob("*.toml")):
        recipes[str(read_toml(path).get("name", path.stem))] = path.stem
    return recipes


def by_model(results: Iterable[Result]) -> list[ModelResults]:
    """Results of one split grouped by model, the best first, those with oracle regions last.

    A model that was decoded in several ways gives several groups, named by what differs.
    """
    groups: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in results:
        groups[result.model, result.decoding].append(result)
    decodings: dict[str, list[set[str]]] = defaultdict(list)
    for model, decoding in groups:
        decodings[model].append(set(decoding.split(",")))
    models = []
    for (model, decoding), group in groups.items():
        common = set.intersection(*decodings[model])
        difference = ",".join(part for part in decoding.split(",") if part not in common)
        models.append(ModelResults(f"{model} ({difference})" if difference else model, tuple(group)))
    return sorted(models, key=lambda model: (model.oracle_regions, -model.cider, model.name))


def mean_and_deviation(values: Sequence[float | None], digits: int = 1) -> str:
    """The mean with its standard deviation, or the only value; a dash if one is missing.

    >>> mean_and_deviation([60.0, 62.0]), mean_and_deviation([60.0]), mean_and_deviation([60.0, None])
    ('61.0 ± 1.4', '60.0', '–')
    """
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return MISSING
    return decimal(mean(known), digits) + (f" ± {stdev(known):.{digits}f}" if len(known) > 1 else "")
