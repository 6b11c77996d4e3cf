"""`saywhy train --processes N`: the same command in several processes on this machine, which end together.

Over several machines, torchrun starts the processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from saywhy.cli.common import print_error

LAUNCHED = "SAYWHY_LAUNCHED"
"""Set for the processes that are started here."""
LOST = 75
"""Exit code of a process that stops because another one has ended; it prints nothing."""
GRACE = 10.0  # seconds until processes that do not end are killed
SETTLE = 5.0  # seconds for the others to fail too: the first one may be about to print the same line
POLL = 0.1  # seconds


def run_processes(count: int, out: Path) -> int:
    """Run the command line of this process `count` times, as one training run; the exit code."""
    with tempfile.TemporaryFile("w+") as others, _processes(count, others) as processes:
        try:
            while not any(codes := [process.poll() or 0 for process in processes]):
                if all(process.returncode == 0 for process in processes):
                    return 0
                time.sleep(POLL)
            _wait(processes, SETTLE)
            codes = [process.poll() or 0 for process in processes]
        except KeyboardInterrupt:  # the first process prints a line when it gets the signal
            return 128 + signal.SIGINT
        return _report(codes, others, out)


def _wait(processes: Sequence[subprocess.Popen], seconds: float) -> None:
    """Wait until all processes have ended, at most this long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(process.poll() is None for process in processes):
        time.sleep(POLL)


def _report(codes: Sequence[int], others: IO[str], out: Path) -> int:
    """Print one line about the process that has failed, unless it has printed one; the exit code."""
    from saywhy.training.lost_process import how_to_continue

    killed = [number for number, code in enumerate(codes) if code < 0]
    failed = [number for number, code in enumerate(codes) if code > 0 and code != LOST]
    if killed:
        name = signal.Signals(-codes[killed[0]]).name
        print_error(f"process {killed[0] + 1} of {len(codes)} was killed ({name}); {how_to_continue(out)}")
        return 1
    if failed and failed[0] > 0:
        others.seek(0)
        lines = [line for line in others.read().splitlines() if line.startswith("saywhy: ")]
        print_error((lines or ["saywhy: a process has failed"])[0].removeprefix("saywhy: "))
    return codes[failed[0]] if failed else 1


@contextlib.contextmanager
def _processes(count: int, others: IO[str]) -> Iterator[list[subprocess.Popen]]:
    """The processes; whatever happens, none of them goes on afterwards. The first one has the terminal."""
    arguments = _without_processes(sys.argv[1:])
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // count))),
        LAUNCHED: "1",
    }
    processes = []
    try:
        for rank in range(count):
            environment = {**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            stream = others if rank else None
            command = [sys.executable, "-m", "saywhy", *arguments]
            processes.append(subprocess.Popen(command, env=environment, stdout=stream, stderr=stream))
        yield processes
    finally:
        _end(processes)


def _end(processes: Sequence[subprocess.Popen]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:  # it waits for the others, in a call that no signal interrupts
            process.kill()
            process.wait()


def _without_processes(arguments: Sequence[str]) -> list[str]:
    """The arguments without --processes.

    >>> _without_processes(["train", "a.toml", "--processes", "2", "--out", "b"])
    ['train', 'a.toml', '--out', 'b']
    """
    kept, skip = [], False
    for argument in arguments:
        if not skip and argument != "--processes" and not argument.startswith("--processes="):
            kept.append(argument)
        skip = argument == "--processes"
    return kept


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
