"""Typed access to the fields of a JSON file, with one-line errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from saywhy.errors import UserError

REMEDY = "write it again with `saywhy evaluate --out`, or move it out of the folder"
KINDS: dict[type, str] = {
    **{str: "text", float: "a number", int: "a whole number"},
    **{bool: "true or false", list: "a list", dict: "an object"},
}
LARGEST = 1e300  # sums and means of smaller numbers are finite
T = TypeVar("T")


class Fields:
    """The fields of a JSON object; one that is missing or of another type raises a `UserError` that names it."""

    def __init__(self, content: object, path: Path, prefix: str = "") -> None:
        if not isinstance(content, dict):
            raise UserError(f"{path}: not a results file (the file holds no JSON object); {REMEDY}")
        self._content, self._path, self._prefix = content, path, prefix

    def get(self, name: str, kind: type[T]) -> T | None:
        """A field of this type; None if it is missing or null."""
        value = self._content.get(name)
        return None if value is None else self._checked(name, value, kind)

    def require(self, name: str, kind: type[T]) -> T:
        """A field of this type."""
        return self._checked(name, self._content.get(name), kind)

    def _checked(self, name: str, value: Any, kind: type[T]) -> T:
        if not _is(value, kind):
            problem = "is missing" if value is None else f"is not {KINDS[kind]}"
            raise UserError(f'{self._path}: not a results file (field "{self._prefix}{name}" {problem}); {REMEDY}')
        return value

    def child(self, name: str) -> Fields:
        """The fields of an object within."""
        return Fields(self.require(name, dict), self._path, f"{self._prefix}{name}.")

    def optional_child(self, name: str) -> Fields:
        """The fields of an object within; none if it is missing."""
        return Fields(self.get(name, dict) or {}, self._path, f"{self._prefix}{name}.")

    def children(self, name: str) -> list[Fields]:
        """The fields of each object of a list; none if it is missing."""
        items = enumerate(self.get(name, list) or [])
        return [Fields({"": item}, self._path, f"{self._prefix}{name}[{i}]").child("") for i, item in items]

    def numbers(self, name: str, count: int) -> tuple[float, ...]:
        """The first numbers of a list."""
        items = {f"[{i}]": item for i, item in enumerate(self.require(name, list))}
        fields = Fields(items, self._path, f"{self._prefix}{name}")
        return tuple(fields.require(f"[{i}]", float) for i in range(count))

    def names(self, name: str) -> tuple[str, ...]:
        """The names in a list, or the keys of an object; none if it is missing."""
        kind = dict if isinstance(self._content.get(name), dict) else list
        return tuple(map(str, self.get(name, kind) or ()))

    def __contains__(self, name: str) -> bool:
        return self._content.get(name) is not None


def _is(value: object, kind: type) -> bool:
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < LARGEST  # not NaN
    return isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
