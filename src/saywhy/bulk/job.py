"""A run over many images: from shards to finished parts, in one process with others that read ahead.

shards ──► Plan: parts that are left ──► engine: rows of each part ──► Output: parts, and one file at the end
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset as TorchDataset

from saywhy.bulk.output import Output
from saywhy.bulk.parts import Part, Plan, Work
from saywhy.bulk.row_files import Row
from saywhy.bulk.shards import ImageFiles, ImageRef, Shard, digest_of
from saywhy.bulk.tasks import Task, Worker
from saywhy.errors import UnreadableImage, UserError
from saywhy.inference.batches import Errors, ImageBatch, ImageBatches, read_ahead


@dataclass(frozen=True)
class Job:
    """What to do with which images.

    Attributes:
        shards: the images.
        task: what is done with each of them.
        output: where the rows go.
        part_size: images per part; a killed run repeats the computation of at most one part per process.
        batch_size: images that go through the model together.
        workers: processes that read images ahead.
    """

    shards: Sequence[Shard]
    task: Task
    output: Output
    part_size: int = 1024
    batch_size: int = 16
    workers: int = 0

    def settings(self, worker: Worker) -> dict[str, Any]:
        """What the rows depend on, and what a run that continues must have in common."""
        files = sum(len(shard.paths) for shard in self.shards if isinstance(shard, ImageFiles))
        inputs = {"shards": len(self.shards), "image files": files, "names": digest_of(self.shards)}
        return {**worker.settings(), "input": inputs, "part size": self.part_size}


@dataclass(frozen=True)
class WrittenPart:
    """A part that has been written, and how many of its images have an error instead of a result."""

    part: Part
    errors: int


Engine = Callable[[Job, Iterator[Work], Worker], Iterator[WrittenPart]]
"""Does parts of a job, in any order, and yields each one when it is written."""


@dataclass
class Summary:
    """What a run has done.

    Attributes:
        images: rows in the output.
        written: rows of this run.
        errors: those of them that have an error.
        broken: shards that could not be read; the output is complete if there are none.
        was_finished: an earlier run has finished the output, and this one has done nothing.
    """

    images: int = 0
    written: int = 0
    errors: int = 0
    broken: int = 0
    was_finished: bool = False


def run(
    job: Job,
    engine: Engine,
    on_broken: Callable[[UserError], None],
    progress: Callable[[int], None] = lambda images: None,
) -> Summary:
    """Do what is left of a job, and finish its output.

    Args:
        job: what to do.
        engine: `run_here`, or another.
        on_broken: called with the error of a shard that cannot be read; the others are done.
        progress: called with the number of rows that exist.
    """
    worker = job.task.load()
    settings, summary = job.settings(worker), Summary()
    with job.output.opened(settings) as summary.was_finished:
        if summary.was_finished:
            return summary
        done = job.output.done()
        plan = Plan(job.shards, job.part_size, done, on_broken)
        summary.images = sum(map(len, done))
        progress(summary.images)
        for written in engine(job, plan.remaining(), worker):
            summary.images += len(written.part)
            summary.written += len(written.part)
            summary.errors += written.errors
            progress(summary.images)
        summary.broken = plan.broken
        if not plan.broken:
            job.output.finish(plan.parts, settings)
    return summary


def run_here(job: Job, works: Iterable[Work], worker: Worker) -> Iterator[WrittenPart]:
    """The engine that does all parts in this process, with others that read images ahead."""
    keys = (key for work in works for key in batches_of(work, job.batch_size))
    rows: list[Row] = []
    for key, batch, errors in read_ahead(_EncodedBatches(worker.reader), keys, job.workers):
        rows += _rows(key, batch, errors, worker)
        if key.is_last:
            job.output.write(key.part, rows)
            yield WrittenPart(key.part, sum(row.get("error") is not None for row in rows))
            rows = []


@dataclass(frozen=True)
class BatchKey:
    """A batch of a part: where its images are, and the index of the first."""

    part: Part
    start: int
    refs: Sequence[ImageRef]
    is_last: bool

    @property
    def numbered(self) -> Iterator[tuple[int, ImageRef]]:
        """The images with their indices."""
        return enumerate(self.refs, start=self.part.first_index + self.start)


def batches_of(work: Work, size: int) -> Iterator[BatchKey]:
    """The batches of a part."""
    for start in range(0, len(work.refs), size):
        yield BatchKey(work.part, start, work.refs[start : start + size], start + size >= len(work.refs))


class _EncodedBatches(TorchDataset):
    """Reads and prepares the batch of a key, in any process."""

    def __init__(self, reader: ImageBatches) -> None:
        self.reader = reader

    def __getitem__(self, key: BatchKey) -> tuple[BatchKey, ImageBatch | None, Errors]:
        pairs, errors = [], list[tuple[int, UnreadableImage]]()
        for index, ref in key.numbered:
            try:
                pairs.append((index, ref.read()))
            except UnreadableImage as error:
                errors.append((index, error))
        batch, unreadable = self.reader.load_batch(pairs)
        return key, batch, [*errors, *unreadable]


def _rows(key: BatchKey, batch: ImageBatch | None, errors: Errors, worker: Worker) -> list[Row]:
    """A row for each image of a batch, in order: its result, or why there is none."""
    results: dict[int, Row] = {index: {"error": str(error)} for index, error in errors}
    if batch is not None:
        results |= zip(batch.indices, worker(batch), strict=True)
    return [{"image": ref.image, "shard": ref.shard, "key": ref.key, **results[index]} for index, ref in key.numbered]
