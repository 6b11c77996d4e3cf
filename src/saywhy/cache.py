"""A cache on disk for arrays that are expensive to compute: decoded images, encoder features, audit results.

    <folder>/<stage>-<hash of key>/about.json     the key: everything that the arrays depend on
                                  /3f/<hash>.npz  the arrays of one item, spread over 256 sub-folders

Items computed with another model, other weights or other settings have another key and are never read by mistake.
A file is written under a temporary name and then renamed, so several processes may write the same item, and a
killed process leaves no incomplete item. Files are not flushed to the disk one by one: one that a power failure has
cut short counts as missing and is computed again.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from saywhy.errors import UnreadableImage, UserError
from saywhy.files import whole_file, write_text

Arrays = Mapping[str, np.ndarray]

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DAMAGED = (ValueError, EOFError, KeyError, NotImplementedError, zipfile.BadZipFile, zlib.error)


class ItemCache(Protocol):
    """What computing missing items needs of a cache."""

    def has(self, name: str) -> bool:
        """Whether the item is cached."""

    def save(self, name: str, arrays: Arrays) -> None:
        """Write the arrays of an item."""


class DiskCache:
    """Named arrays per item, on disk.

    Args:
        folder: where caches are; one folder can hold several stages and keys.
        stage: what is cached, a word that can be part of a file name.
        key: everything that the arrays depend on besides the item; any JSON values.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cache = DiskCache(Path(folder), "features", {"encoder": "tiny"})
    ...     cache.save("dog.jpg", {"vectors": np.ones(2)})
    ...     cache.has("dog.jpg"), cache.has("cow.jpg"), cache.load("dog.jpg")
    (True, False, {'vectors': array([1., 1.])})
    """

    def __init__(self, folder: Path, stage: str, key: Mapping[str, Any]) -> None:
        about = json.dumps({"stage": stage, **key}, sort_keys=True, default=str)
        self.parent = Path(folder)
        self.folder = self.parent / f"{stage}-{hashlib.blake2b(about.encode(), digest_size=8).hexdigest()}"
        try:
            if not (self.folder / "about.json").exists():
                write_text(self.folder / "about.json", about + "\n")
        except OSError as error:
            raise self._disk_error(error) from None

    def has(self, name: str) -> bool:
        """Whether the item is cached; an incomplete file counts as missing."""
        try:
            with zipfile.ZipFile(self._path(name)) as archive:  # its directory is at the end of the file
                return bool(archive.namelist())
        except (OSError, zipfile.BadZipFile):
            return False

    def load(self, name: str, skip: str | None = None) -> dict[str, np.ndarray]:
        """The arrays of a cached item; those whose names start with `skip` are not read."""
        path = self._path(name)
        try:
            with np.load(path, allow_pickle=False) as archive:
                return {key: archive[key] for key in archive if skip is None or not key.startswith(skip)}
        except OSError as error:
            raise self._disk_error(error) from None
        except _DAMAGED as error:
            path.unlink(missing_ok=True)
            raise UserError(f"{path}: damaged ({error}) and now deleted; run the same command again") from None

    def save(self, name: str, arrays: Arrays) -> None:
        """Write the arrays of an item; replaces what another process has written."""
        try:
            with whole_file(self._path(name), sync=False) as part, part.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise self._disk_error(error) from None

    def _path(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()
        return self.folder / digest[:2] / f"{digest}.npz"

    def _disk_error(self, error: OSError) -> UserError:
        problem = f"the cache cannot be used ({error.strerror}); check the permissions of this folder"
        if error.errno in _DISK_FULL:
            problem = "the disk is full (items already cached stay valid); free some space"
        return UserError(f"{self.parent}: {problem} or choose another cache folder with --cache")


def content_key(path: str | Path) -> str:
    """A hash of a file's contents: the same after renaming, another after editing.

    Remembered by path, size and modification time, so an unchanged file is read once per process.
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
