"""The import rules of docs/architecture.md: packages in one direction, no cycle, and fast start-up."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "saywhy"
ORDER = [
    *("data", "viz", "encoders", "captioners", "language_models", "adapters", "decoding", "metrics", "explain"),
    *("hallucination", "inference", "onnx_engine", "bulk", "judges", "training", "audits", "reports", "web", "cli"),
]
ROOT = {"errors", "files", "registry", "provenance", "cache", "pretrained", "model_names"}
MODULES = {
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def imports(path: Path) -> set[str]:
    """The saywhy modules that a file imports anywhere: at the top, inside functions, and for type checkers."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
            names |= submodules or {node.module}
    return {name for name in names if name in MODULES and name != "saywhy"}


GRAPH = {name: imports(path) for name, path in MODULES.items()}


def package(name: str) -> str:
    """The package of a module, or its own name where it stands at the root: "saywhy.data.images" is in "data"."""
    return name.split(".")[1] if "." in name else ""


@pytest.mark.parametrize("name", ORDER)
def test_a_package_imports_only_from_those_below_it(name):
    allowed = ROOT | set(ORDER[: ORDER.index(name) + 1])
    modules = [module for module in GRAPH if package(module) == name]
    assert modules
    for module in modules:
        assert {package(target) for target in GRAPH[module]} <= allowed, module


def test_every_package_has_its_place_in_the_order():
    packages = {package(module) for module in GRAPH} - {"", "__main__"}
    assert packages == ROOT | set(ORDER)


@pytest.mark.parametrize("name", sorted(ROOT))
def test_root_modules_import_no_package(name):
    assert {package(target) for target in GRAPH[f"saywhy.{name}"]} <= ROOT


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """One import cycle, or nothing."""
    finished: set[str] = set()

    def visit(name: str, path: list[str]) -> list[str]:
        if name in path:
            return [*path[path.index(name) :], name]
        if name in finished:
            return []
        for target in sorted(graph[name]):
            if found := visit(target, [*path, name]):
                return found
        finished.add(name)
        return []

    return next((found for name in graph if (found := visit(name, []))), [])


def test_no_module_imports_itself_through_others():
    assert cycle({name: targets for name, targets in GRAPH.items() if name != "saywhy"}) == []


def test_a_cycle_would_be_found():
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def test_no_module_name_stands_in_two_packages():
    stems: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        if path.name not in ("__init__.py", "__main__.py"):
            stems.setdefault(path.stem, []).append(name)
    command_files = {path.stem for path in (SOURCE / "cli").glob("*.py")}  # a command is named like what it runs
    same_idea = {"base", "registry"} | command_files
    assert {stem: names for stem, names in stems.items() if len(names) > 1 and stem not in same_idea} == {}


def test_importing_saywhy_does_not_load_torch():
    code = "import saywhy, saywhy.cli, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_package_lists_what_it_offers():
    import saywhy

    assert {"load", "Model", "Caption", "Explanation", "UserError"} <= set(dir(saywhy))
