"""Checkpoints: all of a run, or a line that says why not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import tiny
from saywhy.captioners import Captioner
from saywhy.errors import UserError
from saywhy.training import checkpoint
from saywhy.training.checkpoint import Progress, restore_checkpoint, save_checkpoint
from saywhy.training.optimisers import WeightAverage, optimisers, parameter_groups

RECIPE = {"name": "tiny", "seed": 1, "training": {"lr": 0.1}}
PROGRESS = Progress(epoch=2, batch=3, step=40, best=0.5, best_epoch=1, seconds=9.5, history=[{"cider": 0.5}])


@dataclass
class Sitting:
    """A run as it is built anew each time it is started."""

    captioner: Captioner
    optimiser: torch.optim.Optimizer
    average: WeightAverage

    @classmethod
    def begun(cls, seed: int = 0, **chosen) -> Sitting:
        captioner = tiny.captioner(seed=seed, **chosen)
        captioner.encoder.finetune_from(captioner.encoder.blocks()[-1])
        groups = parameter_groups(captioner, 0.01, 0.001)
        return cls(captioner, optimisers["adam"](groups, 0.0), WeightAverage(captioner, 0.9))

    def step(self, number: int) -> None:
        words = tiny.captions(2, seed=number)
        logits, _ = self.captioner(self.captioner.encode(tiny.pixels(2)), words[:, :-1])
        self.optimiser.zero_grad()
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten()).backward()
        self.optimiser.step()
        self.average.update(number)

    def save(self, path: Path) -> None:
        save_checkpoint(path, self.captioner, self.optimiser, self.average, PROGRESS, RECIPE)

    def restore(self, path: Path, recipe: dict = RECIPE) -> Progress:
        return restore_checkpoint(path, self.captioner, self.optimiser, self.average, recipe)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    sitting = Sitting.begun()
    sitting.step(0)
    sitting.save(tmp_path / "checkpoint.safetensors")
    return tmp_path / "checkpoint.safetensors"


def refusal(path: Path, recipe: dict = RECIPE, **chosen) -> str:
    with pytest.raises(UserError) as caught:
        Sitting.begun(**chosen).restore(path, recipe)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("tie", [False, True])
def test_a_restored_run_goes_on_as_if_nothing_had_happened(tmp_path, tie):
    unbroken = Sitting.begun(tie=tie)
    unbroken.step(0)
    with torch.no_grad():  # as batch normalisation that is trained would leave its statistics
        next(buffer for name, buffer in unbroken.captioner.named_buffers() if "running_mean" in name).add_(0.01)
    unbroken.save(tmp_path / "c")
    resumed = Sitting.begun(tie=tie)
    assert resumed.restore(tmp_path / "c") == PROGRESS
    for number in (1, 2):
        unbroken.step(number)
        resumed.step(number)
    expected = unbroken.captioner.state_dict()
    for name, tensor in resumed.captioner.state_dict().items():
        assert torch.equal(tensor, expected[name]), name
    for name, mean in resumed.average.mean.items():
        assert torch.equal(mean, unbroken.average.mean[name]), name


def test_frozen_weights_are_not_in_it(path):
    names = {name.removeprefix("weights/") for name in load_file(path) if name.startswith("weights/")}
    sitting = Sitting.begun()
    assert names == {name for name, p in sitting.captioner.named_parameters() if p.requires_grad}


def test_another_recipe_is_refused_by_what_differs(path):
    line = refusal(path, {**RECIPE, "training": {"lr": 0.2}})
    assert "different: training)" in line
    assert "seed" not in line
    assert "different: training)" in refusal(path, {"name": "tiny", "seed": 1})


def test_another_format_is_refused_with_its_version(path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 7)
        Sitting.begun().save(path)
    assert "in format 7" in refusal(path)


def test_a_file_of_weights_alone_is_refused(path):
    save_file({"a": torch.zeros(1)}, path)
    assert "format None" in refusal(path)
    save_file({"a": torch.zeros(1)}, path, metadata={"saywhy": "{"})
    assert "not a readable checkpoint" in refusal(path)


@pytest.mark.parametrize("keep", [0, 7, 300, -1])
def test_a_truncated_file_is_refused(path, keep):
    path.write_bytes(path.read_bytes()[:keep])
    assert "not a readable checkpoint" in refusal(path)


def test_a_missing_file_is_refused(tmp_path):
    assert "no checkpoint to resume from" in refusal(tmp_path / "gone")


def test_a_run_whose_vocabulary_has_changed_is_refused(path):
    assert "have the captions changed" in refusal(path, words=tiny.WORDS + 1)


def test_a_checkpoint_that_fails_leaves_the_one_before(path, monkeypatch):
    before = path.read_bytes()

    def interrupted(tensors, part, metadata):
        Path(part).write_bytes(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint, "save_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Sitting.begun().save(path)
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_progress_is_plain_data(path):
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        about = json.loads(file.metadata()["saywhy"])
    assert about["recipe"] == RECIPE
    assert about["progress"]["step"] == 40
