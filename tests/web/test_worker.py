"""The thread of the models: order, batches, errors, and work that nobody waits for."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import pytest

import tiny
from saywhy.explain.request import ExplanationRequest
from saywhy.explain.word_by_word import WordByWord
from saywhy.web.explaining import OpenPasses
from saywhy.web.worker import CAPTION, DETAIL, PATIENCE, TAPPED, Job, Worker

Log = list[tuple[str, ...]]


class Steps(Job):
    """A job of a few units that writes what is done together into a log."""

    def __init__(self, log: Log, name: str, units: int = 1, urgency: int = DETAIL, key: Hashable = None) -> None:
        self.log, self.name, self.units, self.urgency, self.batch_key = log, name, units, urgency, key
        self.finished, self.rested, self.error = threading.Event(), threading.Event(), None

    @property
    def has_work(self) -> bool:
        return self.units > 0 and self.error is None

    def work(self, batch: Sequence[Any]) -> None:
        self.log.append(tuple(job.name for job in batch))
        for job in batch:
            job.units -= 1
            if not job.units:
                job.finished.set()

    def fail(self, error: Exception) -> None:
        self.error = error  # type: ignore[assignment]
        self.finished.set()

    def rest(self) -> None:
        self.rested.set()


class Gate(Steps):
    """A job that keeps the worker busy until it is opened."""

    def __init__(self, log: Log) -> None:
        super().__init__(log, "gate")
        self.begun, self.opened = threading.Event(), threading.Event()

    def work(self, batch: Sequence[Any]) -> None:
        self.begun.set()
        assert self.opened.wait(10)
        self.units = 0


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker(batch=3)
    yield worker
    worker.close()


def run(worker: Worker, log: Log, *jobs: Steps) -> None:
    """Submit jobs while the worker is busy, then let it do them."""
    gate = Gate(log)
    worker.submit(gate)
    assert gate.begun.wait(10)
    for job in jobs:
        worker.submit(job)
    gate.opened.set()
    for job in jobs:
        assert job.finished.wait(10)


def test_the_most_urgent_job_comes_first_and_is_finished_before_the_next(worker):
    log: Log = []
    jobs = Steps(log, "a", 2), Steps(log, "b", 2), Steps(log, "caption", 1, CAPTION), Steps(log, "tapped", 1, TAPPED)
    run(worker, log, *jobs)
    assert log == [("caption",), ("tapped",), ("a",), ("a",), ("b",), ("b",)]


def test_jobs_with_equal_keys_are_done_together_up_to_the_limit(worker):
    log: Log = []
    run(worker, log, *[Steps(log, name, key=name in "abde") for name in "abcde"])
    assert log == [("a", "b", "d"), ("c",), ("e",)]


def test_many_urgent_jobs_do_not_starve_the_others(worker):
    log: Log = []
    run(worker, log, Steps(log, "word", 1), *[Steps(log, "caption", 1, CAPTION) for _ in range(20)])
    assert log.index(("word",)) == PATIENCE


def test_an_error_reaches_its_jobs_and_the_worker_goes_on(worker):
    class Broken(Steps):
        def work(self, batch: Sequence[Any]) -> None:
            raise RuntimeError("broken")

    log: Log = []
    broken, other = Broken(log, "broken"), Steps(log, "other")
    run(worker, log, broken, other)
    assert str(broken.error) == "broken"
    assert log == [("other",)]
    assert worker.is_alive


def test_a_job_that_nobody_waits_for_is_dropped_and_frees_what_it_keeps(worker):
    log: Log = []
    gone, other = Steps(log, "gone", 0), Steps(log, "other")
    run_later = [gone, other]
    gate = Gate(log)
    worker.submit(gate)
    assert gate.begun.wait(10)
    for job in run_later:
        worker.submit(job)
    gate.opened.set()
    assert other.finished.wait(10)
    assert gone.rested.wait(10)
    assert log == [("other",)]


def test_a_job_is_submitted_once(worker):
    log: Log = []
    job = Steps(log, "a", 1)
    run(worker, log, job, job)
    assert log == [("a",)]


def test_only_a_few_explanations_keep_their_forward_pass():
    captioner, vocabulary = tiny.captioner("ada-lstm"), tiny.vocabulary()
    request = ExplanationRequest.parse(vocabulary, 9, caption="word0 word1 word2", methods=("lrp",))
    details = {"source": "", "model": "", "size": (64, 64), "crop": (0.0, 0.0, 64.0, 64.0), "input_size": 64}
    pixels = tiny.torch.zeros(1, 3, 64, 64, dtype=tiny.torch.uint8)
    several = [WordByWord(captioner, vocabulary, pixels, request.caption, request, details) for _ in range(4)]
    passes = OpenPasses(2)
    for steps in (*several, several[0]):
        passes.use(steps)
        steps.explain(len(steps.targets.labels[0]) - len(steps.missing))
    assert [steps.is_open for steps in several] == [True, False, False, True]
