"""What `saywhy audit` does: a bench from what was asked, audits, their files and what is printed of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from saywhy.audits import runner
from saywhy.audits.context import AuditContext
from saywhy.cli.common import Failures, print_error
from saywhy.cli.progress import stages
from saywhy.data.datasets import Dataset, read
from saywhy.data.object_words import ObjectWords
from saywhy.data.phrases import find_phrases
from saywhy.data.region_inputs import find_regions
from saywhy.data.splits import split_name
from saywhy.errors import UserError
from saywhy.explain.composites import composite
from saywhy.hallucination.risk import OBJECTS, RISK, Risk

save = runner.save


@dataclass(frozen=True)
class Asked:
    """The options of the command."""

    model: str | None
    data: Path
    reader: str | None
    image_folder: Path | None
    split: str
    limit: int | None
    boxes: Path | None
    objects: Path | None
    composite: str
    regions: Path | None
    fit: str | None
    batch: int | None
    workers: int | None
    device: str


def chosen(name: str, fit: str | None, save_risk: bool) -> tuple[str, ...]:
    """The audits that are asked for."""
    names = runner.chosen(name)
    if "risk" not in names and (fit or save_risk):
        raise UserError(f"--fit and --save-risk are of the audit risk, and not of {name}")
    return names


def bench(names: Sequence[str], asked: Asked, cache: Path, faults: Failures) -> AuditContext:
    """The model, the images and all that is known of them."""
    from saywhy.inference.model import load

    rules = composite(asked.composite)
    data = read(asked.data, reader=asked.reader, image_folder=asked.image_folder)
    audited = data.split(split_name(asked.split))
    if asked.fit and split_name(asked.fit) == split_name(asked.split):
        raise UserError(f"--fit {asked.fit}: a risk is tested on images it was not fitted on; give another split")
    phrases = find_phrases(audited.root, asked.boxes)
    table = None if asked.objects is None else ObjectWords.read(asked.objects)
    model = load(asked.model, asked.device)
    given = find_regions(model.regions, asked.regions, f"model {model.name}", data.root)
    made = AuditContext(
        model, _some(audited, asked.limit), cache, table or model.objects, phrases, given, rules, asked.batch,
        asked.workers, on_unreadable=faults, of=len(audited),
    )  # fmt: skip
    if "risk" not in names:
        return made
    if asked.fit or (model.risk is None and data.splits.get("dev") and split_name(asked.split) != "dev"):
        made.fitting = replace(made, data=data.split(split_name(asked.fit or "dev")), broken=set(), of=None)
    return made


def _some(data: Dataset, count: int | None) -> Dataset:
    """So many images, evenly spread."""
    if count is None or count >= len(data):
        return data
    return replace(data, images=tuple(data.images[i * len(data) // count] for i in range(count)))


def run(names: Sequence[str], bench: AuditContext) -> Iterator[dict[str, Any]]:
    """The results, one after another, with a bar for each stage."""
    with stages() as progress:
        bench.progress = progress
        if bench.fitting is not None:
            bench.fitting.progress = progress
        yield from runner.run(names, bench)


def folder_of(model: str | None) -> Path:
    """Where a model is."""
    from saywhy.inference.model import locate

    return locate(model)


def save_risk(result: dict[str, Any], asked: Asked, faults: Failures) -> None:
    """Keep a fitted risk in the model's folder, with the table of object words it is of."""
    if result["not_applicable"]:
        faults("no risk was fitted, so none is kept")
        return
    folder, fitted = folder_of(asked.model), result["fitted"]
    try:
        if asked.objects is not None and asked.objects.resolve() != (folder / OBJECTS).resolve():
            shutil.copyfile(asked.objects, folder / OBJECTS)
        Risk.of(fitted).save(folder)
    except OSError as error:
        raise UserError(f"{folder}: {RISK} cannot be written there ({error.strerror}); copy the model first") from None
    print_error(f"the risk is kept in {folder / RISK}")


def write_pages(out: Path) -> None:
    """Pages with tables and plots of all results in the folder; without matplotlib a line says so."""
    from saywhy.reports import audit_pages

    try:
        audit_pages.write_pages(out, out)
    except UserError as error:
        print_error(error)


def notes(result: dict[str, Any]) -> list[str]:
    """What should be said beside the numbers."""
    if result["not_applicable"]:
        return [f"{result['audit']} is left out: {result['not_applicable']}"]
    return [f"{result['audit']}: {line}" for line in result.get("notes", ())]


def show(result: dict[str, Any], path: Path) -> None:
    """Print the main numbers of an audit."""
    from saywhy.reports.audit_summary import summary

    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 120
    if result["not_applicable"]:
        return
    console.print(f"{result['audit']}: {result['model']} on {result['data']} {result['split']}", soft_wrap=True)
    head, rows = summary(result)
    table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
    for column, name in enumerate(head):
        table.add_column(name, justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(str(path), soft_wrap=True)
    console.print()
