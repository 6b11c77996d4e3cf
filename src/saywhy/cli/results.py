"""`saywhy results`: pages of measured results."""

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
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of results files.")] = Path("results"),
    recipes: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of recipes.", show_default="recipes beside the results, if it exists"),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page of scores here.", show_default="print it")
    ] = None,
    audits: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the pages of audits here; without --out, write nothing else."),
    ] = None,
) -> None:
    """Write Markdown pages of scores and audits from results files.

    Scores are the files of evaluate --out, audits those of audit --out.
    Fine-tuning runs are the files of evaluate --hallucination --out in the subfolder fine-tuning.
    Sweeps are the files of sweep guidance --out in the subfolder guidance; their plots are written beside the page.
    """
    from saywhy.files import write_text
    from saywhy.reports.audit_pages import write_pages
    from saywhy.reports.guidance_tables import plot_name, read_sweeps, sweep_plot
    from saywhy.reports.results_page import results_page

    check_writable("--out", out)
    check_writable("--audits", audits, folder=True)
    text = results_page(folder, recipes) if out or not audits else ""
    if audits:
        write_pages(folder, audits)
    if out:
        for sweep in read_sweeps(folder):
            write_text(out.parent / plot_name(sweep), sweep_plot(sweep))
        write_text(out, text)
    elif not audits:
        typer.echo(text)
