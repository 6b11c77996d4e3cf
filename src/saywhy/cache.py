"""Arrays that are costly to make, kept on disk: encoder features, decoded images.

A cache is a folder named by a digest of what its rows are, so that rows made by another encoder, with other
weights or another preprocessing are never read by mistake:

    <folder>/<digest>/about.json      the key in plain words, the rows' shape and type
                      index           a line a row: row number, its key, a checksum of the two
                      rows-00000.bin  rows one after the other, about 256 MB a file
                      lock            held while a process writes

A row's data reaches the disk before its line in the index is written, and the line counts only when it is
whole. So a process may be killed, or the power fail, at any moment: what the index claims is there, and
what was half done is done again. Any number of processes may read and write at once; writers take turns.

Rows are read through a memory map of their file, opened for the call and dropped after it, so that memory
holds the index alone, some 200 bytes a row, and no file stays open. They are written with ordinary writes: a
full disk is then an error, where a memory map would kill the process.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from saywhy.cache_index import Index, locked
from saywhy.errors import UnreadableImage, UserError
from saywhy.files import write_text

SHARD_BYTES = 256 * 2**20

_BINARY = getattr(os, "O_BINARY", 0)  # without it Windows would change line ends
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class ArrayCache:
    """Rows of one shape and type on disk, each computed once and found by a key of its own.

    `key` says what the rows are; any JSON value. `capacity`, if given, is how many rows there will be:
    too little room on the disk is then an error at once rather than hours later.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = ArrayCache(folder, (2,), "float16", {"encoder": "tiny"})
    ...     cache.put(["cat", "dog"], np.array([[1, 2], [3, 4]], dtype="float16"))
    ...     cache.has(["dog", "cow"]), cache.get(["dog"])
    (array([ True, False]), array([[3., 4.]], dtype=float16))
    """

    def __init__(
        self,
        folder: str | Path,
        shape: tuple[int, ...],
        dtype: npt.DTypeLike,
        key: str | dict[str, Any],
        capacity: int | None = None,
    ) -> None:
        self.shape, self.dtype, self.key = tuple(shape), np.dtype(dtype), key
        self.row_bytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.rows_per_shard = max(1, SHARD_BYTES // self.row_bytes)
        about = json.dumps({"key": key, "shape": self.shape, "dtype": self.dtype.str}, sort_keys=True)
        self.parent = Path(folder)
        self.folder = self.parent / hashlib.blake2b(about.encode(), digest_size=16).hexdigest()
        with self._speaking():
            if not (self.folder / "about.json").exists():
                write_text(self.folder / "about.json", about + "\n")
        self._held: dict[int, int] = {}  # shard → rows in its file
        self._index = Index(self.folder / "index", self._on_disk)
        self._writing = threading.Lock()
        if capacity is not None:
            self._require_room(capacity)

    def __len__(self) -> int:
        return len(self._index.refresh())

    def __reduce__(self) -> tuple[Any, ...]:  # what a worker process needs to open it for itself
        return ArrayCache, (self.parent, self.shape, self.dtype, self.key)

    def has(self, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Say of each key whether its row is there, also rows that another process has just written."""
        rows = self._index.refresh()
        return np.array([key in rows for key in keys], dtype=bool)

    def get(self, keys: Sequence[str]) -> np.ndarray:
        """Copy the rows of `keys`, (len(keys), *shape); a `KeyError` names a key that is not there."""
        known = self._index.rows
        if any(key not in known for key in keys):
            known = self._index.refresh()
        rows = np.array([known[key] for key in keys], dtype=np.int64)
        values = np.empty((len(rows), *self.shape), dtype=self.dtype)
        for shard in np.unique(rows // self.rows_per_shard):
            places = np.flatnonzero(rows // self.rows_per_shard == shard)
            self._read(int(shard), rows[places] % self.rows_per_shard, places, values)
        return values

    def put(self, keys: Sequence[str], values: np.ndarray) -> None:
        """Keep a row for each key; keys that are there already stay as they are."""
        values = np.asarray(values)
        if values.shape != (len(keys), *self.shape):
            raise ValueError(f"{len(keys)} keys need values {(len(keys), *self.shape)}, not {values.shape}")
        values = values.astype(self.dtype, casting="same_kind", copy=False)
        with self._speaking(), self._writing, locked(self.folder / "lock"):
            there = self._index.refresh(mend=True)
            new: dict[str, int] = {}  # key → its place in `values`; of a key given twice the first counts
            for place, key in enumerate(keys):
                if key not in there:
                    new.setdefault(key, place)
            if new:
                self._write(self._index.next_row, values[list(new.values())])
                self._index.append(list(new))

    def _shard(self, number: int) -> Path:
        return self.folder / f"rows-{number:05}.bin"

    def _on_disk(self, row: int) -> bool:
        """Say whether the files reach as far as `row`; they only grow, so one look a shard will mostly do."""
        shard, row = divmod(row, self.rows_per_shard)
        if row >= self._held.get(shard, 0):
            with contextlib.suppress(FileNotFoundError):
                self._held[shard] = self._shard(shard).stat().st_size // self.row_bytes
        return row < self._held.get(shard, 0)

    def _read(self, shard: int, rows: np.ndarray, places: np.ndarray, values: np.ndarray) -> None:
        path = self._shard(shard)
        with self._speaking():
            held = path.stat().st_size // self.row_bytes
            if rows.max() >= held:  # beyond a file's end a map would kill the process
                raise UserError(f"{path}: cut short; delete {self.folder} and compute it again")
            mapped = np.memmap(path, self.dtype, mode="r", shape=(held, *self.shape))
            values[places] = mapped[rows]

    def _write(self, first: int, values: np.ndarray) -> None:
        """Write rows from number `first` on and see them to the disk."""
        while len(values):
            shard, row = divmod(first, self.rows_per_shard)
            here = values[: self.rows_per_shard - row]
            with os.fdopen(os.open(self._shard(shard), os.O_RDWR | os.O_CREAT | _BINARY, 0o666), "r+b") as file:
                file.seek(row * self.row_bytes)
                file.write(np.ascontiguousarray(here).view(np.uint8).reshape(-1).data)
                file.flush()
                os.fsync(file.fileno())
            first, values = first + len(here), values[len(here) :]

    def _require_room(self, capacity: int) -> None:
        needed = (capacity - len(self)) * self.row_bytes
        free = shutil.disk_usage(self.folder).free
        if needed > free:
            raise UserError(
                f"{self.parent}: {needed / 1e9:.1f} GB more are needed, the disk has {free / 1e9:.1f} GB; "
                "free some space or choose another cache folder"
            )

    @contextlib.contextmanager
    def _speaking(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            wrong = f"cannot be used ({error.strerror}); check its permissions"
            if error.errno in _FULL:
                wrong = "the disk is full (what is in the cache stays good); free some space"
            raise UserError(f"{self.parent}: {wrong} or choose another cache folder") from error


def content_key(path: str | Path) -> str:
    """Name a file by its contents, so that a renamed image is known and a changed one is not.

    Remembered by path, size and time of change: a file that stays as it is is read once.
    """
    try:
        status = os.stat(path)
        return _digest(os.fspath(path), status.st_size, status.st_mtime_ns)
    except OSError as error:
        raise UnreadableImage(f"{path}: cannot be read ({error.strerror}); check its name and permissions") from None


@functools.lru_cache(maxsize=2**18)
def _digest(path: str, size: int, mtime_ns: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type, return-value]
