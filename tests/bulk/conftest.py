"""A tiny model in a folder, images in every kind of input, and jobs over them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import tiny
from saywhy.bulk.caption_task import CaptionTask
from saywhy.bulk.find_inputs import find_shards
from saywhy.bulk.job import Job, Summary, run, run_here
from saywhy.bulk.output import Output
from saywhy.bulk.tasks import ModelChoice, Task
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing


@pytest.fixture(autouse=True, scope="module")
def _one_thread(one_thread: None) -> None:
    """The jobs here run tiny networks."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with random weights whose captions differ between images; tests must not change it."""
    folder = tmp_path_factory.mktemp("models") / "small"
    decoding = {"beam": 2, "max_words": 6}
    SavedModel("tiny", tiny.sensitive_captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE), decoding).save(folder)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of eleven images in two folders; the fourth cannot be read."""
    folder = tmp_path / "photos"
    (folder / "b").mkdir(parents=True)
    for number, path in enumerate(tiny.image_files(folder, 11)):
        if number > 6:
            path.rename(folder / "b" / path.name)
    (folder / "3.png").write_bytes(b"not an image")
    return folder


RunJob = Callable[..., Summary]


@pytest.fixture
def caption(model: Path) -> RunJob:
    """Caption what the arguments name into a file, with the tiny model."""

    def call(inputs: str | Path | Iterable[str], out: Path, task: Task | None = None, **options: Any) -> Summary:
        inputs = [str(inputs)] if isinstance(inputs, str | Path) else list(inputs)
        task = task or CaptionTask(ModelChoice(str(model), "cpu"))
        on_broken = options.pop("on_broken", _raise)
        progress = options.pop("progress", lambda images: None)
        engine = options.pop("engine", run_here)
        shards = find_shards(inputs, options.pop("column", ""))
        job = Job(shards, task, Output(out, task.columns), **{"part_size": 4, "batch_size": 2, **options})
        return run(job, engine, on_broken, progress)

    return call


def _raise(error: Exception) -> None:
    raise error


HOLD = """
import sys
from pathlib import Path
from saywhy.files import file_lock
with file_lock(Path(sys.argv[1]), "busy"):
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def lock_held() -> Callable[[Path], AbstractContextManager[None]]:
    """Another process holds this lock."""

    @contextmanager
    def hold(path: Path) -> Iterator[None]:
        command = [sys.executable, "-c", HOLD, str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"locked\n"
            yield
            process.kill()

    return hold
