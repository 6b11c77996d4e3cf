"""Registries: built-in modules are imported on demand, plugins by entry point, file or module name."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest

from saywhy.errors import UserError
from saywhy.registry import Registry, import_plugin

shapes: Registry[object] = Registry("shape")
NUMBERS = itertools.count()
REGISTER = "from test_registry import shapes\nshapes.register({name!r})({value})\n"


@pytest.fixture(autouse=True)
def _fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    use(monkeypatch, Registry("shape"))


def use(monkeypatch: pytest.MonkeyPatch, registry: Registry) -> Registry:
    """Make `registry` the one that plugin modules import."""
    monkeypatch.setitem(sys.modules, "test_registry", sys.modules[__name__])
    monkeypatch.setattr(sys.modules[__name__], "shapes", registry)
    return registry


def refusal(call, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def write_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write an importable module with a new name; returns the name."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str, stem: str = "plugin") -> str:
        name = f"{stem}_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(text)
        return name

    return write


@pytest.fixture
def install(tmp_path: Path, write_module):
    """Make a module an entry point of an installed distribution; returns the module's name."""

    def install(text: str, group: str = "test.shapes", distribution: str = "round-things") -> str:
        name = write_module(text)
        info = tmp_path / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{group}]\nmine = {name}\n")
        return name

    return install


def test_entries_are_found_by_name():
    shapes.register("square")(1)
    shapes.register("circle")(2)
    assert shapes["square"] == 1
    assert list(shapes) == ["square", "circle"]
    assert len(shapes) == 2
    assert "square" in shapes
    assert "cube" not in shapes


def test_an_unknown_name_lists_the_known_ones():
    shapes.register("square")(1)
    shapes.register("circle")(2)
    assert refusal(shapes.__getitem__, "sqare") == (
        "unknown shape 'sqare': did you mean \"square\"? Known: circle, square"
    )


def test_builtin_modules_are_imported_in_order_until_the_name_is_found(monkeypatch, write_module):
    modules = [write_module(REGISTER.format(name=name, value=name == "b")) for name in "abc"]
    registry = use(monkeypatch, Registry("shape", builtin=modules))
    assert not set(modules) & sys.modules.keys()
    assert registry["b"] is True
    assert [name in sys.modules for name in modules] == [True, True, False]
    assert list(registry) == ["a", "b", "c"]
    assert len(registry) == 3


def test_iteration_imports_all_builtin_modules(monkeypatch, write_module):
    modules = [write_module(REGISTER.format(name=name, value=1)) for name in "ab"]
    assert list(use(monkeypatch, Registry("shape", builtin=modules))) == ["a", "b"]


def test_an_entry_point_is_loaded_for_an_unknown_name_only(monkeypatch, write_module, install):
    builtin = write_module(REGISTER.format(name="square", value=1))
    plugin = install(REGISTER.format(name="circle", value=2))
    registry = use(monkeypatch, Registry("shape", "test.shapes", [builtin]))
    assert registry["circle"] == 2
    assert plugin in sys.modules
    assert list(registry) == ["square", "circle"]


def test_iteration_loads_entry_points(monkeypatch, install):
    install(REGISTER.format(name="circle", value=2))
    assert list(use(monkeypatch, Registry("shape", "test.shapes"))) == ["circle"]
    assert list(use(monkeypatch, Registry("shape", "test.other"))) == []
    assert list(use(monkeypatch, Registry("shape"))) == []


def test_a_failing_entry_point_is_one_line_with_its_distribution(monkeypatch, install):
    plugin = install("raise RuntimeError('out of\\nluck')\n")
    registry = use(monkeypatch, Registry("shape", "test.shapes"))
    for _ in range(2):
        line = refusal(list, registry)
        assert line.startswith(f"round-things: entry point mine = {plugin} in test.shapes: cannot be imported")
        assert "(RuntimeError: out of luck)" in line


def test_a_missing_module_of_an_entry_point_is_one_line(tmp_path, monkeypatch, install):
    plugin = install("")
    (tmp_path / f"{plugin}.py").unlink()
    assert "ModuleNotFoundError" in refusal(use(monkeypatch, Registry("shape", "test.shapes")).__getitem__, "circle")


def test_a_plugin_cannot_take_the_name_of_another_module(monkeypatch, write_module, install):
    builtin = write_module(REGISTER.format(name="square", value=1))
    plugin = install(REGISTER.format(name="square", value=2))
    registry = use(monkeypatch, Registry("shape", "test.shapes", [builtin]))
    line = f"shape 'square' is registered by both {builtin} and {plugin}: rename one of them"
    assert refusal(list, registry) == line


def test_a_plugin_imported_first_cannot_hide_a_builtin_entry(monkeypatch, write_module):
    builtin = write_module(REGISTER.format(name="square", value=1))
    plugin = write_module(REGISTER.format(name="square", value=2))
    registry = use(monkeypatch, Registry("shape", builtin=[builtin]))
    import_plugin(plugin)
    assert f"registered by both {plugin} and {builtin}" in refusal(registry.__getitem__, "square")


def test_one_module_cannot_use_a_name_twice_and_may_be_reloaded(write_module):
    def square() -> None: ...

    def other() -> None: ...

    shapes.register("square")(square)
    assert "registered twice by" in refusal(shapes.register("square"), other)
    shapes.register("square")(square)


def test_import_plugin_imports_a_module_by_name(write_module):
    import_plugin(write_module(REGISTER.format(name="circle", value=3)))
    assert shapes["circle"] == 3


def test_import_plugin_imports_a_file_once(tmp_path):
    path = tmp_path / "my-plugin.py"
    path.write_text("from dataclasses import dataclass\n" + REGISTER.format(name="circle", value=3))
    module = import_plugin(str(path))
    assert import_plugin(str(path)) is module
    assert shapes["circle"] == 3
    other = tmp_path / "other" / "my-plugin.py"
    other.parent.mkdir()
    other.write_text(REGISTER.format(name="square", value=4))
    import_plugin(str(other))
    assert shapes["square"] == 4


@pytest.mark.parametrize(
    ("text", "detail"),
    [("import nowhere_to_be_found", "ModuleNotFoundError"), ("a = = b", "SyntaxError"), ("1/0", "Zero")],
)
def test_a_plugin_that_cannot_be_imported_is_one_line(tmp_path, write_module, text, detail):
    name = write_module(text)
    for plugin in (name, str(tmp_path / f"{name}.py")):
        line = refusal(import_plugin, plugin)
        assert line.startswith(f"{plugin}: cannot be imported ({detail}")
    assert name not in sys.modules


def test_a_plugin_that_does_not_exist_is_one_line(tmp_path):
    assert "no such file" in refusal(import_plugin, str(tmp_path / "gone.py"))
    assert "give the path of a .py file" in refusal(import_plugin, "nowhere_to_be_found")
