"""Training in several processes ends with one line when one of them is killed, and one process goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tiny
from saywhy.data.datasets import read
from saywhy.training.lost_process import LostProcess, errors_of_lost_processes
from saywhy.training.recipe import read_recipe
from saywhy.training.trainer import train

pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')
pytestmark = pytest.mark.usefixtures("one_thread")
RECIPE = """
name = "tiny"
[vocabulary]
min_count = 1
[preprocessing]
size = 64
fit = "squash"
[encoder]
name = "efficientnet-lite0"
weights = "none"
finetune_from = "blocks.6"
[captioner]
embedding = 16
hidden = 16
attention = 16
dropout = 0.0
[training]
epochs = 4
batch = 4
checkpoint_every = 2
[decoding]
beam = 2
max_words = 5
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [f"{path.name},a word{n % 3} here,{'train' if n < 12 else 'dev'}" for n, path in
            enumerate(tiny.image_files(folder, 14))]  # fmt: skip
    (folder / "captions.csv").write_text("image,caption,split\n" + "\n".join(rows) + "\n")
    (tmp_path / "tiny.toml").write_text(RECIPE)
    return folder


def start(data: Path, *more: object) -> subprocess.Popen[str]:
    recipe, out = data.parent / "tiny.toml", data.parent / "run"
    command = ["-m", "saywhy", "train", recipe, "--data", data, "--out", out, "--device", "cpu", "--workers", 0, *more]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *map(str, command)], text=True, env=environment, **streams)


def children(process: int) -> list[int]:
    path = Path(f"/proc/{process}/task/{process}/children")
    if not path.exists():
        pytest.skip("needs Linux's /proc")
    return [int(number) for number in path.read_text().split()]


def errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("saywhy:")]


def losses(folder: Path) -> list[float]:
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if "loss" in event]


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 1])
def test_one_of_two_processes_is_killed_and_one_process_resumes(data, tmp_path, rank) -> None:
    process = start(data, "--processes", 2)
    log, deadline = tmp_path / "run" / "log.jsonl", time.monotonic() + 300
    while not (log.exists() and log.read_text().count("\n") >= 5):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    both = children(process.pid)
    os.kill(both[rank], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 1
    line = f"saywhy: process {rank + 1} of 2 was killed (SIGKILL); continue from the last checkpoint with --resume"
    assert errors(err) == [f"{line}, also with fewer processes"]
    assert "Traceback" not in err
    assert not [number for number in both if Path(f"/proc/{number}").exists()], "the other one goes on"
    recipe, captioned = read_recipe(data.parent / "tiny.toml"), read(data)
    progress = train(recipe, captioned, tmp_path / "run", resume=True, device="cpu", workers=0)
    train(recipe, captioned, tmp_path / "one", device="cpu", workers=0)
    assert progress.finished
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(tmp_path / "one"), rtol=1e-3)


@pytest.mark.slow
def test_a_mistake_is_one_line_with_two_processes(data) -> None:
    (data.parent / "tiny.toml").write_text(RECIPE.replace("batch = 4", "batch = -4"))
    process = start(data, "--processes", 2)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert "training.batch" in err


@pytest.mark.parametrize(
    "message",
    [
        "[gloo/transport/tcp/pair.cc:545] Read error [127.0.0.1]:57997: Connection reset by peer",
        "Connection closed by peer",
    ],
)
def test_a_broken_connection_is_one_line(tmp_path, message) -> None:
    for line in ("it had no checkpoint yet: start again", "continue from the last checkpoint with --resume"):
        with pytest.raises(LostProcess, match=f"another process of this run has ended; {line}") as error:
            fail(tmp_path, message)
        assert "\n" not in str(error.value)
        (tmp_path / "checkpoint.safetensors").touch()


def fail(out: Path, message: str) -> None:
    with errors_of_lost_processes(out):
        raise RuntimeError(message)


def test_other_errors_stay_what_they_are(tmp_path) -> None:
    with pytest.raises(RuntimeError, match="out of memory") as error:
        fail(tmp_path, "out of memory")
    assert not isinstance(error.value, LostProcess)
