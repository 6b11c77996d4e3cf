"""Read text and JSON files with one-line errors; write files that appear complete or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saywhy.errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# C0 and C1 control characters, DEL, line and paragraph separators, bidirectional overrides and isolates
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def read_text(path: str | Path) -> str:
    """Read a text file as UTF-8, with or without a byte order mark."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except (OSError, ValueError) as error:  # ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"{path}: cannot be read ({reason}); check its name and permissions") from None


def read_json(path: str | Path, advice: str = "correct or replace it") -> Any:
    """Read a JSON file; `advice` ends the error line if it is malformed."""
    return parse_json(read_text(path), path, advice)


def parse_json(text: str | bytes, source: str | Path, advice: str = "correct or replace it") -> Any:
    """Parse JSON; the error line for malformed text starts with `source` and ends with `advice`.

    >>> parse_json("[1,", "list.json")
    Traceback (most recent call last):
    ...
    saywhy.errors.UserError: list.json: malformed JSON at line 1, column 4 (Expecting value); correct or replace it
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        detail = f" at line {error.lineno}, column {error.colno} ({error.msg})"
    except UnicodeDecodeError as error:
        detail = f" (not UTF-8 text, byte {error.start})"
    except RecursionError:
        detail = " (nested too deeply)"
    except ValueError as error:  # such as an integer of more digits than Python converts
        detail = f" ({error})"
    raise UserError(f"{source}: malformed JSON{detail}; {advice}")


def is_unicode(text: str) -> bool:
    r"""Whether UTF-8 can encode a text; an escape in JSON may stand for half of a surrogate pair.

    >>> is_unicode("caf\u00e9"), is_unicode("\ud800")
    (True, False)
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file."""
    text = read_text(path)
    try:
        return tomllib.loads(text)
    except RecursionError:
        detail = "nested too deeply"
    except ValueError as error:  # malformed, or an integer of more digits than Python converts
        detail = str(error)
    raise UserError(f"{path}: not TOML ({detail}); correct it")


@contextlib.contextmanager
def whole_file(path: str | Path, sync: bool = True) -> Iterator[Path]:
    """Yield a temporary path in the folder of `path`, and rename it to `path` if the block raises nothing.

    With `sync` the data is on the disk before the name changes: a crash leaves the old file or the new one. An
    `OSError` names `path`, also where the system does not name a file (a full disk).
    """
    path = Path(path)
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:40]}.", suffix=".part")
        os.close(handle)
        part = Path(name)
        yield part
        if sync:
            with part.open("rb") as written:
                os.fsync(written.fileno())
        part.chmod(0o666 & ~_umask())
        part.replace(path)
    except OSError as error:
        if error.errno is not None and (error.filename is None or Path(os.fsdecode(error.filename)).suffix == ".part"):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write a complete UTF-8 text file; characters that UTF-8 cannot encode (from file names) become escapes."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", errors="backslashreplace")


@contextlib.contextmanager
def file_lock(path: Path, busy: str = "") -> Iterator[None]:
    """Hold a lock on a file, which is created and stays.

    If another process has it, raise a `UserError` with the line `busy`, or wait if there is none.

    The kernel holds the lock for this process, and not for the workers that it forks, so it ends with the process,
    also where the process is killed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            if fcntl:
                fcntl.lockf(file, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except (BlockingIOError, PermissionError):
            raise UserError(busy) from None
        yield


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def printable(text: object) -> str:
    r"""Text from a file name or a vocabulary, with control characters as visible escapes: safe for a terminal.

    Escape sequences cannot change the terminal, a line break cannot start a line of its own, and bidirectional
    overrides cannot reorder what is shown.

    >>> print(printable("photo\n\x1b[31m.jpg"))
    photo\n\x1b[31m.jpg
    """
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], str(text))
