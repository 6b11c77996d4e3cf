"""`saywhy results`: the page of measured numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saywhy.cli.options import examples
from saywhy.cli.writable import refuse_unwritable

EPILOG = examples(
    "saywhy results results --out docs/results.md",
    "saywhy results results --recipes recipes --out docs/results.md",
)


def results(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of results files.")] = Path("results"),
    recipes: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The folder of recipes.", show_default="recipes beside the results, if there is one"
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page here instead of printing it.")
    ] = None,
) -> None:
    """Make the page of results from files that evaluate --out wrote."""
    from saywhy.files import write_text
    from saywhy.reports.results import page

    refuse_unwritable("--out", out)
    text = page(folder, recipes)
    if out:
        write_text(out, text)
    else:
        typer.echo(text)
