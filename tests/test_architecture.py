"""The house keeps its order: who may import whom, and what comes at a cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "saywhy"
ORDER = [
    *("data", "viz", "encoders", "captioners", "decoding", "metrics", "explain", "hallucination", "inference"),
    *("training", "audits", "reports", "cli"),
]
BELOW = {"errors", "files", "registry", "provenance", "cache", "cache_index"}


def imports(path: Path) -> set[str]:
    """The parts of saywhy that a module imports when it is loaded."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "saywhy":
            parts = node.module.split(".")[1:]
            found |= {parts[0]} if parts else {alias.name for alias in node.names}
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("saywhy.")}
    return found


@pytest.mark.parametrize("package", ORDER)
def test_a_package_imports_only_from_those_before_it(package):
    allowed = BELOW | set(ORDER[: ORDER.index(package) + 1])
    modules = sorted((SOURCE / package).rglob("*.py"))
    assert modules
    for module in modules:
        assert imports(module) <= allowed, module.name


def test_importing_saywhy_does_not_load_torch():
    code = "import saywhy, saywhy.cli, sys; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
