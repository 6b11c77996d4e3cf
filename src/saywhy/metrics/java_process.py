"""Finding and running the Java programs of METEOR and SPICE."""

from __future__ import annotations

import contextlib
import importlib.util
import queue
import re
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO

from saywhy.metrics.base import MetricUnavailable

# Decimal points and UTF-8, whatever the locale of the machine.
_SETTINGS = ["-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US"]


def java_command(metric: str) -> list[str]:
    """The first words of a Java command line."""
    java = shutil.which("java")
    if java is None:
        raise MetricUnavailable(
            f"{metric} needs Java 8 or newer: install it, for instance with apt install default-jre-headless"
        )
    return [java, *_SETTINGS]


def find_jar(metric: str, jar: str) -> Path:
    """The path of a metric's program inside pycocoevalcap, which is located without being imported."""
    spec = importlib.util.find_spec("pycocoevalcap")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        if (path := Path(folder) / jar).is_file():
            return path
    raise MetricUnavailable(
        f'{metric} needs the program {Path(jar).name}: install it with pip install "saywhy[meteor]"'
    )


@lru_cache(maxsize=1)
def java_version() -> str:
    """The version of the installed Java, for the signature."""
    process = subprocess.run([*java_command("METEOR"), "-version"], capture_output=True, text=True, check=False)
    version = re.search(r'version "([^"]+)"', process.stderr)
    return version[1] if version else "unknown"


class JavaProcess:
    """A Java process that answers lines with lines; if it ends or stops answering, `MetricUnavailable` is raised.

    Threads read both of its outputs and write its input, so that a full pipe cannot block.
    """

    def __init__(self, metric: str, command: list[str], folder: Path, timeout: float) -> None:
        self._metric, self._timeout = metric, timeout
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._errors: deque[str] = deque(maxlen=20)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace"
        )
        self._in_thread(self._read, self._process.stdout)
        self._stderr = self._in_thread(self._errors.extend, self._process.stderr)

    def send(self, lines: Iterable[str], answers: int) -> list[str]:
        """Send lines and wait for `answers` lines."""
        self._in_thread(self._write, [f"{line}\n" for line in lines])
        return [self._next() for _ in range(answers)]

    def _in_thread(self, work: Callable[..., object], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        return thread

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self._answers.put(line.strip())
        self._answers.put(None)

    def _write(self, lines: list[str]) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):  # the process ended; `_next` reports it
            stdin.writelines(lines)
            stdin.flush()

    def _next(self) -> str:
        try:
            answer = self._answers.get(timeout=self._timeout)
        except queue.Empty:
            raise MetricUnavailable(
                f"{self._metric}: Java gave no answer for {self._timeout:.0f} s and was stopped"
            ) from None
        if answer is None:
            self._stderr.join(1)
            reason = next((line.strip() for line in self._errors if line.strip()), "no error message")
            raise MetricUnavailable(f"{self._metric}: Java ended early: {reason}")
        return answer

    def __enter__(self) -> JavaProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
