"""What `caption` and `explain` share for many images: the options --in, --out, --engine, and the run."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from saywhy.cli.common import LOG_INTERVAL, check_writable, print_error, progress_bar
from saywhy.errors import UserError, did_you_mean
from saywhy.files import printable

if TYPE_CHECKING:
    from saywhy.bulk.job import Engine, Summary
    from saywhy.bulk.tasks import Task

ENGINES = ("torch", "ray")


@dataclass(frozen=True)
class ManyImages:
    """The options of a run over many images; `parse` checks them."""

    inputs: Sequence[str]
    out: Path
    engine: str
    column: str
    part_size: int | None
    batch_size: int | None
    workers: int | None

    @classmethod
    def parse(
        cls,
        images: Sequence[str] | None,
        inputs: Sequence[str] | None,
        out: Path | None,
        engine: str,
        column: str | None,
        part_size: int | None,
        batch_size: int | None,
        workers: int | None,
    ) -> ManyImages | None:
        """The options of --in; None where images are given as arguments."""
        if engine not in ENGINES:
            raise UserError(f"unknown engine {engine!r}: {did_you_mean(engine, ENGINES)}")
        if inputs and images:
            raise UserError("images are given twice: give them as arguments, or with --in")
        if inputs:
            if out is None:
                raise UserError("--in needs --out: a .parquet or .jsonl file, or a folder")
            return cls(inputs, out, engine, column or "", part_size, batch_size, workers)
        if not images:
            raise UserError("no images: give files or folders, or many with --in")
        if engine == "ray" or column or part_size or workers is not None:
            raise UserError("--engine ray, --column, --part-size and --workers are for many images: add --in")
        return None

    def run(self, task: Task, out: Path, part_size: int = 1024) -> int:
        """Do the task with all images, and print what was done; the exit code."""
        from saywhy.bulk.find_inputs import find_shards
        from saywhy.bulk.job import Job, run
        from saywhy.bulk.output import Output

        output = Output(out, task.columns)
        check_writable("--out", out, folder=output.is_folder)
        shards = find_shards(self.inputs, self.column)
        engine, workers = _engine(self.engine, self.workers)
        job = Job(shards, task, output, self.part_size or part_size, self.batch_size or 1, workers)
        with _progress(sum(len(shard.names()) for shard in shards) if not _holds_many(shards) else None) as report:
            summary = run(job, engine, print_error, report)
        return _report(out, summary)


def _holds_many(shards: Sequence[object]) -> bool:
    """Whether the number of images is not known before the shards are opened."""
    from saywhy.bulk.shards import ImageFiles

    return not all(isinstance(shard, ImageFiles) for shard in shards)


def _engine(name: str, workers: int | None) -> tuple[Engine, int]:
    """The engine of this name, and how many processes read images for it."""
    if name == "ray":
        from saywhy.bulk.ray_engine import run_on_ray

        return run_on_ray, workers or 0
    from saywhy.bulk.job import run_here
    from saywhy.inference.batches import default_workers

    return run_here, default_workers() if workers is None else workers


def _report(out: Path, summary: Summary) -> int:
    """Print what a run has done; its exit code."""
    if summary.was_finished:
        print_error(f"{out}: is complete already; nothing was left to do")
        return 0
    if summary.broken:
        print_error(f"{out}: not complete: {summary.broken} of the inputs could not be read (named above)")
        return 2
    written = f"{summary.written:,} of them in this run, {summary.errors:,} of these with an error"
    print(f"{printable(out)}: {summary.images:,} images, {written}")
    return 0


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """Report how many images are done: a bar on a terminal, else a line every 30 seconds."""
    bar = progress_bar(transient=True)
    if bar.disable:
        yield _ProgressLines(total)
        return
    with bar:
        task = bar.add_task("images", total=total)
        yield lambda done: bar.update(task, completed=done)


class _ProgressLines:
    """A line every `LOG_INTERVAL` seconds on stderr."""

    def __init__(self, total: int | None) -> None:
        self.of = "" if total is None else f" of {total:,}"
        self.start: tuple[float, int] | None = None  # when, and how many rows an earlier run had written
        self.last = time.monotonic()

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        self.start = self.start or (now, done)
        began, earlier = self.start
        if now - self.last >= LOG_INTERVAL and done > earlier:
            self.last = now
            speed = (done - earlier) / (now - began)
            print(f"{done:,}{self.of} images, {speed:.1f} per second", file=sys.stderr, flush=True)
