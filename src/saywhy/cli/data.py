"""`saywhy data`: look at captioned images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saywhy.cli.options import FLAG, ImageFolder, Json, Reader, examples

if TYPE_CHECKING:
    from saywhy.data.checks import Report

SHOWN = 10  # of many faults of one kind
app = typer.Typer(no_args_is_help=True)
EPILOG = examples("saywhy data check flickr8k", "saywhy data check mine/captions.csv --images mine/photos")


@app.callback()
def data() -> None:
    """Look at captioned images."""


@app.command(epilog=EPILOG)
def check(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A data set's folder, or its captions file.", show_default=False)
    ],
    reader: Reader = None,
    captions: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The captions, if not in their usual place.")
    ] = None,
    image_folder: ImageFolder = None,
    min_count: Annotated[
        int, typer.Option(metavar="N", min=1, help="The vocabulary is of words that occur N times in train.")
    ] = 5,
    open_all: Annotated[
        bool, typer.Option("--open/--no-open", metavar=FLAG, help="Open and compare every image.")
    ] = True,
    as_json: Json = False,
) -> None:
    """What is this data set, is it whole, and what is wrong with it?

    The exit code is 2 if something is wrong with it.
    """
    from saywhy.cli.progress import counting
    from saywhy.data.checks import check as look
    from saywhy.data.datasets import read

    found = read(folder, reader=reader, captions=captions, image_folder=image_folder)
    with counting("opening images") as progress:
        report = look(found, vocabulary_min_count=min_count, open_all=open_all, progress=progress)
    if as_json:
        typer.echo(json.dumps(report.as_dict()))
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else 2)


def _show(report: Report) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)

    def line(label: str, text: str, style: str = "") -> None:
        console.print(f"{label:<20}", style=style, end="")
        console.print(text, markup=False)  # names of files may hold brackets

    line(report.name, f"{report.images:,} images, {report.captions:,} captions", "bold")
    table = Table("split", "images", "words known", "captions wholly known", box=None, padding=(0, 2, 0, 0))
    for split, count in report.splits.items():
        coverage = report.coverage.get(split)
        shares = (f"{coverage.tokens:.1%}", f"{coverage.captions:.1%}") if coverage else ("", "")
        table.add_row(split or "in none", f"{count:,}", *shares)
    console.print(table)
    per, words = report.captions_per_image, report.caption_lengths
    line("captions an image", f"{per.min}–{per.max}, {per.mean:.1f} on average")
    line("words a caption", f"{words.min}–{words.max}, {words.mean:.1f} on average")
    line("vocabulary", f"{report.vocabulary:,} words that occur {report.vocabulary_min_count} times in train")
    if report.sizes:
        small, large = report.sizes["smallest"], report.sizes["largest"]
        modes = ", ".join(f"{count:,} {mode}" for mode, count in report.modes.items())
        line("images", f"{small[0]}×{small[1]} to {large[0]}×{large[1]}; {modes}")
    for note in report.notes:
        line("note", note)
    for what, faults in (("odd", report.odd), ("broken", report.unreadable)):
        for fault in faults[:SHOWN]:
            reason = fault.reason.partition(f"{fault.name}: ")[2] or fault.reason  # it may begin with the whole path
            line(what, f"{fault.name}: {reason}")
        if len(faults) > SHOWN:
            line(what, f"… and {len(faults) - SHOWN:,} more")
    for group in report.duplicates[:SHOWN]:
        line("twice", " = ".join(group))
    for problem in report.problems:
        line("problem", problem, "red")
    if report.ok:
        line("whole", "nothing to mend", "green")
