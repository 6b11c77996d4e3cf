"""The cache's book-keeping: which row is whose, and who may write."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl


class Index:
    """Which row is whose: an append-only text file, `row key checksum` a line.

    Lines that are torn or fail their checksum, or whose row is not in the files, count as absent.
    """

    def __init__(self, path: Path, on_disk: Callable[[int], bool]) -> None:
        self.path = path
        self.rows: dict[str, int] = {}
        self.next_row = 0
        self._on_disk = on_disk
        self._read_to = 0

    def refresh(self, mend: bool = False) -> dict[str, int]:
        """Take in lines added since; `mend`, under the lock only, cuts off a line a killed writer tore."""
        size = self.path.stat().st_size if self.path.exists() else 0
        if size < self._read_to:  # someone emptied the cache
            self.rows, self.next_row, self._read_to = {}, 0, 0
        if size > self._read_to:
            with self.path.open("rb") as file:
                file.seek(self._read_to)
                added = file.read()
            whole = added.rfind(b"\n") + 1
            self._take(added[:whole].split(b"\n"))
            self._read_to += whole
            if mend and whole < len(added):
                os.truncate(self.path, self._read_to)
        return self.rows

    def append(self, keys: Sequence[str]) -> None:
        """Claim the next rows for `keys`; only for who holds the lock and has written the rows."""
        lines = b"".join(_line(row, key) for row, key in enumerate(keys, start=self.next_row))
        with self.path.open("ab", buffering=0) as file:
            while lines:
                lines = lines[file.write(lines) :]
        self.refresh()

    def _take(self, lines: Sequence[bytes]) -> None:
        for line in filter(None, lines):
            with contextlib.suppress(ValueError):
                number, key, _ = line.decode("ascii").split(" ")
                row = int(number)
                if _line(row, key) != line + b"\n":
                    continue
                self.next_row = max(self.next_row, row + 1)
                if self._on_disk(row):
                    self.rows[key] = row


def _line(row: int, key: str) -> bytes:
    if key.split() != [key]:
        raise ValueError(f"a key must be one word, not {key!r}")
    claim = f"{row} {key}".encode("ascii")
    return b"%b %08x\n" % (claim, zlib.crc32(claim))


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of this name, waiting for it; the system frees it when its holder dies.

    The file is opened anew each time, because a lock belongs to an opened file and forked processes
    would share one that was opened before.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        _lock(file.fileno())
        yield


if sys.platform == "win32":

    def _lock(handle: int) -> None:
        while True:
            os.lseek(handle, 0, os.SEEK_SET)
            try:
                return msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
            except OSError:
                time.sleep(0.01)

else:

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX)
