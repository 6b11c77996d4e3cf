"""The engine that does parts on the machines of a Ray cluster.

One actor per processor or GPU loads the model once and does one part after another; it writes each part itself, under a
name that says which images it holds. If an actor dies, Ray starts it again, on another machine if need be, and repeats
its part: the file then appears once, or is replaced by the same rows.

Without a cluster, Ray starts one on this machine. All machines need the inputs and the output at the same paths.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from saywhy.bulk.job import Job, Worker, WrittenPart, run_here
from saywhy.bulk.parts import Work
from saywhy.errors import UserError
from saywhy.inference.model import choose_device

QUEUE = 2  # parts that an actor has been given, so that it does not wait for the next one
ATTEMPTS = 5
"""How often a part is repeated when its process dies; images that kill it each time end the run."""


def run_on_ray(job: Job, works: Iterator[Work], worker: Worker) -> Iterator[WrittenPart]:
    """Do all parts on a Ray cluster; `worker` is not used, each actor loads its own."""
    ray = _connected()
    actors = deque(_actors(ray, job))
    running = {actor.run.remote(work): actor for actor, work in zip(list(actors) * QUEUE, works, strict=False)}
    try:
        while running:
            (finished,), _ = ray.wait(list(running), num_returns=1)
            actor = running.pop(finished)
            written = _result(ray, finished)
            for work in islice(works, 1):
                running[actor.run.remote(work)] = actor
            _require_file(job, written)
            yield written
    finally:
        for actor in actors:
            ray.kill(actor)


class PartRunner:
    """Does parts in a process of the cluster."""

    def __init__(self, job: Job) -> None:
        self.job, self.worker = job, job.task.load()

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
    except (ConnectionError, ValueError) as error:
        line = f"no Ray cluster answers ({error}); start one with `ray start --head`, or unset RAY_ADDRESS"
        raise UserError(line) from None
    return ray


def _actors(ray: Any, job: Job) -> list[Any]:
    """An actor for each GPU, or for each processor that is not reading images for another one."""
    resources = ray.cluster_resources()
    needs = {"num_cpus": 1 + job.workers, "num_gpus": int(_uses_gpu(job, resources))}
    count = int(resources.get("CPU", 0) // needs["num_cpus"])
    if needs["num_gpus"]:
        count = min(count, int(resources["GPU"]))
    if count < 1:
        raise UserError(f"the Ray cluster has no room for a worker: it needs {needs}, and has {_summary(resources)}")
    runner = ray.remote(max_restarts=-1, max_task_retries=ATTEMPTS, **needs)(PartRunner)
    settings = replace(job, shards=())  # small enough to be part of the call, so that Ray can repeat it
    return [runner.remote(settings) for _ in range(count)]


def _uses_gpu(job: Job, resources: dict[str, float]) -> bool:
    device = job.task.choice.device
    return resources.get("GPU", 0) >= 1 if device == "auto" else choose_device(device).type == "cuda"


def _summary(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


def _result(ray: Any, finished: Any) -> WrittenPart:
    try:
        return ray.get(finished)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, UserError | OSError) else error) from None
    except ray.exceptions.RayActorError as error:
        raise UserError(_why_it_died(str(error))) from None


def _why_it_died(message: str) -> str:
    """One line of Ray's many."""
    lines = message.strip().splitlines()
    if "creation task" in message:
        return f"a Ray worker cannot load the model: {lines[-1]}"
    return f"the Ray worker of a part has died {ATTEMPTS + 1} times ({lines[0]}); has it enough memory?"


def _require_file(job: Job, written: WrittenPart) -> None:
    """Raise a `UserError` if a machine of the cluster has written a part where this one does not see it."""
    if not job.output.file(written.part).exists():
        raise UserError(
            f"{job.output.path}: a part that a worker has written is not here; --out must be on a file system that "
            "all machines of the cluster share"
        )
