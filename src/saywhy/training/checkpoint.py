"""Checkpoints: one safetensors file with everything that a run needs to continue, and the lock of a run's folder.

The tensors are named "part/name": trained weights, buffers, optimiser state, averaged weights. Frozen weights are left
out; they are built again. The metadata is JSON: format, version, progress, recipe, and the digests of the run's
sources (data, encoder weights, teachers, regions). The file is replaced as a whole: a crash leaves the previous one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.optim import Optimizer

from saywhy.captioners.model_folder import CONFIG, WEIGHTS, save_tensors
from saywhy.errors import UserError
from saywhy.files import file_lock, parse_json
from saywhy.provenance import saywhy_version
from saywhy.training.optimisers import WeightAverage, optimiser_tensors, restore_optimiser
from saywhy.training.recipe import check_ranges, fill_dataclass

CHECKPOINT = "checkpoint.safetensors"
LOCK = "train.lock"
FORMAT = 2
COUNTERS = {"epoch": 0, "batch": 0, "step": 0, "seconds": 0, "best": -1, "best_epoch": -1, "improved": -1}
"""The least value of each number in a run's progress."""


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        epoch, batch: the next batch to train on; `batch` counts within the epoch.
        step: optimiser steps made.
        best, best_epoch: the best score on dev, and the last epoch that reached it, whose weights are kept.
        improved: the first epoch that reached the best score; patience counts from it.
        seconds: training time of all sessions together.
        finished: whether the last epoch was reached or patience has run out.
        history: the scores of every evaluation.
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


@dataclass(frozen=True)
class CheckpointInfo:
    """The metadata of a checkpoint."""

    path: Path
    progress: Progress
    recipe: dict[str, Any]
    sources: dict[str, Any]

    def check_recipe(self, recipe: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> None:
        """Raise a `UserError` that names each key whose value differs. The number of epochs may grow.

        A key that the checkpoint does not have is new since it was written, and had its default.
        """
        differing = []
        for key, before, now in _differences(_with_defaults(self.recipe, defaults or {}), recipe):
            if key != "training.epochs" or not isinstance(before, int) or before > now:
                key = key.replace("captioner.settings.", "captioner.")  # as recipes write it
                differing.append(f"{key}: {_shown(before)} in the checkpoint, {_shown(now)} now")
        if differing:
            raise UserError(
                f"{self.path} was written with another recipe ({'; '.join(differing)}): "
                "resume with the recipe of the checkpoint, or choose another --out"
            )

    def check_sources(self, sources: Mapping[str, Any]) -> None:
        """Raise a `UserError` where the run was started with other data, encoder weights, teachers or regions."""
        differing = [name for name, identity in sources.items() if self.sources.get(name) != identity]
        if differing:
            raise UserError(
                f"{self.path} was written by a run with other {' and '.join(differing)}: "
                f"resume with the same {' and '.join(differing)}, or choose another --out"
            )


def _differences(before: Mapping[str, Any], now: Mapping[str, Any], table: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Each key whose value differs, such as "training.lr", with both values; None stands for a missing key."""
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from _differences(old, new, f"{table}{key}.")
        elif old != new:
            yield f"{table}{key}", old, new


def _with_defaults(table: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The table, with the keys of `defaults` that it lacks, also in tables within it."""
    filled = dict(defaults) | dict(table)
    for key, value in defaults.items():
        if isinstance(value, dict) and isinstance(filled[key], dict) and key != "captioner":
            filled[key] = _with_defaults(filled[key], value)
    return filled


def _shown(value: Any) -> str:
    return "not set" if value is None else json.dumps(value)


def save_checkpoint(
    path: Path,
    module: nn.Module,
    optimiser: Optimizer,
    average: WeightAverage | None,
    progress: Progress,
    recipe: Mapping[str, Any],
    sources: Mapping[str, Any],
) -> None:
    """Write the state of a run."""
    parts = {**_model_tensors(module, average), "optimiser": optimiser_tensors(optimiser)}
    tensors = {
        f"{part}/{name}": tensor.detach().cpu().contiguous().clone()
        for part, named in parts.items()
        for name, tensor in named.items()
    }
    about = {"format": FORMAT, "saywhy": saywhy_version(), "progress": asdict(progress)}
    metadata = {"saywhy": json.dumps({**about, "recipe": recipe, "sources": sources})}
    save_tensors(tensors, path, metadata)


def _model_tensors(module: nn.Module, average: WeightAverage | None) -> dict[str, dict[str, Tensor]]:
    return {
        "weights": {name: weight for name, weight in module.named_parameters() if weight.requires_grad},
        "buffers": dict(module.named_buffers()),
        "average": average.mean if average else {},
    }


def read_info(path: Path) -> CheckpointInfo:
    """Read the metadata of a checkpoint, and no tensor."""
    with _open(path) as file:
        about = parse_json((file.metadata() or {}).get("saywhy", "{}"), path)
    about = about if isinstance(about, dict) else {}
    if about.get("format") != FORMAT:
        raise UserError(
            f"{path}: written by saywhy {about.get('saywhy', 'of another version')} in format {about.get('format')}; "
            f"this is saywhy {saywhy_version()}, which reads format {FORMAT}: resume with that version"
        )
    try:
        tables = {key: about.get(key) for key in ("progress", "recipe", "sources")}
        if not all(isinstance(table, dict) for table in tables.values()):
            raise UserError("progress, recipe and sources must be tables")
        progress = fill_dataclass(Progress, about["progress"], "progress.")
        check_ranges("progress", progress, {name: (least, float("inf")) for name, least in COUNTERS.items()})
    except UserError as error:
        raise _unreadable(path, error) from None
    return CheckpointInfo(path, progress, about["recipe"], about["sources"])


def restore_checkpoint(path: Path, module: nn.Module, optimiser: Optimizer, average: WeightAverage | None) -> None:
    """Copy the tensors of a checkpoint into a run that was built from the same recipe and sources."""
    with _open(path) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "buffers": {}, "average": {}, "optimiser": {}}
    for full_name, tensor in tensors.items():
        part, _, name = full_name.partition("/")
        if part not in parts or not name:
            raise _unreadable(path, f"unknown tensor {full_name[:100]!r}")
        parts[part][name] = tensor
    for part, expected in _model_tensors(module, average).items():
        _check_tensors(path, part, parts[part], expected)
    module.load_state_dict({**parts["weights"], **parts["buffers"]}, strict=False)
    try:
        restore_optimiser(optimiser, parts["optimiser"])
    except ValueError as error:
        raise _unreadable(path, error) from None
    if average:
        for name, mean in parts["average"].items():
            average.mean[name].copy_(mean)


def _check_tensors(path: Path, part: str, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a `UserError` unless the names and shapes are exactly the expected ones."""
    unexpected = sorted(tensors.keys() ^ expected.keys())
    if unexpected:
        raise _unreadable(path, f"{part}/{unexpected[0][:100]} is missing or not part of this captioner")
    for name, tensor in tensors.items():
        if tensor.shape != expected[name].shape:
            raise UserError(
                f"{path}: {part}/{name} is {tuple(tensor.shape)}, in this run {tuple(expected[name].shape)}: have the "
                "captions changed? Resume with the data that the run was started with, or choose another --out"
            )


@contextmanager
def _open(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise UserError(f"{path.parent}: no checkpoint to resume from; start without --resume") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, reason: object) -> UserError:
    return UserError(f"{path}: not a readable checkpoint ({reason}); restore it from a copy, or choose another --out")


def require_no_model(folder: str | Path) -> None:
    """Raise a `UserError` if the folder of a new run holds a model already."""
    if any((Path(folder) / name).exists() for name in (CONFIG, WEIGHTS, CHECKPOINT)):
        raise UserError(f"{folder} holds a model already: choose another --out")


def folder_lock(folder: Path) -> AbstractContextManager[None]:
    """Raise a `UserError` if another process trains into this folder."""
    busy = f"{folder}: another process is training into this folder; wait for it, or choose another --out"
    return file_lock(folder / LOCK, busy)
