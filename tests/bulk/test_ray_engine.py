"""The Ray engine on a cluster of two machines, of which one, or one of its processes, is killed."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiny
from bulk_inputs import rows_of
from saywhy.bulk.caption_task import CaptionTask
from saywhy.bulk.tasks import ModelChoice
from saywhy.errors import UserError

ray = pytest.importorskip("ray", reason="the engine ray needs Ray")
from saywhy.bulk.ray_engine import run_on_ray  # noqa: E402

pytestmark = pytest.mark.slow
MARK = "SAYWHY_TEST_CLUSTER"


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of two machines with one processor each, in processes of this one."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv(MARK, uuid.uuid4().hex)  # finds the processes of this cluster
    paths = [str(Path(tiny.__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    small = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    health = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": health, **small})
    started.add_node(num_cpus=1, **small)
    monkeypatch.setenv("RAY_ADDRESS", started.address)
    yield started
    ray.shutdown()
    started.shutdown()


def runners() -> list[int]:
    """The processes of this cluster that do parts."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_runner = (folder / "cmdline").read_bytes().startswith(b"ray::PartRunner")
            if is_runner and f"{MARK}={os.environ[MARK]}".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # ended meanwhile
            continue
    return found


@pytest.fixture
def images(tmp_path: Path) -> Path:
    folder = tmp_path / "images"
    folder.mkdir()
    tiny.image_files(folder, 300)
    (folder / "7.png").write_bytes(b"not an image")
    return folder


@pytest.mark.parametrize("killed", ["process", "machine"])
def test_a_worker_is_killed_and_every_image_has_exactly_one_row(cluster, caption, images, tmp_path, killed) -> None:
    caption(images, tmp_path / "here.jsonl", part_size=6)
    seen = []

    def kill_one(done: int) -> None:
        seen.append(done)
        if len(seen) == 10:
            assert len(runners()) == 2, "both machines work"
            if killed == "process":
                os.kill(runners()[0], signal.SIGKILL)
            else:
                cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)

    summary = caption(images, tmp_path / "ray.jsonl", part_size=6, engine=run_on_ray, progress=kill_one)
    assert (summary.images, summary.written, summary.errors) == (300, 300, 1)
    assert len(seen) > 20
    assert rows_of(tmp_path / "ray.jsonl") == rows_of(tmp_path / "here.jsonl")


def test_a_run_begun_here_goes_on_on_a_cluster(cluster, caption, images, tmp_path) -> None:
    class Stopped(Exception):
        pass

    def stop(done: int) -> None:
        if done >= 100:
            raise Stopped

    with pytest.raises(Stopped):
        caption(images, tmp_path / "out.jsonl", part_size=50, progress=stop)
    summary = caption(images, tmp_path / "out.jsonl", part_size=50, engine=run_on_ray)
    assert (summary.images, summary.written) == (300, 200)
    assert len(rows_of(tmp_path / "out.jsonl")) == 300


def test_mistakes_of_workers_are_one_line(cluster, caption, images, tmp_path) -> None:
    with pytest.raises(UserError, match=r"no room for a worker: it needs .*, and has 2 CPU, 0 GPU"):
        caption(images, tmp_path / "out.jsonl", engine=run_on_ray, workers=8)

    def vanish(done: int) -> None:
        if done:
            images.rename(tmp_path / "moved")

    with pytest.raises(UserError, match=r"^\S+: this folder of images has vanished") as error:
        caption(images, tmp_path / "out.jsonl", part_size=4, engine=run_on_ray, progress=vanish)
    assert "\n" not in str(error.value)


def test_a_cluster_that_does_not_answer_is_one_line(caption, images, tmp_path, monkeypatch) -> None:
    def init(**_: Any) -> None:  # what Ray does after minutes
        raise RuntimeError("Failed to connect to GCS.\nPlease check the address.")

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UserError, match=r"no Ray cluster answers \(Failed to connect to GCS\.\); start one"):
        caption(images, tmp_path / "out.jsonl", engine=run_on_ray)


def test_without_ray_the_engine_is_refused_in_one_line(caption, images, tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r'pip install "saywhy\[ray\]"'):
        caption(images, tmp_path / "out.jsonl", engine=run_on_ray)


def test_the_task_of_a_worker_can_be_sent(model) -> None:
    task = CaptionTask(ModelChoice(str(model), "cpu"))
    assert pickle.loads(pickle.dumps(task)) == task
