"""The program in a process of its own: how it starts, is interrupted, loses its reader, and meets a full disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from saywhy.captioners import build
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.encoders.base import build as build_encoder
from saywhy.provenance import saywhy_version

ONE_THREAD = {**os.environ, "OMP_NUM_THREADS": "1"}
SAYWHY = (sys.executable, "-m", "saywhy")
COMMANDS = (
    [], ["caption"], ["explain"], ["evaluate"], ["compare"], ["audit"], ["train"], ["data"], ["data", "check"],
    ["data", "overlap"], ["export"], ["serve"], ["sweep", "guidance"], ["train-judge"], ["train-lm"], ["evaluate-lm"],
    ["models"], ["results"],
)  # fmt: skip
ALL_HELP = f"""
import sys
from saywhy.cli import main
for command in {COMMANDS!r}:
    sys.argv = ["saywhy", *command, "--help"]
    try:
        main()
    except SystemExit as exit_:
        assert not exit_.code
assert not {{"torch", "numpy", "PIL"}} & set(sys.modules), "help needs none of these"
"""


def help_texts(columns: int) -> str:
    """The help of every command, printed in one process."""
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}
    process = subprocess.run([sys.executable, "-c", ALL_HELP], capture_output=True, text=True, env=environment)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.fixture(scope="module")
def fast_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that loads without timm and torchvision, whose imports take seconds."""
    folder = tmp_path_factory.mktemp("models") / "fast"
    encoder = build_encoder("efficientnet-lite0", weights=None, size=tiny.SIDE)
    captioner = build("soft-attention", encoder, tiny.WORDS, **tiny.settings("soft-attention"))
    SavedModel("fast", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE), {"max_words": 6}).save(folder)
    return folder


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """More images than are processed before a test interrupts the command."""
    folder = tmp_path / "many"
    folder.mkdir()
    tiny.image_files(folder, 200)
    return folder


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    """A command that Ctrl-C interrupts, also where the tests run in the background and ignore it."""
    command = [*SAYWHY, *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    default = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    return subprocess.Popen(command, env=ONE_THREAD, preexec_fn=default, **streams, **options)


def start_captioning(folder: Path, model: Path) -> subprocess.Popen[str]:
    """A process that has captioned its first image and has many more to do."""
    process = start("caption", folder, "--model", model, "--batch-size", 1)
    assert process.stdout is not None
    assert "0.png: word" in process.stdout.readline()
    return process


@pytest.mark.parametrize("columns", [80, 120])
def test_help_describes_every_option_and_needs_no_torch(columns: int) -> None:
    text = help_texts(columns)
    assert text.count("Usage: saywhy") == len(COMMANDS)
    assert max(map(len, text.splitlines())) <= columns
    options = [line for line in text.splitlines() if re.match(r"│ [ *]{0,4}--", line)]
    assert len(options) > 60
    assert [line for line in options if not re.search(r"  (?=[A-Zε])\S+ .*│$", line)] == [], "options without help"
    assert 'pip install "saywhy[onnx]"' in text, "square brackets are markup where they are not escaped"
    examples = [line.strip() for line in text.splitlines() if re.match(r" (saywhy|torchrun) ", line)]
    assert len(examples) > 20


@pytest.mark.parametrize("command", [[], ["caption"]])
def test_help_takes_less_than_a_second(command: list[str]) -> None:
    seconds = []
    for _ in range(3):  # the fastest counts: other programs slow it down
        process = subprocess.Popen([*SAYWHY, *command, "--help"], stdout=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        seconds.append(used.ru_utime + used.ru_stime)
        if seconds[-1] < 1:
            break
    assert min(seconds) < 1


def test_version_is_printed() -> None:
    process = subprocess.run([*SAYWHY, "--version"], capture_output=True, text=True)
    assert (process.returncode, process.stdout, process.stderr) == (0, f"saywhy {saywhy_version()}\n", "")


def test_mistake_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    process = subprocess.run([*SAYWHY, "caption", str(tmp_path / "gone.jpg")], capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == f"saywhy: {tmp_path / 'gone.jpg'}: no such file or folder; check the spelling\n"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_a_command_with_one_line(many: Path, fast_model: Path, number: int, code: int) -> None:
    process = start_captioning(many, fast_model)
    process.send_signal(number)
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (code, "saywhy: interrupted\n")


def test_sigterm_leaves_complete_files_only(many: Path, fast_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "why"
    process = start("explain", many, "--model", fast_model, "--out", out, "--method", "attention", "--device", "cpu")
    deadline = time.monotonic() + 300
    while len(list(out.glob("*/report.html"))) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.terminate()
    _, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (143, "saywhy: interrupted\n")
    assert not list(out.rglob("*.part"))
    pages = {path.parent.name for path in out.glob("*/report.html")}
    links = set(re.findall(r'href="([^"/]+)/report.html"', (out / "index.html").read_text()))
    assert links, "the index links the finished reports"
    assert links <= pages


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_to_all_processes_is_one_line_with_worker_processes(many, fast_model, tmp_path, number: int) -> None:
    rows = "".join(f"{path.name},a dog,test\n" for path in many.glob("*.png"))
    (many / "captions.csv").write_text(f"image,caption,split\n{rows}")
    command = ("evaluate", "--data", many, "--model", fast_model, "--workers", 2, "--batch-size", 1, "--beam", 50)
    process = start(*command, "--device", "cpu", "--out", tmp_path / "results.json", start_new_session=True)
    deadline = time.monotonic() + 300
    while len(children(process.pid)) < 2:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, number)  # as a terminal does for Ctrl-C
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (128 + number, "", "saywhy: interrupted\n")
    assert not list(tmp_path.glob("*results.json*"))


INTERRUPTED_ENTER = """
import signal, time
from saywhy.cli import _signals_interrupt

class Lock:
    held = False
    def __enter__(self):
        signal.raise_signal(signal.SIGTERM)
        self.held = True
    def __exit__(self, *_):
        self.held = False

lock = Lock()
with _signals_interrupt() as received:
    try:
        with lock:
            time.sleep(60)
    except KeyboardInterrupt:
        print(lock.held, received.first == signal.SIGTERM, received.postponed)
"""


def test_a_signal_while_a_lock_is_taken_interrupts_where_the_lock_is_released() -> None:
    process = subprocess.run([sys.executable, "-c", INTERRUPTED_ENTER], capture_output=True, text=True, timeout=50)
    assert (process.returncode, process.stdout) == (0, "False True 1\n"), process.stderr


REPEATED_SIGNAL = """
import signal, sys
import saywhy.cli

def interrupted(_):
    signal.raise_signal(signal.SIGTERM)

def once_more(message):
    signal.raise_signal(signal.SIGTERM)
    print(message)

saywhy.cli._run, saywhy.cli.print_error = interrupted, once_more
saywhy.cli.main()
"""


def test_a_signal_while_an_interrupt_is_reported_changes_nothing() -> None:
    process = subprocess.run([sys.executable, "-c", REPEATED_SIGNAL], capture_output=True, text=True, timeout=50)
    assert (process.returncode, process.stdout, process.stderr) == (143, "interrupted\n", "")


INTERRUPTED_EXEC = """
import signal
import saywhy.cli

saywhy.cli._run = lambda _: exec("signal.raise_signal(signal.SIGTERM); import time; time.sleep(60)")
saywhy.cli.main()
"""


def test_an_interrupt_inside_exec_keeps_the_exit_code(tmp_path: Path) -> None:
    (tmp_path / "interrupted_exec.py").write_text(INTERRUPTED_EXEC)
    command = [sys.executable, "-m", "interrupted_exec"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=50)
    assert (process.returncode, process.stderr) == (143, "saywhy: interrupted\n")


def children(process: int) -> list[str]:
    tasks = Path(f"/proc/{process}/task/{process}/children")
    if not tasks.exists():
        pytest.skip("needs Linux's /proc")
    return tasks.read_text().split()


@pytest.mark.slow
def test_closed_pipe_ends_a_command_quietly(many: Path, fast_model: Path) -> None:
    process = start_captioning(many, fast_model)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=120) != 0


@pytest.mark.slow
def test_full_standard_output_is_one_line(fast_model: Path, many: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with Path("/dev/full").open("w") as full:
        command = [*SAYWHY, "caption", str(many / "0.png"), "--model", str(fast_model)]
        process = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, env=ONE_THREAD)
    assert process.returncode == 2
    assert process.stderr.startswith("saywhy: No space left on device")
    assert process.stderr.count("\n") == 1


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_full_disk_names_the_file(run, model: Path, photos: list[Path], full_disk: Path) -> None:
    result = run("explain", photos[0], "--model", model, "--out", full_disk / "why")
    error = result.error
    assert re.match(rf"saywhy: {re.escape(str(full_disk))}/why/\S+\.\w+: No space left on device", error)
    assert not list(full_disk.rglob("*.part"))


def test_full_disk_names_the_file_also_where_the_system_does_not(run, model, photos, tmp_path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    error = run("explain", photos[0], "--model", model, "--out", tmp_path / "why").error
    assert re.match(rf"saywhy: {re.escape(str(tmp_path))}/why/\S+\.\w+: No space left on device", error)
    assert not list((tmp_path / "why").iterdir())
