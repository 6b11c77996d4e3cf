"""`saywhy data`: inspect datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saywhy.cli.common import json_line, output_console, plain_table, printable, progress_of
from saywhy.cli.options import FLAG, ImageFolder, Json, Reader, examples

if TYPE_CHECKING:
    from saywhy.data.checks import Report

MAX_SHOWN = 10  # entries of one kind
app = typer.Typer(no_args_is_help=True)
EPILOG = examples("saywhy data check flickr8k", "saywhy data check mine/captions.csv --images mine/photos")


@app.callback()
def data() -> None:
    """Inspect datasets of captioned images."""


@app.command(epilog=EPILOG)
def check(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR|FILE", help="Dataset: its folder or its captions file.", show_default=False)
    ],
    reader: Reader = None,
    captions: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Captions file, if it is not where the layout has it.", show_default=False),
    ] = None,
    image_folder: ImageFolder = None,
    min_count: Annotated[
        int, typer.Option(metavar="N", min=1, help="The vocabulary is the words that occur N times in train.")
    ] = 5,
    open_all: Annotated[
        bool, typer.Option("--open/--no-open", metavar=FLAG, help="Open every image and look for duplicates.")
    ] = True,
    as_json: Json = False,
) -> None:
    """Check a dataset: splits, vocabulary, missing and unreadable images, duplicates across splits.

    The exit code is 2 if something has to be corrected.
    """
    from saywhy.data import checks
    from saywhy.data.datasets import read

    dataset = read(folder, reader=reader, captions=captions, image_folder=image_folder)
    with progress_of("opening images") as progress:
        report = checks.check(dataset, vocabulary_min_count=min_count, open_all=open_all, progress=progress)
    if as_json:
        typer.echo(json_line(report.as_dict()))
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else 2)


def _show(report: Report) -> None:
    console = output_console()

    def line(label: str, text: str, style: str = "") -> None:
        console.print(f"{printable(label):<20}", style=style, end="")
        console.print(printable(text), soft_wrap=True)

    line(report.name, f"{report.images:,} images, {report.captions:,} captions", "bold")
    rows = []
    for split, count in report.splits.items():
        coverage = report.coverage.get(split)
        shares = (f"{coverage.tokens:.1%}", f"{coverage.captions:.1%}") if coverage else ("", "")
        rows.append((split or "no split", f"{count:,}", *shares))
    console.print(plain_table(("split", "images", "words in vocabulary", "captions in vocabulary"), rows))
    per_image, lengths = report.captions_per_image, report.caption_lengths
    line("captions per image", f"{per_image.min}–{per_image.max}, mean {per_image.mean:.1f}")
    line("words per caption", f"{lengths.min}–{lengths.max}, mean {lengths.mean:.1f}")
    line("vocabulary", f"{report.vocabulary:,} words that occur {report.vocabulary_min_count} times in train")
    if report.sizes:
        small, large = report.sizes["smallest"], report.sizes["largest"]
        modes = ", ".join(f"{count:,} {mode}" for mode, count in report.modes.items())
        line("images", f"{small[0]}×{small[1]} to {large[0]}×{large[1]}; {modes}")
    for note in report.notes:
        line("note", note)
    for label, faults in (("unusual", report.odd), ("unreadable", report.unreadable)):
        for fault in faults[:MAX_SHOWN]:
            reason = fault.reason.partition(f"{fault.name}: ")[2] or fault.reason  # it may begin with the full path
            line(label, f"{fault.name}: {reason}")
        if len(faults) > MAX_SHOWN:
            line(label, f"… and {len(faults) - MAX_SHOWN:,} more")
    for group in report.duplicates[:MAX_SHOWN]:
        line("duplicates", " = ".join(group))
    for problem in report.problems:
        line("problem", problem, "red")
    if report.ok:
        line("complete", "no problems", "green")
