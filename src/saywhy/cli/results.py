"""`saywhy results`: the page of measured numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def results(
    folder: Annotated[Path, typer.Argument(help="The folder of results files.")] = Path("results"),
    out: Annotated[Path | None, typer.Option(help="Write the page here instead of printing it.")] = None,
) -> None:
    """Make the page of results from the files that `saywhy evaluate --out` wrote."""
    from saywhy.files import write_text
    from saywhy.reports.results import page

    text = page(folder)
    if out:
        write_text(out, text)
    else:
        typer.echo(text)
