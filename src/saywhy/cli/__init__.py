"""The command line. A command imports what it needs when it runs, so that help comes at once."""

from __future__ import annotations

import os
import sys
import traceback

import typer

from saywhy.cli import caption, data, evaluate, models, results, train
from saywhy.errors import UserError

app = typer.Typer(
    name="saywhy",
    help="An image captioner that shows its work.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("caption")(caption.caption)
app.command("train")(train.train)
app.command("evaluate")(evaluate.evaluate)
app.command("models")(models.models)
app.command("results")(results.results)
app.add_typer(data.app, name="data")


@app.callback()
def options(
    verbose: bool = typer.Option(False, "--verbose", "-v", help="Show where an error came from."),
) -> None:
    """An image captioner that shows its work."""


def main() -> None:
    """Run a command; a user's mistake is one line on stderr and exit code 2."""
    try:
        app()
    except UserError as error:
        if {"-v", "--verbose"} & set(sys.argv):
            traceback.print_exc()
        print(f"saywhy: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # `saywhy … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
