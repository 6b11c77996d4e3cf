"""What an audit has found out of an image, kept on disk: an interrupted audit goes on, and the next one starts there.

One `.npz` an image and stage, in a folder named after all that its numbers depend on. Files appear whole or not at
all. One that was cut short is made again; one damaged in its middle is found out when it is read, and deleted.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from saywhy.errors import UserError
from saywhy.files import whole_file, write_text

Arrays = Mapping[str, np.ndarray]


class ResultCache:
    """Arrays by the name of an image."""

    def __init__(self, folder: Path, stage: str, key: Mapping[str, Any]) -> None:
        about = json.dumps({"stage": stage, **key}, sort_keys=True, default=str)
        self.folder = folder / f"{stage}-{hashlib.blake2b(about.encode(), digest_size=8).hexdigest()}"
        self.parent = folder
        try:
            if not (self.folder / "about.json").exists():
                write_text(self.folder / "about.json", about + "\n")
        except OSError as error:
            raise self._unusable(error) from None

    def has(self, name: str) -> bool:
        """Whether this image is done, and its file can be read."""
        if not (path := self._path(name)).exists():
            return False
        try:
            with zipfile.ZipFile(path) as held:  # its table stands at the end: a file cut short has none
                return bool(held.namelist())
        except (OSError, zipfile.BadZipFile):
            return False

    def load(self, name: str, but: str | None = None) -> dict[str, np.ndarray]:
        """The arrays of an image that is done; those whose names begin with `but` are not read."""
        path = self._path(name)
        try:
            with np.load(path, allow_pickle=False) as held:
                return {key: held[key] for key in held if but is None or not key.startswith(but)}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            path.unlink(missing_ok=True)
            raise UserError(f"{path}: was damaged ({error}) and is deleted; run the audit again") from None

    def save(self, name: str, arrays: Arrays) -> None:
        """Keep the arrays of an image."""
        try:
            with whole_file(self._path(name)) as part, part.open("wb") as file:
                np.savez(file, **arrays)  # type: ignore[arg-type]
        except OSError as error:
            raise self._unusable(error) from None

    def _path(self, name: str) -> Path:
        return self.folder / f"{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}.npz"

    def _unusable(self, error: OSError) -> UserError:
        return UserError(f"{self.parent}: cannot be used ({error.strerror}); free some space or choose another --cache")
