"""`saywhy results`: the pages of measured numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from saywhy.cli.common import check_writable
from saywhy.cli.options import examples

EPILOG = examples(
    "saywhy results results --out docs/results.md",
    "saywhy results results --recipes recipes --out docs/results.md",
    "saywhy results results --out docs/results.md --audits docs/audits",
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
    audits: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the pages of audits there; without --out, nothing else is made."),
    ] = None,
) -> None:
    """Make the page of results from files that evaluate --out wrote, and pages of audits."""
    from saywhy.files import write_text
    from saywhy.reports.audit_pages import write_pages
    from saywhy.reports.results_page import page

    check_writable("--out", out)
    check_writable("--audits", audits, folder=True)
    text = page(folder, recipes) if out or not audits else ""
    if audits:
        write_pages(folder, audits)
    if out:
        write_text(out, text)
    elif not audits:
        typer.echo(text)
