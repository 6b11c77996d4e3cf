"""Everything a run needs to go on, in one file that appears whole or not at all."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from saywhy.errors import UserError
from saywhy.files import whole_file
from saywhy.provenance import saywhy_version
from saywhy.training.optimisers import WeightAverage, optimiser_tensors, restore_optimiser

CHECKPOINT = "checkpoint.safetensors"
FORMAT = 1


@dataclass
class Progress:
    """Where a run stands.

    Attributes:
        epoch, batch: the next batch to train on; `batch` counts within the epoch.
        step: optimiser steps made.
        best, best_epoch: the best score on dev so far, and when it was last reached: those weights are kept.
        improved: when it was first reached, from which patience counts.
        seconds: spent training, over all sittings.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    best: float = -1.0
    best_epoch: int = -1
    improved: int = -1
    seconds: float = 0.0
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)


def save_checkpoint(
    path: Path,
    module: nn.Module,
    optimiser: Optimizer,
    average: WeightAverage | None,
    progress: Progress,
    recipe: dict,
) -> None:
    """Write weights, optimiser, average and progress."""
    parts: dict[str, dict[str, Tensor]] = {
        "weights": {name: p for name, p in module.named_parameters() if p.requires_grad},
        "buffers": dict(module.named_buffers()),
        "optimiser": optimiser_tensors(optimiser),
        "average": average.mean if average else {},
    }
    tensors = {
        f"{part}/{name}": value.detach().cpu().contiguous().clone()
        for part, named in parts.items()
        for name, value in named.items()
    }
    about = {"format": FORMAT, "saywhy": saywhy_version(), "progress": asdict(progress), "recipe": recipe}
    with whole_file(path) as part:
        save_file(tensors, part, metadata={"saywhy": json.dumps(about)})


def restore_checkpoint(
    path: Path, module: nn.Module, optimiser: Optimizer, average: WeightAverage | None, recipe: dict
) -> Progress:
    """Give a freshly built run what `save_checkpoint` took; frozen weights are not in it, they are built anew."""
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {}).get("saywhy", "{}"))
            _refuse_other(path, about, recipe)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise UserError(f"{path.parent}: no checkpoint to resume from; start without --resume") from None
    except (SafetensorError, ValueError) as error:
        raise UserError(f"{path}: not a readable checkpoint ({error})") from None
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "buffers": {}, "optimiser": {}, "average": {}}
    for name, value in tensors.items():
        part, rest = name.split("/", 1)
        parts[part][rest] = value
    try:
        module.load_state_dict({**parts["weights"], **parts["buffers"]}, strict=False)
    except RuntimeError:  # the recipe is the same, so the words or the images are not
        raise UserError(
            f"{path}: its weights have other sizes than this run's: have the captions changed since it began? "
            "Resume with the data it began with, or choose another --out"
        ) from None
    restore_optimiser(optimiser, parts["optimiser"].items())
    if average:
        for name, value in parts["average"].items():
            average.mean[name].copy_(value)
    return Progress(**about["progress"])


def _refuse_other(path: Path, about: dict, recipe: dict) -> None:
    if about.get("format") != FORMAT:
        raise UserError(
            f"{path}: written by saywhy {about.get('saywhy', 'of another version')} in format {about.get('format')}; "
            f"this is saywhy {saywhy_version()}, which reads format {FORMAT}: resume with that version"
        )
    if about["recipe"] != recipe:
        changed = [key for key in {**about["recipe"], **recipe} if about["recipe"].get(key) != recipe.get(key)]
        raise UserError(
            f"{path}: the run was started with another recipe or other data (different: {', '.join(changed)}); "
            "resume with what it began with, or choose another --out"
        )
