"""`saywhy data`: look at captioned pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from saywhy.data.check import Report

app = typer.Typer(help="Look at captioned pictures.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Look at captioned pictures."""


@app.command()
def check(
    folder: Annotated[Path, typer.Argument(help="A data set's folder, or its captions file.", show_default=False)],
    reader: Annotated[str | None, typer.Option(help="Its layout.", show_default="recognised by itself")] = None,
    captions: Annotated[Path | None, typer.Option(help="The captions file, if not in its usual place.")] = None,
    images: Annotated[Path | None, typer.Option(help="The folder of pictures, if not in its usual place.")] = None,
    min_count: Annotated[int, typer.Option(help="How often a word of the vocabulary occurs in train.")] = 5,
    open_all: Annotated[bool, typer.Option("--open/--no-open", help="Open and compare every picture.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """What is this data set, is it whole, and what is wrong with it. Exit code 2 if something is."""
    from saywhy.cli.progress import counting
    from saywhy.data.check import check as look
    from saywhy.data.datasets import read

    found = read(folder, reader=reader, captions=captions, images=images)
    with counting("opening pictures") as progress:
        report = look(found, vocabulary_min_count=min_count, open_all=open_all, progress=progress)
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else 2)


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"[bold]{report.name}[/bold]  {report.pictures:,} pictures, {report.captions:,} captions")
    table = Table("split", "pictures", "words known", "captions wholly known", box=None, padding=(0, 2, 0, 0))
    for split, count in report.splits.items():
        coverage = report.coverage.get(split)
        shares = (f"{coverage.tokens:.1%}", f"{coverage.captions:.1%}") if coverage else ("", "")
        table.add_row(split or "in none", f"{count:,}", *shares)
    console.print(table)
    per, words = report.captions_per_picture, report.caption_lengths
    console.print(f"captions a picture  {per.min}–{per.max}, {per.mean:.1f} on average")
    console.print(f"words a caption     {words.min}–{words.max}, {words.mean:.1f} on average")
    console.print(
        f"vocabulary          {report.vocabulary:,} words that occur {report.vocabulary_min_count} times in train"
    )
    if report.sizes:
        small, large = report.sizes["smallest"], report.sizes["largest"]
        modes = ", ".join(f"{count:,} {mode}" for mode, count in report.modes.items())
        console.print(f"pictures            {small[0]}×{small[1]} to {large[0]}×{large[1]}; {modes}")
    for note in report.notes:
        console.print(f"note      {note}")
    for what, faults in (("odd", report.odd), ("broken", report.unreadable)):
        for fault in faults[:10]:
            console.print(f"{what:<9} {fault.name}: {fault.reason}", markup=False)
        if len(faults) > 10:
            console.print(f"{what:<9} … and {len(faults) - 10} more")
    for group in report.duplicates[:5]:
        console.print(f"twice     {' = '.join(group)}", markup=False)
    for problem in report.problems:
        console.print(f"[red]problem[/red]   {problem}")
    if report.ok:
        console.print("[green]whole[/green]: nothing to mend")
