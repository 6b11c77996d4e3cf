"""What a process of a training run does when another one has ended: stop with one line, as the run cannot go on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from saywhy.errors import UserError
from saywhy.training.checkpoint import CHECKPOINT

LOST = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket closed",
    "remote process exited",
)


class LostProcess(UserError):
    """Another process of the run has ended."""


@contextmanager
def errors_of_lost_processes(out: Path) -> Iterator[None]:
    """Turn the errors of a broken connection between processes into `LostProcess`."""
    try:
        yield
    except RuntimeError as error:
        if not _is_lost(error):
            raise
        raise LostProcess(f"another process of this run has ended; {how_to_continue(out)}") from None


def how_to_continue(out: Path) -> str:
    """The end of a line about a run that has stopped."""
    if (out / CHECKPOINT).exists():
        return "continue from the last checkpoint with --resume, also with fewer processes"
    return "it had no checkpoint yet: start again"


def _is_lost(error: RuntimeError) -> bool:
    from torch import distributed

    text = str(error).lower()
    return isinstance(error, distributed.DistError) or any(part in text for part in LOST)
