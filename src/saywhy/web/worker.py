"""One thread for everything that the models compute.

A job works in units, such as a batch of captions or the explanation of one word. Between two units the worker turns to
the most urgent job, so that a caption does not wait for the maps of another picture.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from itertools import count
from threading import Condition, Thread
from typing import Any

logger = logging.getLogger(__name__)
CAPTION, TAPPED, DETAIL = range(3)
"""Urgencies: a caption, a word that somebody waits for, everything else."""
PATIENCE = 3
"""How many units of more urgent jobs come before one of those that wait."""


class Job(ABC):
    """Work for the models.

    Attributes:
        urgency: of the next unit; the smallest number first.
        batch_key: jobs with an equal key, other than None, can be done together.
    """

    urgency: int = DETAIL
    batch_key: Hashable = None

    @property
    @abstractmethod
    def has_work(self) -> bool:
        """Whether something is left to do, and somebody waits for it."""

    @abstractmethod
    def work(self, batch: Sequence[Any]) -> None:
        """Do one unit of this job, and of all jobs of the batch, which includes it."""

    @abstractmethod
    def fail(self, error: Exception) -> None:
        """Tell those who wait that the job failed."""

    def rest(self) -> None:  # noqa: B027  # most jobs keep nothing
        """Free what is needed for further units only; called when the job has no work left."""


class Worker:
    """A thread that does jobs.

    Args:
        batch: the most jobs that are done together.
        threads: of torch; None for torch's own choice.
    """

    def __init__(self, batch: int, threads: int | None = None) -> None:
        self.batch, self.threads = batch, threads
        self._waiting: list[tuple[int, Job]] = []
        self._running: Job | None = None
        self._number = 0  # of the job that runs
        self._numbers, self._changed, self._closed = count(), Condition(), False
        self._overtaken = 0  # units since one of the less urgent jobs that wait
        self._thread = Thread(target=self._run, name="saywhy-models", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Do a job, unless it waits or runs already."""
        with self._changed:
            if job is not self._running and all(job is not other for _, other in self._waiting):
                self._waiting.append((next(self._numbers), job))
            self._changed.notify()

    def close(self) -> None:
        """Finish the unit that is running, and stop."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def waiting(self) -> int:
        """The number of jobs that wait."""
        return len(self._waiting)

    def _run(self) -> None:
        if self.threads:
            import torch

            torch.set_num_threads(self.threads)
        while batch := self._next_batch():
            try:
                batch[0].work(batch)
            except Exception as error:
                for job in batch:
                    job.fail(error)
            with self._changed:
                self._running = None
                self._waiting += [(self._number, job) for job in batch]  # a job goes on before the next one begins

    def _next_batch(self) -> list[Job]:
        """The most urgent job, and others that can be done with it; nothing once the worker is closed."""
        with self._changed:
            while True:
                self._drop_finished()
                if self._closed:
                    return []
                if self._waiting:
                    break
                self._changed.wait()
            self._number, first = self._choose()
            same = [job for _, job in self._waiting if job is not first and _can_join(job, first)]
            batch = [first, *same[: self.batch - 1]]
            self._waiting = [entry for entry in self._waiting if all(entry[1] is not job for job in batch)]
            self._running = first
            return batch

    def _drop_finished(self) -> None:
        finished = [job for _, job in self._waiting if not job.has_work]
        self._waiting = [entry for entry in self._waiting if all(entry[1] is not job for job in finished)]
        for job in finished:
            job.rest()

    def _choose(self) -> tuple[int, Job]:
        """The most urgent job, the oldest of several; now and then one that is less urgent, so that none starves."""
        highest = min(job.urgency for _, job in self._waiting)
        others = [entry for entry in self._waiting if entry[1].urgency > highest]
        self._overtaken = self._overtaken + 1 if others else 0
        if self._overtaken > PATIENCE:
            self._overtaken = 0
            return min(others, key=lambda entry: (entry[1].urgency, entry[0]))
        return min(self._waiting, key=lambda entry: (entry[1].urgency, entry[0]))


def _can_join(job: Job, first: Job) -> bool:
    return first.batch_key is not None and job.batch_key == first.batch_key
