from __future__ import annotations

import stat
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from saywhy.metrics import MetricUnavailable, Spice, spice

# A replacement for SPICE: it reads the same input and writes the same format, the last image first.
_PROGRAM = """
import json, sys
at = sys.argv.index("-jar")
items = json.load(open(sys.argv[at + 2]))
f = {i["image_id"]: float(i["test"] in i["refs"]) for i in items}
answers = [{"image_id": key, "scores": {"All": {"f": value}}} for key, value in f.items()]
json.dump(answers[::-1], open(sys.argv[sys.argv.index("-out") + 1], "w"))
"""


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pycocoevalcap with SPICE but without its parser; returns the folder where the parser is expected."""
    folder = tmp_path / "spice" / "lib"
    folder.mkdir(parents=True)
    (tmp_path / "spice" / "spice-1.0.jar").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: spec)
    return folder


def _install_java(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    java = folder / "java"
    java.write_text(f"#!{sys.executable}\n{script}")
    java.chmod(java.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(folder))


def _install_parser(library: Path) -> None:
    for name in ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar"):
        (library / name).touch()


def test_the_error_names_missing_files_and_their_folder(library):
    with pytest.raises(MetricUnavailable) as error:
        spice(["a"], [["a"]])
    assert "stanford-corenlp-3.6.0.jar and stanford-corenlp-3.6.0-models.jar" in str(error.value)
    assert str(library) in str(error.value)


def test_scores_are_assigned_to_captions_by_image(library, monkeypatch):
    _install_parser(library)
    _install_java(library, _PROGRAM, monkeypatch)
    metric = Spice()
    metric.update(["a dog", "a cat"], [["a dog", "dogs"], ["a dog"]])
    metric.update(["men"], [["men"]])
    assert metric.compute().per_caption.tolist() == [1, 0, 1]
    assert metric.compute().spice == pytest.approx(2 / 3)


def test_a_failing_program_is_reported_with_its_reason(library, monkeypatch):
    _install_parser(library)
    _install_java(library, "import sys; sys.exit('no space')", monkeypatch)
    with pytest.raises(MetricUnavailable, match="code 1: no space"):
        spice(["a"], [["a"]])
