"""Run a notebook in its folder and store what its cells show; an error of a cell ends the run and stores nothing.

python docs/run_notebook.py examples/explain.ipynb
"""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient

SECONDS = 900
"""The longest time that a cell may take."""


def run(path: Path) -> None:
    """Run the notebook. Nothing is stored that tells the machine or the time."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(notebook, timeout=SECONDS, record_timing=False, resources=resources).execute()
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, path)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebook", type=Path)
    run(parser.parse_args().notebook)
