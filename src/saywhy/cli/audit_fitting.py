"""`saywhy audit risk` and `saywhy audit familiarity`: fitting a risk model or a familiarity, and saving it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saywhy.cli.common import Failures, check_writable, print_error, progress_of_stages
from saywhy.errors import UserError

if TYPE_CHECKING:
    from saywhy.audits.context import AuditContext
    from saywhy.data.datasets import Dataset
    from saywhy.inference.model import Model


def fit_familiarity(context: AuditContext, paths: Sequence[Path], count: int, folder: Path | None) -> None:
    """Fit the familiarity of the context's model, and save it in the model's folder if that is given."""
    from saywhy.audits import familiarity
    from saywhy.data.datasets import read
    from saywhy.inference.familiarity_model import FAMILIARITY_FILE

    if folder:
        check_writable("--save-familiarity", folder, folder=True)
    data = [read(path) for path in paths]
    with progress_of_stages() as report:
        context.on_progress = lambda event: report(event.stage, event.done, event.total, event.finished)
        fitted = familiarity.fit(context, data, count)
    context.model.familiarity = fitted
    if folder:
        try:
            fitted.save(folder)
        except OSError as error:
            problem = f"cannot write {FAMILIARITY_FILE} ({error.strerror})"
            raise UserError(f"{folder}: {problem}; copy the model first") from None
        print_error(f"the familiarity is saved in {folder / FAMILIARITY_FILE}")


def fit_data(paths: Sequence[Path], split: str, count: int) -> list[Dataset]:
    """At most `count` images of the split of each data set that --fit-risk names."""
    from saywhy.data.datasets import read

    data = [read(path).split(split).evenly_spaced(count) for path in paths]
    names = [part.name for part in data]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--fit-risk: two data sets have the name {repeated[0]!r}; name their folders differently")
    return data


def fit_context(context: AuditContext, data: Dataset) -> AuditContext:
    """The context of the same model with the images of another split of its data, to fit a risk on."""
    return replace(context, data=data, unreadable=set(), split_images=None)


def fit_context_of_other_data(context: AuditContext, data: Dataset, regions: Path | None) -> AuditContext:
    """As `fit_context` for another data set: with its own boxes and, if the model has it, its own style."""
    from saywhy.data.phrases import find_phrases

    model = context.model.in_style(data.name) if data.name in context.model.vocabulary.styles else context.model
    source = model.region_source(regions, data.root)
    return replace(fit_context(context, data), model=model, phrases=find_phrases(data.root), regions=source)


def model_folder(model: str | None) -> Path:
    """The folder that --model names."""
    from saywhy.inference.model import locate
    from saywhy.pretrained import HUB

    return locate(model.removeprefix(HUB) if model is not None else None)


def own_folder(model: str | None) -> Path:
    """The folder of a model that can hold its risk model."""
    from saywhy.pretrained import HUB, is_hub_name

    folder = model_folder(model)
    if not folder.is_dir() and model is not None and (model.startswith(HUB) or is_hub_name(model)):
        raise UserError(f"--save-risk: {model} has no folder of its own on this machine; add --save-to DIR")
    return folder


def check_own_familiarity(model: str | None) -> None:
    """Refuse to save a familiarity for a model of transformers, whose files it could not be checked against."""
    from saywhy.pretrained import is_hub_name, is_transformers_model

    if model is not None and (is_hub_name(model) or is_transformers_model(model)):
        raise UserError(
            f"--save-familiarity: {model} is not a model folder of saywhy, so no familiarity can be saved in it"
        )


def save_risk(
    result: dict[str, Any], model: Model, folder: Path, is_new: bool, table: Path | None, failures: Failures
) -> None:
    """Save a fitted risk model in a model's folder, with the table of object words it was fitted with.

    A new folder gets the model, or a reference to it, as well.
    """
    from saywhy.hallucination.risk_model import OBJECTS_FILE, RISK_FILE, Risk

    if result["not_applicable"]:
        failures("no risk model was fitted, so none is saved")
        return
    try:
        if is_new:
            model.save_pretrained(folder)
        if table is not None and table.resolve() != (folder / OBJECTS_FILE).resolve():
            shutil.copyfile(table, folder / OBJECTS_FILE)
        Risk.from_dict(result["fitted_risk"]).save(folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot write {RISK_FILE} ({error.strerror}); copy the model first") from None
    print_error(f"the risk model is saved in {folder / RISK_FILE}")
