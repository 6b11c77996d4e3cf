"""Checkpoints restore a run exactly, or are refused in one line; a folder is locked by the process that trains."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

import tiny
from saywhy import files
from saywhy.captioners import Captioner, model_folder
from saywhy.errors import UserError
from saywhy.training import checkpoint
from saywhy.training.checkpoint import Progress, folder_lock, read_info, restore_checkpoint, save_checkpoint
from saywhy.training.optimisers import WeightAverage, optimisers, parameter_groups

RECIPE = {
    "name": "tiny",
    "seed": 1,
    "augmentation": None,
    "captioner": {"name": "soft-attention", "settings": {"hidden": 16}},
    "training": {"lr": 0.0005, "epochs": 3},
}
SOURCES = {"data": "3f2a", "teachers": {}}
PROGRESS = Progress(epoch=2, batch=3, step=40, best=0.5, best_epoch=1, seconds=9.5, history=[{"cider": 0.5}])


@dataclass
class Session:
    """The state of a run, as it is built at every start."""

    captioner: Captioner
    optimiser: torch.optim.Optimizer
    average: WeightAverage

    @classmethod
    def build(cls, seed: int = 0, **settings) -> Session:
        captioner = tiny.captioner(seed=seed, **settings)
        captioner.encoder.finetune_from(captioner.encoder.blocks()[-1])
        groups = parameter_groups(captioner, 0.01, 0.001)
        return cls(captioner, optimisers["adam"](groups, 0.0), WeightAverage(captioner, 0.9))

    def step(self, number: int) -> None:
        tokens = tiny.captions(2, seed=number)
        logits, _ = self.captioner(self.captioner.encode(tiny.pixels(2)), tokens[:, :-1])
        self.optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self.optimiser.step()
        self.average.update(number)

    def save(self, path: Path) -> None:
        save_checkpoint(path, self.captioner, self.optimiser, self.average, PROGRESS, RECIPE, SOURCES)

    def restore(self, path: Path) -> None:
        restore_checkpoint(path, self.captioner, self.optimiser, self.average)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    session = Session.build()
    session.step(0)
    session.save(tmp_path / "checkpoint.safetensors")
    return tmp_path / "checkpoint.safetensors"


def rewrite(path: Path, rename: dict[str, str] | None = None, metadata: str | None = None, **changes) -> None:
    """Write the checkpoint again with other tensor names, other metadata, or other tables in its metadata."""
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["saywhy"])
    tensors = {(rename or {}).get(name, name): tensor for name, tensor in load_file(path).items()}
    save_file(tensors, path, metadata={"saywhy": metadata or json.dumps(about | changes)})


def refusal(action, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        action(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("tie", [False, True])
def test_a_restored_run_continues_exactly_like_an_uninterrupted_one(tmp_path, tie):
    uninterrupted = Session.build(tie=tie)
    uninterrupted.step(0)
    with torch.no_grad():  # like the statistics of a batch normalisation that is trained
        next(buffer for name, buffer in uninterrupted.captioner.named_buffers() if "running_mean" in name).add_(0.01)
    uninterrupted.save(tmp_path / "c")
    resumed = Session.build(tie=tie)
    resumed.restore(tmp_path / "c")
    assert read_info(tmp_path / "c").progress == PROGRESS
    for number in (1, 2):
        uninterrupted.step(number)
        resumed.step(number)
    expected = uninterrupted.captioner.state_dict()
    for name, tensor in resumed.captioner.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    for name, mean in resumed.average.mean.items():
        assert torch.equal(mean, uninterrupted.average.mean[name]), name


def test_a_checkpoint_holds_no_frozen_weights(path):
    names = {name.removeprefix("weights/") for name in load_file(path) if name.startswith("weights/")}
    session = Session.build()
    assert names == {name for name, weight in session.captioner.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"training": {"lr": 0.001, "epochs": 3}}, "training.lr: 0.0005 in the checkpoint, 0.001 now"),
        ({"training": {"lr": 0.0005, "epochs": 2}}, "training.epochs: 3 in the checkpoint, 2 now"),
        ({"seed": 2}, "seed: 1 in the checkpoint, 2 now"),
        ({"augmentation": {"flip": 0.5}}, 'augmentation: not set in the checkpoint, {"flip": 0.5} now'),
        (
            {"captioner": {"name": "soft-attention", "settings": {"hidden": 32}}},
            "captioner.hidden: 16 in the checkpoint, 32 now",
        ),
    ],
)
def test_another_recipe_is_refused_with_the_exact_key_and_both_values(path, changes, difference):
    line = refusal(read_info(path).check_recipe, RECIPE | changes)
    assert f"({difference})" in line


def test_every_differing_key_is_named_and_the_number_of_epochs_may_grow(path):
    info = read_info(path)
    info.check_recipe(RECIPE)
    info.check_recipe(RECIPE | {"training": {"lr": 0.0005, "epochs": 5}})
    line = refusal(info.check_recipe, RECIPE | {"seed": 2, "training": {"lr": 1.0, "epochs": 5}})
    assert "(seed: 1 in the checkpoint, 2 now; training.lr: 0.0005 in the checkpoint, 1.0 now)" in line


def test_other_data_is_refused(path):
    info = read_info(path)
    info.check_sources(SOURCES)
    assert "a run with other data:" in refusal(info.check_sources, SOURCES | {"data": "91bc"})


def test_another_format_is_refused_with_its_version(path, monkeypatch):
    rewrite(path, format=1, saywhy="0.1.0")
    assert "written by saywhy 0.1.0 in format 1" in refusal(read_info, path)


def test_a_file_of_weights_alone_is_refused(path):
    save_file({"a": torch.zeros(1)}, path)
    assert "format None" in refusal(read_info, path)


@pytest.mark.parametrize("metadata", ["{", "[" * 100_000, '{"a":' * 100_000, "[1]", "1e999"])
def test_metadata_that_is_not_a_table_is_refused(path, metadata):
    rewrite(path, metadata=metadata)
    assert str(path) in refusal(read_info, path)


@pytest.mark.parametrize(
    "progress",
    [
        {"extra": 1},
        {"step": -1},
        {"epoch": "two"},
        {"batch": 1.5},
        {"seconds": float("nan")},
        {"history": {}},
        {"finished": 1},
    ],
    ids=str,
)
def test_progress_with_an_unknown_negative_or_mistyped_field_is_refused(path, progress):
    rewrite(path, progress=asdict(PROGRESS) | progress)
    line = refusal(read_info, path)
    assert f"{path}: not a readable checkpoint" in line
    assert f"progress.{next(iter(progress))}" in line


@pytest.mark.parametrize("table", ["progress", "recipe", "sources"])
def test_metadata_without_one_of_its_tables_is_refused(path, table):
    rewrite(path, **{table: [1]})
    assert "not a readable checkpoint" in refusal(read_info, path)


@pytest.mark.parametrize(
    "name", ["weights", "no slash", "elsewhere/E.weight", "weights/unknown", "optimiser/x.step", "optimiser/999.step"]
)
@pytest.mark.parametrize("renamed", ["weights/E.weight", "optimiser/0.step"])
def test_an_unknown_or_missing_tensor_is_refused(path, renamed, name):
    rewrite(path, rename={renamed: name})
    assert f"{path}: not a readable checkpoint" in refusal(Session.build().restore, path)


@pytest.mark.parametrize("length", [0, 7, 300, -1])
def test_a_truncated_file_is_refused(path, length):
    path.write_bytes(path.read_bytes()[:length])
    assert "not a readable checkpoint" in refusal(read_info, path)


def test_a_missing_file_is_refused(tmp_path):
    assert "no checkpoint to resume from" in refusal(read_info, tmp_path / "missing")


def test_a_run_whose_vocabulary_has_changed_is_refused(path):
    assert "have the captions changed" in refusal(Session.build(words=tiny.WORDS + 1).restore, path)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SafetensorError("I/O error: No space left on device")])
def test_a_checkpoint_that_cannot_be_written_leaves_the_previous_one(path, monkeypatch, error):
    before = path.read_bytes()

    def interrupted(tensors, part, metadata):
        Path(part).write_bytes(b"half")
        raise error

    monkeypatch.setattr(model_folder, "save_file", interrupted)
    with pytest.raises((KeyboardInterrupt, UserError)) as caught:
        Session.build().save(path)
    if isinstance(caught.value, UserError):  # a full disk is an error of safetensors, and no OSError
        assert str(path) in str(caught.value)
        assert "No space left on device" in str(caught.value)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_metadata_is_plain_json(path):
    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["saywhy"])
    assert about["format"] == checkpoint.FORMAT
    assert about["recipe"] == RECIPE
    assert about["progress"]["step"] == 40


HOLD_LOCK = """
import os, sys, time
from pathlib import Path
from saywhy.training.checkpoint import folder_lock
with folder_lock(Path(sys.argv[1])):
    if os.fork() == 0:  # like the workers that read images, which can outlive a killed process
        time.sleep(3)
        os._exit(0)
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(files.fcntl is None, reason="this system has no fcntl")
def test_a_folder_is_locked_against_a_second_process_until_the_first_is_killed(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD_LOCK, tmp_path / "run"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(UserError, match="another process is training"), folder_lock(tmp_path / "run"):
            pass
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        with folder_lock(tmp_path / "run"):
            pass


def test_a_lock_ends_with_its_context(tmp_path):
    for _ in range(2):
        with folder_lock(tmp_path / "run"):
            assert (tmp_path / "run").is_dir()
