"""The two metrics that only exist as Java programs: finding them, and talking to them."""

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

# Numbers are read and written with a full stop, words in UTF-8, whatever the machine is set to.
_SETTINGS = ["-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US"]


def java_command(metric: str) -> list[str]:
    """The beginning of every Java command line."""
    java = shutil.which("java")
    if java is None:
        raise MetricUnavailable(
            f"{metric} needs Java 8 or newer, from the system: for instance apt install default-jre-headless"
        )
    return [java, *_SETTINGS]


def program(metric: str, jar: str) -> Path:
    """Where pycocoevalcap keeps a metric's program; the package is looked up, not imported."""
    found = importlib.util.find_spec("pycocoevalcap")
    places = (found.submodule_search_locations or []) if found else []
    for place in places:
        if (path := Path(place) / jar).is_file():
            return path
    raise MetricUnavailable(f'{metric} needs the program {Path(jar).name}: pip install "saywhy[meteor]" brings it')


@lru_cache(maxsize=1)
def java_version() -> str:
    """The version that `java` gives itself, for the signature."""
    said = subprocess.run([*java_command("The version"), "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "([^"]+)"', said.stderr)
    return found[1] if found else "unknown"


class Conversation:
    """A process that answers lines with lines; if it dies or falls silent, this says so instead of waiting.

    Both its outputs are read all the time and its input is written beside, so no full pipe blocks anyone.
    """

    def __init__(self, metric: str, command: list[str], folder: Path, silence: float) -> None:
        self._metric, self._silence = metric, silence
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._complaints: deque[str] = deque(maxlen=20)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe, encoding="utf-8", errors="replace"
        )
        self._aside(self._listen, self._process.stdout)
        self._stderr = self._aside(self._complaints.extend, self._process.stderr)

    def ask(self, lines: Iterable[str], answers: int) -> list[str]:
        """Send lines, and wait for that many lines in return."""
        self._aside(self._say, [f"{line}\n" for line in lines])
        return [self._next() for _ in range(answers)]

    def _aside(self, work: Callable[..., object], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        thread.start()
        return thread

    def _listen(self, stream: IO[str]) -> None:
        for line in stream:
            self._answers.put(line.strip())
        self._answers.put(None)

    def _say(self, lines: list[str]) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it died: the end of its answers tells
            stdin.writelines(lines)
            stdin.flush()

    def _next(self) -> str:
        try:
            answer = self._answers.get(timeout=self._silence)
        except queue.Empty:
            raise MetricUnavailable(f"{self._metric}: Java said nothing for {self._silence:.0f} s; given up") from None
        if answer is None:
            self._stderr.join(1)
            last = next((line.strip() for line in self._complaints if line.strip()), "it gave no reason")
            raise MetricUnavailable(f"{self._metric}: Java ended early: {last}")
        return answer

    def __enter__(self) -> Conversation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
