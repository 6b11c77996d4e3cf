"""Worker processes give what one process gives, in order, and end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from saywhy.data.worker_pool import map_in_workers


def square(number: int) -> int:
    return number * number


def process_of(number: int) -> int:
    return os.getpid()


def fail_at_70(number: int) -> int:
    if number == 70:
        raise ValueError("item 70")
    return number


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_results_come_in_order(workers: int) -> None:
    assert list(map_in_workers(square, range(1000), workers)) == [n * n for n in range(1000)]
    assert list(map_in_workers(square, [], workers)) == []


def test_few_items_and_no_workers_stay_in_this_process() -> None:
    assert set(map_in_workers(process_of, range(100))) == {os.getpid()}
    assert set(map_in_workers(process_of, range(1000), 0)) == {os.getpid()}
    assert os.getpid() not in set(map_in_workers(process_of, range(1000), 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_progress_is_reported_per_chunk(workers: int) -> None:
    calls: list[tuple[int, int]] = []
    list(map_in_workers(square, range(150), workers, lambda done, total: calls.append((done, total))))
    assert calls == [(64, 150), (128, 150), (150, 150)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_function_is_raised(workers: int) -> None:
    with pytest.raises(ValueError, match="item 70"):
        list(map_in_workers(fail_at_70, range(1000), workers))


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_workers_end_when_their_process_is_killed() -> None:
    code = """
import os, time
from saywhy.data.worker_pool import map_in_workers
def pid(number):
    time.sleep(0.01)
    return os.getpid()
for worker in map_in_workers(pid, range(100_000), 2):
    print(worker, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        workers = {int(process.stdout.readline()) for _ in range(200)}
        process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(_runs(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_runs(worker) for worker in workers)


def _runs(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
