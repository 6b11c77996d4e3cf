"""Tables of named entries (captioners, encoders, audits, readers …), which plugins can extend.

A registry looks for a name in three places, in this order:

1. entries that were registered by modules already imported;
2. its built-in modules, imported one by one until the name is found;
3. entry points of its group, such as `saywhy.captioners`, of every installed package.

`import_plugin` imports a module that no package declares as an entry point (the option `--import MODULE`).
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from saywhy.errors import UserError, did_you_mean

T = TypeVar("T")
R = TypeVar("R")


class Registry(Generic[T]):
    """Entries by name, added with a decorator.

    Args:
        kind: what the entries are, for error messages.
        entry_points: the entry point group in which other packages name their modules; None for no plugins.
        builtin: modules that register entries when they are imported.

    >>> shapes = Registry("shape")
    >>> @shapes.register("square")
    ... class Square: ...
    >>> shapes["square"] is Square
    True
    """

    def __init__(self, kind: str, entry_points: str | None = None, builtin: Sequence[str] = ()) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}
        self._modules: dict[str, str] = {}  # name → the module that registered it
        self._builtin = list(builtin)  # not imported yet
        self._packages = {module.partition(".")[0] for module in builtin}
        self._order = {module: place for place, module in enumerate(builtin)}
        self._group = entry_points
        self._entry_points: list[EntryPoint] | None = None  # not loaded yet; None before the first search

    def register(self, name: str) -> Callable[[T], T]:
        """Add the decorated entry under `name`; only a reloaded module may replace its own entry."""
        module = sys._getframe(1).f_globals.get("__name__", "?")

        def add(entry: T) -> T:
            if name in self._entries:
                self._check_reload(name, entry, module)
            self._entries[name] = entry
            self._modules[name] = module
            return entry

        return add

    def _check_reload(self, name: str, entry: T, module: str) -> None:
        other = self._modules[name]
        if other != module:
            raise UserError(f"{self.kind} {name!r} is registered by both {other} and {module}: rename one of them")
        if _qualified(self._entries[name]) != _qualified(entry):
            raise UserError(f"{self.kind} {name!r} is registered twice by {module}: rename one of them")

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise UserError(f"unknown {self.kind} {name!r}: {did_you_mean(name, self)}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        # A plugin's entry counts once no built-in module is left that could use the same name.
        while self._builtin and self._modules.get(str(name), "").partition(".")[0] not in self._packages:
            self._import_next_builtin()
        if name not in self._entries:
            self._load_entry_points()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        while self._builtin:
            self._import_next_builtin()
        self._load_entry_points()
        last = len(self._order)
        return iter(sorted(self._entries, key=lambda name: self._order.get(self._modules[name], last)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _import_next_builtin(self) -> None:
        importlib.import_module(self._builtin[0])
        del self._builtin[0]

    def _load_entry_points(self) -> None:
        if self._entry_points is None:
            self._entry_points = list(entry_points(group=self._group)) if self._group else []
        while self._entry_points:
            entry_point = self._entry_points[0]
            package = entry_point.dist.name if entry_point.dist else "an installed package"
            where = f"{package}: entry point {entry_point.name} = {entry_point.value} in {self._group}"
            _one_line_errors(where, entry_point.load, f"repair or uninstall {package}")
            del self._entry_points[0]


def _qualified(entry: object) -> str | None:
    return getattr(entry, "__qualname__", None)


def import_plugin(module: str) -> ModuleType:
    """Import a module that registers entries: a dotted name, or the path of a `.py` file."""
    if module.endswith(".py"):
        return _import_file(Path(module))
    advice = "install its package, set PYTHONPATH to its folder, or give the path of a .py file"
    return _one_line_errors(module, lambda: importlib.import_module(module), advice)


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"{path}: no such file; check the spelling")
    digest = hashlib.blake2b(str(path.resolve()).encode("utf-8", "surrogateescape"), digest_size=4).hexdigest()
    name = f"{path.stem}_{digest}"  # differs from installed modules and from files of the same name elsewhere
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    loader = spec.loader
    assert loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up while it is imported
    try:
        _one_line_errors(str(path), lambda: loader.exec_module(module), "correct the file")
    except UserError:
        del sys.modules[name]
        raise
    return module


def _one_line_errors(source: str, load: Callable[[], R], advice: str) -> R:
    try:
        return load()
    except UserError:
        raise
    except Exception as error:  # a plugin can raise anything
        detail = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{source}: cannot be imported ({detail}); {advice}") from error
