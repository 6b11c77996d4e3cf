"""The notebook of examples/: its outputs are what its cells print."""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "explain.ipynb"
MAX_BYTES = 1_500_000
DATA_URL = re.compile(r"data:image/\w+;base64,[\w+/=]+")
ABSOLUTE_PATH = re.compile(r"(?<![\w.</:])/\w+/\w|[A-Z]:\\\\")

nbformat = pytest.importorskip("nbformat", reason="running notebooks needs nbformat, nbclient and ipykernel")


@pytest.fixture
def stored() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def outputs(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells for output in cell.get("outputs", ())]


def printed(notebook: Any) -> list[str]:
    """What each cell printed; a kernel sends it in parts of any length."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells]


def test_notebook_is_executed_without_warnings_and_small(stored: Any) -> None:
    assert NOTEBOOK.stat().st_size < MAX_BYTES
    counts = [cell.execution_count for cell in stored.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert {output.get("name", "stdout") for output in outputs(stored)} == {"stdout"}


def test_outputs_of_the_notebook_name_no_folder_of_a_machine(stored: Any) -> None:
    shown = [output.get("text", "") for output in outputs(stored)]
    shown += [text for output in outputs(stored) for kind, text in output.get("data", {}).items() if "text/" in kind]
    for text in shown:
        assert not ABSOLUTE_PATH.search(DATA_URL.sub("", text))


@pytest.mark.slow
def test_notebook_runs_and_prints_the_captions_and_findings_that_it_shows(
    stored: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("nbclient", "ipykernel"):
        pytest.importorskip(package, reason="running notebooks needs nbclient and ipykernel")
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        folder = tmp_path / variable
        folder.mkdir()
        monkeypatch.setenv(variable, str(folder))
    examples = tmp_path / "examples"
    shutil.copytree(EXAMPLES, examples)
    empty = copy.deepcopy(stored)
    for cell in empty.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    nbformat.write(empty, examples / NOTEBOOK.name)
    command = [sys.executable, ROOT / "docs" / "run_notebook.py", examples / NOTEBOOK.name]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr  # a cell failed
    executed = nbformat.read(examples / NOTEBOOK.name, as_version=4)
    assert printed(executed) == printed(stored)
    assert "a woman is standing in the grass with a dog\n" in printed(executed)
    assert {output.get("name", "stdout") for output in outputs(executed)} == {"stdout"}
