"""The experiments of benchmarks/fine_tuning.py are commands that saywhy accepts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from saywhy.cli.train import changes_of
from saywhy.training.recipe import read_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fine_tuning(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return pytest.importorskip("fine_tuning")


@pytest.mark.parametrize("captioner", ["ada-lstm", "mh-fc"])
@pytest.mark.parametrize("name", ["flickr8k", "coco"])
def test_every_experiment_is_a_recipe_with_other_values(fine_tuning, name, captioner):
    start, *others = fine_tuning.experiments(name, captioner, seed=3)
    recipes = {}
    for experiment in (start, *others):
        changes = changes_of(experiment.seed, None, None, experiment.changes)
        recipes[experiment.name] = read_recipe(ROOT / "recipes" / f"{experiment.recipe}.toml", **changes)
    assert {recipe.seed for recipe in recipes.values()} == {3}
    assert recipes.pop(start.name).relevance is None
    assert {experiment.start for experiment in others} == {start.name}
    settings = [(recipe.relevance, recipe.reward) for recipe in recipes.values()]
    assert all(settings.count(setting) == 1 for setting in settings)
    self_critical = {name for name, recipe in recipes.items() if recipe.reward}
    assert self_critical == {name for name in recipes if "-scst-" in name}


def test_it_lists_its_commands_and_continues(fine_tuning, tmp_path, capsys, monkeypatch):
    def commands() -> list[str]:
        options = ["flickr8k", "--data", "DATA", "--out", str(tmp_path), "--seeds", "0", "--dry-run"]
        monkeypatch.setattr(sys, "argv", ["fine_tuning.py", *options, "--captioners", "mh-fc", "--only", "ce-lrp"])
        assert fine_tuning.main() == 0
        return capsys.readouterr().out.splitlines()

    assert [line.split()[1] for line in commands()] == ["train", "evaluate"] * 2
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "flickr8k-mh-fc-vgg16-start-seed0.json").touch()
    (tmp_path / "flickr8k-mh-fc-vgg16-ce-lrp-seed0").mkdir()
    (tmp_path / "flickr8k-mh-fc-vgg16-ce-lrp-seed0" / "checkpoint.safetensors").touch()
    train, evaluate = commands()
    assert "--resume" in train
    assert "--hallucination" in evaluate
