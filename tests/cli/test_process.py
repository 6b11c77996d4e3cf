"""The real program in a process of its own: how it starts, is stopped, and loses its reader."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiny
from saywhy import encoders
from saywhy.captioners import build
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.provenance import saywhy_version

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
SAYWHY = (sys.executable, "-m", "saywhy")
COMMANDS = ([], ["caption"], ["explain"], ["evaluate"], ["train"], ["data"], ["data", "check"], ["models"], ["results"])

ALL_HELP = f"""
import sys
from saywhy.cli import main
for command in {COMMANDS!r}:
    sys.argv = ["saywhy", *command, "--help"]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code
assert not {{"torch", "numpy", "PIL"}} & set(sys.modules), "help needs none of these"
"""


@pytest.fixture(scope="module")
def helps() -> str:
    """The help of every command, printed without loading torch."""
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run([sys.executable, "-c", ALL_HELP], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that starts without timm and torchvision, whose import takes longer than all the rest."""
    folder = tmp_path_factory.mktemp("models") / "quick"
    encoder = encoders.build("efficientnet-lite0", weights=None, size=tiny.SIDE)
    captioner = build("soft-attention", encoder, tiny.WORDS, **tiny.settings("soft-attention"))
    SavedModel("quick", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE), {"max_words": 6}).save(folder)
    return folder


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """More images than are captioned before a test has had enough."""
    folder = tmp_path / "many"
    folder.mkdir()
    tiny.image_files(folder, 200)
    return folder


def start(folder: Path, model: Path) -> subprocess.Popen[str]:
    """A process that has captioned its first image and has many to go."""
    command = [*SAYWHY, "caption", str(folder), "--model", str(model), "--batch", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ONE_THREAD)
    assert process.stdout is not None
    assert "0.png: word" in process.stdout.readline()
    return process


def test_every_help_text_comes_without_torch_and_explains_every_option(helps: str) -> None:
    assert helps.count("Usage: saywhy") == len(COMMANDS)
    assert "Examples" in helps
    options = [line for line in helps.splitlines() if re.match(r"│ [ *]*--", line)]
    assert len(options) > 40
    assert [line for line in options if not re.search(r"  [A-Z][a-z]* .*│$|  METEOR", line)] == []


@pytest.mark.parametrize("command", [[], ["caption"]])
def test_help_costs_less_than_a_second(command: list[str]) -> None:
    process = subprocess.Popen([*SAYWHY, *command, "--help"], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert used.ru_utime + used.ru_stime < 1


def test_the_version_is_printed() -> None:
    done = subprocess.run([*SAYWHY, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"saywhy {saywhy_version()}\n", "")


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run([*SAYWHY, "caption", str(tmp_path / "gone.jpg")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"saywhy: {tmp_path / 'gone.jpg'}: no such file or folder; check the spelling\n"


def test_ctrl_c_ends_it_quietly(many: Path, quick: Path) -> None:
    process = start(many, quick)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "")


def test_a_reader_that_has_seen_enough_ends_it_quietly(many: Path, quick: Path) -> None:
    process = start(many, quick)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=30) != 0
