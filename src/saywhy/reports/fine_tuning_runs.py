"""Fine-tuning runs: the results files in the subfolder `fine-tuning`, and what the recipe in each says about the run.

What a run is follows from the fields of its file, never from the file's name:

    [reward]   [relevance]           run
    no         no                    start model
    no         cross_entropy = 1     plain fine-tuning with cross-entropy
    no         cross_entropy < 1     fine-tuning with λ·CE(p) + (1 − λ)·CE(p̂)
    yes        no                    plain self-critical training
    yes        yes                   self-critical training with captions drawn from p̂
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from saywhy.errors import UserError
from saywhy.files import read_json
from saywhy.reports.json_fields import Fields
from saywhy.reports.results_files import Hallucination, Result, parse_result, result_paths

FOLDER = "fine-tuning"
START, PLAIN, LRP = "start model", "plain fine-tuning", "lrp"
CROSS_ENTROPY, SELF_CRITICAL = "cross-entropy", "self-critical training"
PAPER_LAMBDA = 0.5  # λ of Sun et al. 2021


@dataclass(frozen=True)
class Variant:
    """One row of a table: the runs that differ in their seed only.

    Attributes:
        kind: `START`, `PLAIN`, or where ω comes from: "lrp", or a control such as "random".
        cross_entropy: λ; `PAPER_LAMBDA` where it has no effect.
        penalty: what the reward loses for every object that a caption names and no reference does.
    """

    kind: str
    cross_entropy: float = PAPER_LAMBDA
    penalty: float = 0.0


@dataclass(frozen=True)
class Setting:
    """What the runs of a table have in common, besides the objective."""

    data: str
    split: str
    captioner: str
    encoder: str
    decoding: str


@dataclass(frozen=True)
class FineTuningRun:
    """One fine-tuned model, or one model that fine-tuning starts from.

    Attributes:
        objective: what it was fine-tuned with; empty for a start model.
        start: the digest of the model that it was fine-tuned from; empty for a start model.
    """

    path: Path
    result: Result
    hallucination: Hallucination
    setting: Setting
    objective: str
    variant: Variant
    seed: int
    start: str


def read_runs(folder: Path) -> list[FineTuningRun]:
    """The runs in the subfolder `fine-tuning` of a folder of results; folders within it are not read."""
    runs: dict[tuple[Setting, str, Variant, int], FineTuningRun] = {}
    for path in result_paths(folder / FOLDER):
        run = _run(path, Fields(read_json(path), path))
        other = runs.setdefault((run.setting, run.objective, run.variant, run.seed), run)
        if other is not run:
            raise UserError(
                f"{path}: the same data, captioner, encoder, decoding, objective, weights and seed as {other.path}; "
                "move one of them out of the folder"
            )
    return [*runs.values()]


def _run(path: Path, fields: Fields) -> FineTuningRun:
    result, training = parse_result(fields), fields.child("training")
    if result.hallucination is None:
        raise UserError(
            f"{path}: has no measures of hallucination; write it again with `saywhy evaluate --hallucination --out`"
        )
    recipe = training.child("recipe")
    variant = _variant(recipe)
    captioner, encoder = (recipe.child(table).require("name", str) for table in ("captioner", "encoder"))
    return FineTuningRun(
        path=path,
        result=result,
        hallucination=result.hallucination,
        setting=Setting(result.data, result.split, captioner, encoder, result.decoding),
        objective="" if variant.kind == START else _objective(recipe),
        variant=variant,
        seed=recipe.require("seed", int),
        start="" if variant.kind == START else training.require("start", str),
    )


def _objective(recipe: Fields) -> str:
    if "reward" not in recipe:
        return CROSS_ENTROPY
    weight = _reward_weight(recipe)
    return SELF_CRITICAL if weight == 1 else f"{SELF_CRITICAL} with weight {weight:g}"


def _reward_weight(recipe: Fields) -> float:
    weight = recipe.child("reward").get("weight", float)
    return 1.0 if weight is None else weight


def _variant(recipe: Fields) -> Variant:
    has_reward = "reward" in recipe
    penalty = recipe.optional_child("reward").get("hallucination", float) or 0.0
    if "relevance" not in recipe:
        return Variant(PLAIN if has_reward else START, penalty=penalty)
    relevance = recipe.child("relevance")
    kind, cross_entropy = relevance.require("weights", str), relevance.require("cross_entropy", float)
    if not has_reward and cross_entropy == 1:
        return Variant(PLAIN)  # ω is not used
    if has_reward and _reward_weight(recipe) == 1:
        cross_entropy = PAPER_LAMBDA  # cross-entropy has no share in the loss
    return Variant(kind, cross_entropy, penalty)
