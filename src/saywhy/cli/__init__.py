"""The command line. A command imports what it needs when it runs, so that help comes at once."""

from __future__ import annotations

import io
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

from saywhy.cli import audit, caption, data, evaluate, explain, models, results, train
from saywhy.cli.common import print_error
from saywhy.cli.options import FLAG, examples
from saywhy.errors import UserError
from saywhy.provenance import saywhy_version

UsageError: Any = typer.BadParameter.__base__  # typer does not export it, and carries a click of its own or not
VERBOSE = ("-v", "--verbose")

app = typer.Typer(
    name="saywhy",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog=examples(
        "saywhy caption photo.jpg holiday/", "saywhy explain photo.jpg --out why/", "saywhy explain --help"
    ),
)
app.command("caption", epilog=caption.EPILOG)(caption.caption)
app.command("explain", epilog=explain.EPILOG)(explain.explain)
app.command("evaluate", epilog=evaluate.EPILOG)(evaluate.evaluate)
app.command("audit", epilog=audit.EPILOG)(audit.audit)
app.command("train", epilog=train.EPILOG)(train.train)
app.add_typer(data.app, name="data")
app.command("models")(models.models)
app.command("results", epilog=results.EPILOG)(results.results)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"saywhy {saywhy_version()}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", metavar=FLAG, callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", metavar=FLAG, help="Show where an error came from; may stand anywhere."),
    ] = False,
) -> None:
    """An image captioner that shows its work."""


def main() -> None:
    """Trainer a command; a user's mistake is one line on stderr and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file's name may hold what the terminal cannot print
        sys.stdout.reconfigure(errors="backslashreplace")
    asked = [word for word in sys.argv[1:] if word not in VERBOSE]  # one adds -v to the end of what just failed
    verbose = len(asked) < len(sys.argv) - 1
    if not (verbose or sys.warnoptions):
        warnings.simplefilter("ignore")  # what libraries have to say to programmers
    try:
        sys.exit(app(args=asked, prog_name="saywhy", standalone_mode=False))
    except UsageError as error:
        if error.__class__.__name__ != "NoArgsIsHelpError":  # that one has shown the help
            where = error.ctx.command_path if error.ctx else "saywhy"
            print_error(f"{error.format_message().rstrip('.')} (see {where} --help)")
    except (UserError, OSError) as error:
        if verbose:
            traceback.print_exc()
        print_error(error if isinstance(error, UserError) else _reason(error))
    sys.exit(2)


def _reason(error: OSError) -> str:
    """A full disk, a folder that may not be written in: what the system says, and of which file."""
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}; saywhy -v shows where it came from"
