"""Apply a function to many items in worker processes: results in order, few items in memory, progress."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
Progress = Callable[[int, int], None]
"""Called with the number of items done and the number of all items."""

CHUNK = 64
"""Items that a worker gets at once."""

MIN_ITEMS = 512
"""Fewer items are faster done in this process than in new ones."""


def map_in_workers(
    function: Callable[[Item], Result],
    items: Sequence[Item],
    workers: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Result]:
    """The function's result for each item, in order.

    Args:
        function: defined at the top of a module, so that it can be sent to a process.
        items: what it is applied to.
        workers: number of processes; 0 uses this one, None one per core.
        progress: called after each chunk.
    """
    count = _cores() if workers is None else workers
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    in_this_process = count == 0 or not chunks or (workers is None and len(items) < MIN_ITEMS)
    results = map(_Chunks(function), chunks) if in_this_process else _in_processes(_Chunks(function), chunks, count)
    done = 0
    for chunk in results:
        yield from chunk
        done += len(chunk)
        if progress:
            progress(done, len(items))


class _Chunks:
    """A function of a chunk of items."""

    def __init__(self, function: Callable) -> None:
        self.function = function

    def __call__(self, chunk: Sequence) -> list:
        return [self.function(item) for item in chunk]


def _in_processes(function: _Chunks, chunks: list, workers: int) -> Iterator[list]:
    pool = ProcessPoolExecutor(min(workers, len(chunks)), initializer=_start_worker)
    try:
        waiting: deque[Future] = deque()
        for chunk in chunks:
            waiting.append(pool.submit(function, chunk))
            if len(waiting) > 4 * workers:  # results that nobody has taken yet are in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leave Ctrl-C to the main process, and end with it even if it is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()


def end_with_parent(*_: object) -> None:
    """End this worker process when its parent ends, whenever that is and even if it is killed.

    It ignores its arguments, so that a `DataLoader` can call it in its workers. Their own check remembers the parent
    when the worker begins to work, and never notices a parent that had ended by then.
    """
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_exit_after, args=[parent], daemon=True).start()


def _exit_after(process: Any) -> None:
    process.join()
    os._exit(1)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
