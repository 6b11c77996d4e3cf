"""Progress on stderr: bars on a terminal; in a log file only the lines that are worth keeping."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


def _bar(*columns: TextColumn, transient: bool = False) -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *columns,
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        transient=transient,
        disable=not console.is_terminal,
    )


@contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for something that reports (done, total); it goes when that is done."""
    with _bar(transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def stages() -> Iterator[Callable[[str, int, int], None]]:
    """A bar for each of several things that report (what, done, total); they go when all is done."""
    with _bar(transient=True) as bar:
        tasks: dict[str, Any] = {}

        def progress(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield progress


class TrainingDisplay:
    """Shows a run's events; of several processes only the first speaks."""

    def __init__(self) -> None:
        self.speaks = int(os.environ.get("RANK", 0)) == 0
        self.bar = _bar(TextColumn("{task.fields[note]}"))
        self.tasks: dict[str, Any] = {}

    def __enter__(self) -> TrainingDisplay:
        if self.speaks:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.speaks:
            self.bar.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        """Take an event from `saywhy.training.trainer`."""
        if self.speaks:
            getattr(self, f"_{event['kind']}")(event)

    def _task(self, name: str, total: int) -> Any:
        if name not in self.tasks:
            self.tasks[name] = self.bar.add_task(name, total=total, note="")
        return self.tasks[name]

    def _line(self, text: str) -> None:
        self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def _step(self, event: dict[str, Any]) -> None:
        note = f"loss {event['loss']:.3f}  {event['images_per_second']:.0f} images/s"
        self.bar.update(self._task("train", event["steps"]), completed=event["step"], note=note)

    def _epoch(self, event: dict[str, Any]) -> None:
        best = "  best so far" if event["is_best"] else ""
        scores = f"dev CIDEr {event['cider']:.1f}  BLEU-4 {event['bleu4']:.1f}"
        self._line(f"epoch {event['epoch']}/{event['epochs']}  {scores}{best}")

    def _encode(self, event: dict[str, Any]) -> None:
        self.bar.update(self._task("encode", event["total"]), completed=event["done"])

    def _broken(self, event: dict[str, Any]) -> None:
        self._line(f"skipped, {event['count']} so far: {event['line']}")
