"""`saywhy data`: inspect datasets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saywhy.cli.common import (
    check_writable,
    json_line,
    output_console,
    plain_table,
    print_error,
    printable,
    progress_of,
)
from saywhy.cli.options import FLAG, OUTPUT, ImageFolder, Json, Reader, Workers, examples

if TYPE_CHECKING:
    from saywhy.data.checks import Report
    from saywhy.data.overlap import Overlap

MAX_SHOWN = 10  # entries of one kind
MAX_PAIRS = 50
app = typer.Typer(no_args_is_help=True)
EPILOG = examples("saywhy data check flickr8k", "saywhy data check mine/captions.csv --images mine/photos")
OVERLAP_EPILOG = examples(
    "saywhy data overlap coco coco --out exclude.txt",
    "saywhy data overlap mine flickr8k --splits-a train,dev --splits-b test",
)
DataArgument = Annotated[
    Path, typer.Argument(metavar="DIR|FILE", help="Dataset: its folder or its captions file.", show_default=False)
]


@app.callback()
def data() -> None:
    """Inspect datasets of captioned images."""


@app.command(epilog=EPILOG)
def check(
    folder: DataArgument,
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
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """Check a dataset: splits, vocabulary, missing and unreadable images, duplicates across splits.

    The exit code is 2 if something has to be corrected.
    """
    from saywhy.data import checks
    from saywhy.data.datasets import read

    dataset = read(folder, reader=reader, captions=captions, image_folder=image_folder)
    with progress_of("opening images") as progress:
        report = checks.check(
            dataset, vocabulary_min_count=min_count, open_all=open_all, workers=workers, progress=progress
        )
    if as_json:
        typer.echo(json_line(report.as_dict()))
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else 2)


@app.command(epilog=OVERLAP_EPILOG)
def overlap(
    a: Annotated[Path, typer.Argument(metavar="A", help="A dataset: its folder or its captions file.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one, or the same.")],
    splits_a: Annotated[str, typer.Option(metavar="SPLIT,…", help="Splits of A, separated by commas.")] = "train",
    splits_b: Annotated[str, typer.Option(metavar="SPLIT,…", help="Splits of B, separated by commas.")] = "dev,test",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the names of A's near-duplicates, one per line: a list for saywhy train --exclude.",
            show_default=False,
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep the images' thumbnails here for the next time.", show_default=False),
    ] = None,
    workers: Workers = None,
    as_json: Json = False,
) -> None:
    """List near-duplicates between two datasets, or between the splits of one.

    Near-duplicates are the same photograph, also if it was resized, recoloured, mirrored or slightly cropped.
    Photographs of the same scene from the same place are near-duplicates, too.
    """
    from saywhy.data.datasets import read
    from saywhy.data.overlap import find_overlap
    from saywhy.files import write_text

    check_writable("--out", out, other_than=(a, b))
    check_writable("--cache", cache, folder=True)
    first = read(a)
    second = first if a == b else read(b)
    with progress_of("hashing images") as progress:
        result = find_overlap(
            first,
            second,
            splits_a=splits_a.split(","),
            splits_b=splits_b.split(","),
            workers=workers,
            cache=cache,
            progress=progress,
        )
    if result.unreadable:
        count, example = len(result.unreadable), result.unreadable[0]
        print_error(f"{count} images cannot be read and were not compared, such as {example}; see saywhy data check")
    if out:
        write_text(out, "".join(f"{name}\n" for name in result.names))
    if as_json:
        typer.echo(json_line(result.as_dict()))
    else:
        _show_overlap(result)


def _show_overlap(result: Overlap) -> None:
    console = output_console()
    rows = [
        (pair.a, pair.split_a, pair.b, pair.split_b, pair.distance, f"{pair.similarity:.2f}", "yes" * pair.mirrored)
        for pair in result.pairs[:MAX_PAIRS]
    ]
    if rows:
        head = ("image of A", "split", "image of B", "split", "bits", "similarity", "mirrored")
        console.print(plain_table(head, rows, text_columns=(0, 1, 2, 3, 6)))
    if len(result.pairs) > MAX_PAIRS:
        console.print(f"… and {len(result.pairs) - MAX_PAIRS:,} more pairs; --json lists all")
    images = f"{result.images_a:,} images of A and {result.images_b:,} of B"
    console.print(
        f"{len(result.pairs):,} near-duplicates between {images}; {len(result.names):,} images of A are in one"
    )


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
