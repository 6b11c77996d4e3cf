"""The benchmarks of docs/performance.md run, at their smallest size; their numbers are not tested."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import saywhy

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_all_benchmarks_run_at_their_smallest_size(tmp_path: Path) -> None:
    pytest.importorskip("pycocoevalcap", reason="needs the extra meteor")
    pytest.importorskip("matplotlib", reason="needs the extra train")
    environment = os.environ | {"PYTHONPATH": str(Path(saywhy.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    script = [sys.executable, str(ROOT / "benchmarks" / "run_all.py"), "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"limits.json", "growth.json", "growth.svg", "peers.json"}
    table = done.stdout.partition("== all")[2]
    assert all(work in table for work in ("BLEU", "CIDEr-D", "caption, batch 1"))


def test_the_page_on_performance_is_that_of_the_results(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "benchmarks" / "report.py"), "--out", str(tmp_path / "page.md")]
    subprocess.run(script, check=True)
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == page, "run make performance"
