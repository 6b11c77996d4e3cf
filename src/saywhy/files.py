"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside `path`; it takes that name only if the block ends well.

    The data reaches the disk before the name changes, so a crash leaves the old file or the new one.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    part = Path(name)
    try:
        yield part
        with part.open("rb") as written:
            os.fsync(written.fileno())
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a text file whole; what a file's name may hold and UTF-8 cannot is written as an escape."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
