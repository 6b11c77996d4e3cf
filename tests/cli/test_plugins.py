"""A captioner, an encoder and an audit of one's own are one file each, and work from the command line.

They are found through the entry points of an installed package, or imported with --import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import tiny

CAPTIONER = tiny.documented()  # the example of docs/new-architecture.md: "show-and-tell"
ENCODER = """
from torch import nn
from saywhy.encoders.registry import EncoderSpec, InputConvention, encoders

GREY = InputConvention((128.0, 128.0, 128.0), (64.0, 64.0, 64.0))
encoders.register("one-convolution")(
    EncoderSpec(
        "one-convolution", width=8, stride=32, side=2, size=64, convention=GREY, source="no weights",
        licence="Apache-2.0", make=lambda settings: nn.Conv2d(3, 8, 32, stride=32),
    )
)
"""
AUDIT = """
from saywhy.audits.audit import Audit, audits
from saywhy.viz.tables import Table

@audits.register("caption-length")
class CaptionLength(Audit):
    title = "Caption length: how many words has a caption?"
    description = "The number of words per caption."

    def run(self, context, evidence):
        return {"lengths": [len(image_evidence.words) for _, image_evidence in evidence], "checks": []}

    def tables(self, body):
        return [self.summary(body)]

    def summary(self, body):
        return Table(("captions", "words"), [(len(body["lengths"]), sum(body["lengths"]))])
"""
RECIPE = """
name = "mine"
[vocabulary]
min_count = 1
[preprocessing]
size = 64
[encoder]
name = "one-convolution"
weights = "none"
[captioner]
name = "show-and-tell"
hidden = 16
[training]
epochs = 1
batch = 4
precision = "float32"
"""
MODULES = {"my_captioner": CAPTIONER, "my_encoder": ENCODER, "my_audit": AUDIT}
ENTRY_POINTS = """
[saywhy.captioners]
show-and-tell = my_captioner
[saywhy.encoders]
one-convolution = my_encoder
[saywhy.audits]
caption-length = my_audit
"""
RUN_ALL = """
import contextlib, io, json, sys
from saywhy.cli import main
results = []
for command in json.load(sys.stdin):
    sys.argv, out, err, code = ["saywhy", *command], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
    results.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder with the three modules."""
    folder = tmp_path / "site"
    folder.mkdir()
    for name, source in MODULES.items():
        (folder / f"{name}.py").write_text(source)
    return folder


def install(folder: Path) -> None:
    """Install a wheel of the three modules with pip, into the folder."""
    files = {f"{name}.py": source for name, source in MODULES.items()} | {
        "my_plugins-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: my-plugins\nVersion: 1.0\n",
        "my_plugins-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "my_plugins-1.0.dist-info/entry_points.txt": ENTRY_POINTS,
        "my_plugins-1.0.dist-info/RECORD": "",
    }
    wheel = folder.parent / "my_plugins-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--target", folder, wheel]
    subprocess.run(command, check=True, capture_output=True)


def run_all(commands: list[tuple[object, ...]], path: Path | None = None) -> list[tuple[int, str, str]]:
    """Run commands one after another in a new process; exit code, stdout and stderr of each."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", **({"PYTHONPATH": str(path)} if path else {})}
    process = subprocess.run(
        [sys.executable, "-c", RUN_ALL],
        input=json.dumps([[str(argument) for argument in command] for command in commands]),
        capture_output=True, text=True, env=environment,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return [(code, out, err) for code, out, err in json.loads(process.stdout.splitlines()[-1])]


def commands(recipe: Path, data: Path, out: Path, options: dict[str, list[Any]]) -> list[tuple[object, ...]]:
    run, cpu = out / "run", ("--device", "cpu")
    train = ("train", recipe, "--data", data, "--out", run, "--workers", 0, *cpu, *options["network"])
    audit = ("audit", "caption-length", "--data", data, "--model", run, "--out", out / "audit", "--workers", 0, *cpu)
    return [
        ("models", "--json", *options["network"]),
        train,
        ("caption", data / "8.png", "--model", run, *cpu, *options["network"]),
        (*audit, *options["network"], *options["audit"]),
    ]


@pytest.mark.parametrize("found_by", ["entry points", pytest.param("--import", marks=pytest.mark.slow)])
def test_own_captioner_encoder_and_audit_work_in_every_command(modules, data, tmp_path: Path, found_by: str) -> None:
    pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')
    recipe, out = tmp_path / "recipe.toml", tmp_path / "out"
    recipe.write_text(RECIPE)
    options: dict[str, list[Any]] = {"network": [], "audit": []}
    path = modules
    if found_by == "entry points":
        path = tmp_path / "installed"
        install(path)
    else:  # one by its name, the others by their files
        options["network"] = ["--import", "my_captioner", "--import", modules / "my_encoder.py"]
        options["audit"] = ["--import", modules / "my_audit.py"]
    listed, trained, captioned, audited = run_all(commands(recipe, data, out, options), path)
    tables = json.loads(listed[1])
    assert "show-and-tell" in [row["name"] for row in tables["captioners"]]
    assert "one-convolution" in [row["name"] for row in tables["encoders"]]
    assert trained[0] == 0, trained[2]
    assert captioned[0] == 0, captioned[2]
    assert captioned[1].startswith(f"{data / '8.png'}: word")
    assert audited[0] == 0, audited[2]
    assert "caption-length: mine on data test" in audited[1]
    (result,) = (out / "audit").glob("audit-*.json")
    assert json.loads(result.read_text())["lengths"]


def test_unknown_captioner_and_audit_are_named_without_the_plugin(run, data: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(RECIPE.replace("show-and-tell", "no-such-captioner"))
    assert (
        "unknown captioner 'no-such-captioner'" in run("train", recipe, "--data", data, "--out", tmp_path / "x").error
    )
    assert "unknown audit 'no-such-audit'" in run("audit", "no-such-audit", "--data", data, "--out", tmp_path).error


def test_plugin_that_cannot_be_imported_is_one_line(run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import torch\n1 / 0\n")
    error = run("models", "--import", tmp_path / "broken.py").error
    assert f"{tmp_path / 'broken.py'}: cannot be imported (ZeroDivisionError: division by zero)" in error
