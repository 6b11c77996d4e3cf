"""The command line. Commands import heavy modules when they run, so that --help is fast."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Annotated, Any

import typer

from saywhy.cli import (
    audit,
    caption,
    compare,
    data,
    evaluate,
    evaluate_lm,
    explain,
    export,
    models,
    results,
    serve,
    sweep,
    train,
    train_judge,
    train_lm,
)
from saywhy.cli.common import print_error
from saywhy.cli.options import FLAG, examples
from saywhy.errors import UserError
from saywhy.provenance import saywhy_version

UsageError: Any = typer.BadParameter.__base__  # typer does not export it, and some versions bundle their own click
VERBOSE = ("-v", "--verbose")
FAILED, USER_MISTAKE = 1, 2  # exit codes
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, *([signal.SIGALRM] if hasattr(signal, "SIGALRM") else []))
MOST_POSTPONED = 100  # interrupts, 10 ms apart
NO_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")  # in the RuntimeErrors of torch

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
app.command("serve", epilog=serve.EPILOG)(serve.serve)
app.command("evaluate", epilog=evaluate.EPILOG)(evaluate.evaluate)
app.command("compare", epilog=compare.EPILOG)(compare.compare)
app.command("audit", epilog=audit.EPILOG)(audit.audit)
app.command("train", epilog=train.EPILOG)(train.train)
app.command("train-judge", epilog=train_judge.EPILOG)(train_judge.train_judge)
app.command("train-lm", epilog=train_lm.EPILOG)(train_lm.train_lm)
app.command("evaluate-lm", epilog=evaluate_lm.EPILOG)(evaluate_lm.evaluate_lm)
app.add_typer(data.app, name="data")
app.add_typer(sweep.app, name="sweep")
app.command("export", epilog=export.EPILOG)(export.export)
app.command("models", epilog=models.EPILOG)(models.models)
app.command("results", epilog=results.EPILOG)(results.results)


def _show_version(requested: bool) -> None:
    if requested:
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
        typer.Option("--verbose", "-v", metavar=FLAG, help="Show the traceback of an error; allowed anywhere."),
    ] = False,
) -> None:
    """Caption images and explain every word."""


def main() -> None:
    """Run a command. Every error is one line on stderr; exit code 2 is a user's mistake, 1 any other failure."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # a file name may hold what the terminal cannot print
        sys.stdout.reconfigure(errors="backslashreplace")
    arguments = [word for word in sys.argv[1:] if word not in VERBOSE]  # so that -v can follow a failed command
    verbose = len(arguments) < len(sys.argv) - 1
    if not (verbose or sys.warnoptions):
        warnings.simplefilter("ignore")  # warnings of libraries, meant for programmers
    with _signals_interrupt() as received:
        try:
            _refuse_empty(arguments)
            code = _run(arguments)
        except (KeyboardInterrupt, Exception) as error:
            received.ending = True
            if verbose:
                traceback.print_exc()
            if received.first or isinstance(error, KeyboardInterrupt):  # an interrupt may surface as another error
                print_error((isinstance(error, KeyboardInterrupt) and str(error)) or "interrupted")
                code = 128 + (received.first or signal.SIGINT)
            else:
                code = _report(error)
    _close_output()
    exec("")  # else `python -m` ends by SIGINT after an interrupt inside exec() of a text, as imports have
    sys.exit(code)


def _refuse_empty(arguments: Sequence[str]) -> None:
    """Raise a `UserError` for an empty value, such as that of an unset variable: as a path it means this folder."""
    for option, value in zip(("", *arguments), arguments, strict=False):
        name, equals, text = value.partition("=") if value.startswith("--") else (option, "=", value)
        if equals and not text:
            subject = name if name.startswith("--") else "an argument"
            raise UserError(f"{subject} is empty: give a value, or check the variable that should hold it")


def _run(arguments: Sequence[str]) -> int:
    """The exit code of a command. Not `app(arguments)`, which swallows an interrupt."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("saywhy", list(arguments)) as context:
            command.invoke(context)
    except typer.Exit as error:
        return error.exit_code
    return 0


@dataclass
class _Signals:
    """What became of a command's signals.

    Attributes:
        first: the first signal, or 0.
        ending: whether the command ends already, so that further signals are ignored.
        postponed: how often an interrupt was postponed.
    """

    first: int = 0
    ending: bool = False
    postponed: int = 0


@contextmanager
def _signals_interrupt() -> Iterator[_Signals]:
    """Make SIGTERM an interrupt like Ctrl-C, so that temporary files are removed; yields the signals received."""
    received = _Signals()
    process = os.getpid()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:
            os._exit(128 + number)  # a worker process, forked before it has set its own handlers
        received.first = received.first or number
        if hasattr(signal, "SIGCHLD"):  # torch reports every worker that ends, and these end by the same signal
            signal.signal(signal.SIGCHLD, lambda *_: None)
        if received.ending:
            return
        if frame and frame.f_code.co_name in ("__enter__", "__exit__") and received.postponed < MOST_POSTPONED:
            received.postponed += 1  # an exception here may leave a lock that is never released, which others wait for
            _interrupt_again()
        else:
            raise KeyboardInterrupt

    def unraisable(error: sys.UnraisableHookArgs) -> None:
        """Repeat an interrupt that came where Python ignores exceptions; print nothing after an interrupt."""
        if isinstance(error.exc_value, KeyboardInterrupt) and received.first:
            _interrupt_again()
        elif not received.first:
            sys.__unraisablehook__(error)

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield received
        return
    numbers = [number for number in INTERRUPTS if signal.getsignal(number) != signal.SIG_IGN]
    handlers = {number: signal.signal(number, interrupt) for number in numbers}
    sys.unraisablehook, hook = unraisable, sys.unraisablehook
    try:
        yield received
    finally:
        for number, handler in handlers.items():  # a repeated signal must not change the exit code of an interrupt
            signal.signal(number, signal.SIG_IGN if received.first else handler)
        if not received.first:  # after an interrupt, destructors of half-built objects may fail until the process ends
            sys.unraisablehook = hook


def _interrupt_again() -> None:
    """Interrupt in a moment, by a signal rather than a thread: this may run anywhere, also where a thread starts."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, 0.01)
    else:
        signal.raise_signal(signal.SIGINT)


def _report(error: Exception) -> int:
    """Print one line for an error; the exit code."""
    if isinstance(error, UsageError):
        if error.__class__.__name__ != "NoArgsIsHelpError":  # which has shown the help
            command = error.ctx.command_path if error.ctx else "saywhy"
            print_error(f"{error.format_message().rstrip('.')} (see {command} --help)")
        return USER_MISTAKE
    if isinstance(error, BrokenPipeError):  # the reader of a pipe, such as head, has closed it
        return FAILED
    if isinstance(error, UserError):
        print_error(error)
        return USER_MISTAKE
    if isinstance(error, OSError):  # a full disk, a folder without permission
        file = f"{error.filename}: " if error.filename else ""
        print_error(f"{file}{error.strerror or error}; run again with -v for the traceback")
        return USER_MISTAKE
    print_error(_reason(error))
    return FAILED


def _reason(error: Exception) -> str:
    """What went wrong, where it is not the user's mistake: the limits of the machine, or a defect."""
    text = str(error).lower()
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and any(part in text for part in NO_MEMORY)):
        return "out of memory; use a smaller --batch-size or --beam, smaller images or a smaller model"
    if isinstance(error, RecursionError):
        return "an input is nested too deeply; run again with -v to see which"
    name = type(error).__name__
    return f"internal error: {name}: {error}; run again with -v for the traceback and report it"


def _close_output() -> None:
    """Flush stdout; what cannot be written is discarded, so that Python does not fail again at its exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
