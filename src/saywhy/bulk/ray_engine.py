"""The engine that does parts on the machines of a Ray cluster.

One actor per processor or GPU loads the model once and does one part after another; it writes each part itself, under a
name that says which images it holds. If an actor dies, with its process or its machine, another one does its parts: a
file then appears once, or is replaced by the same rows. Actors are replaced as soon as the cluster has room.

Without a cluster, Ray starts one on this machine. All machines need the inputs and the output at the same paths.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from saywhy.bulk.job import Job, Worker, WrittenPart, run_here
from saywhy.bulk.parts import Part, Work
from saywhy.errors import UserError
from saywhy.inference.model import choose_device

QUEUE = 2  # parts that an actor has been given, so that it does not wait for the next one
ATTEMPTS = 5
"""How often a part is tried; images that kill their process each time end the run."""


def run_on_ray(job: Job, works: Iterator[Work], worker: Worker) -> Iterator[WrittenPart]:
    """Do all parts on a Ray cluster; `worker` is not used, each actor loads its own."""
    first = next(works, None)
    if first is None:
        return
    ray = _connected()
    runners = _Runners(ray, job, chain([first], works))
    try:
        for written in runners.results():
            _require_file(job, written)
            yield written
    finally:
        runners.stop()


class _Runners:
    """The actors of a run: gives them parts, and the parts of dead ones to others."""

    def __init__(self, ray: Any, job: Job, works: Iterator[Work]) -> None:
        self.ray, self.works = ray, works
        self.again: list[Work] = []
        self.is_exhausted = False
        self.attempts: Counter[Part | None] = Counter()  # failed ones, by part; None while an actor starts
        self.running: dict[Any, tuple[Any, Work | None]] = {}  # call → actor, and its part; None while it starts
        self.idle: list[Any] = []
        needs, count = _size(ray.cluster_resources(), job)
        self.runner = ray.remote(max_restarts=0, **needs)(PartRunner)
        self.job = replace(job, shards=())  # small, as it is sent to each actor
        self.alive: list[Any] = []
        for _ in range(count):
            self._start()

    def results(self) -> Iterator[WrittenPart]:
        """The parts, each when it is written."""
        while not self.is_exhausted or self.again or any(work for _, work in self.running.values()):
            (call,), _ = self.ray.wait(list(self.running), num_returns=1)
            runner, work = self.running.pop(call)
            try:
                written = self.ray.get(call)
            except self.ray.exceptions.RayActorError as error:
                self._replace(runner, work, str(error))
                continue
            except self.ray.exceptions.RayTaskError as error:
                raise (error.cause if isinstance(error.cause, UserError | OSError) else error) from None
            for _ in range(1 if work else QUEUE):
                self._give(runner)
            if work:
                yield written

    def stop(self) -> None:
        """End all actors, also those that the cluster has no room for yet."""
        for runner in self.alive:
            self.ray.kill(runner)

    def _start(self) -> None:
        """Start an actor; it gets parts when it is ready, as it may wait for room for a long time."""
        runner = self.runner.remote(self.job)
        self.alive.append(runner)
        self.running[runner.is_ready.remote()] = runner, None

    def _give(self, runner: Any) -> None:
        work = self.again.pop() if self.again else next(self.works, None)
        if work is None:
            self.is_exhausted = True
            self.idle.append(runner)
            return
        self.running[runner.run.remote(work)] = runner, work

    def _replace(self, runner: Any, work: Work | None, message: str) -> None:
        """Give the part of a dead actor to another one, and start an actor in its place."""
        if "creation task" in message:
            raise UserError(f"a Ray worker cannot load the model: {message.strip().splitlines()[-1]}")
        if runner in self.alive:
            self.alive.remove(runner)
            self.idle = [other for other in self.idle if other is not runner]
            self.ray.kill(runner)  # where it only could not be reached
            self._start()
        part = work.part if work else None
        self.attempts[part] += 1
        if self.attempts[part] == ATTEMPTS:
            what = f"the Ray worker of {part.name}" if part else "a Ray worker"
            raise UserError(
                f"{what} has died {ATTEMPTS} times; has it enough memory? ({message.strip().splitlines()[0]})"
            )
        if work:
            self.again.append(work)
            if self.idle:
                self._give(self.idle.pop())


class PartRunner:
    """Does parts in a process of the cluster."""

    def __init__(self, job: Job) -> None:
        self.job, self.worker = job, job.task.load()

    def is_ready(self) -> bool:
        """Whether the model is loaded: this is answered when it is."""
        return True

    def run(self, work: Work) -> WrittenPart:
        """Do one part."""
        (written,) = run_here(self.job, [work], self.worker)
        return written


def _connected() -> Any:
    """Ray, connected to the cluster of $RAY_ADDRESS or of this machine, or to a new one on this machine."""
    try:
        import ray
    except ImportError:
        raise UserError('--engine ray needs Ray: pip install "saywhy[ray]"') from None
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray raises many kinds, also plain RuntimeErrors
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        line = f"no Ray cluster answers ({reason}); start one with `ray start --head`, or unset RAY_ADDRESS"
        raise UserError(line) from None
    return ray


def _size(resources: dict[str, float], job: Job) -> tuple[dict[str, int], int]:
    """What an actor needs, and how many the cluster has room for: one for each GPU, or for each processor."""
    needs = {"num_cpus": 1 + job.workers, "num_gpus": int(_uses_gpu(job, resources))}
    count = int(resources.get("CPU", 0) // needs["num_cpus"])
    if needs["num_gpus"]:
        count = min(count, int(resources.get("GPU", 0)))
    if count < 1:
        raise UserError(f"the Ray cluster has no room for a worker: it needs {needs}, and has {_summary(resources)}")
    return needs, count


def _uses_gpu(job: Job, resources: dict[str, float]) -> bool:
    device = job.task.choice.device
    return resources.get("GPU", 0) >= 1 if device == "auto" else choose_device(device).type == "cuda"


def _summary(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


def _require_file(job: Job, written: WrittenPart) -> None:
    """Raise a `UserError` if a machine of the cluster has written a part where this one does not see it."""
    if not job.output.file(written.part).exists():
        raise UserError(
            f"{job.output.path}: a part that a worker has written is not here; --out must be on a file system that "
            "all machines of the cluster share"
        )
