"""Places that a command will write to, looked at before it begins its work."""

from __future__ import annotations

import os
from pathlib import Path

from saywhy.errors import UserError


def refuse_unwritable(option: str, path: Path | None, *, folder: bool = False) -> None:
    """Raise a `UserError` if no file (or folder) can be written at `path`; nothing is made yet."""
    if path is None:
        return
    if path.exists() and path.is_dir() != folder:
        there, wanted = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise UserError(f"{option} {path}: is {there}, and should be {wanted}; choose another name")
    place = path if folder else path.parent
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        why = "permission denied" if place.is_dir() else "not a folder"
        raise UserError(f"{option} {path}: cannot be written ({place}: {why}); choose another place")
