"""Encoders of the study whose weights are not available offline train with random weights."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from saywhy.data.datasets import read
from saywhy.training.recipe import read_recipe
from saywhy.training.trainer import train

pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')
pytestmark = pytest.mark.usefixtures("one_thread")

RECIPES = Path(__file__).parents[2] / "recipes"
SPLITS = ("train", "train", "train", "train", "dev", "dev")


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six images of noise with one caption each."""
    folder = tmp_path_factory.mktemp("noise")
    random = np.random.default_rng(0)
    with (folder / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption", "split"])
        for number, split in enumerate(SPLITS):
            Image.fromarray(random.integers(0, 256, (72, 72, 3), dtype=np.uint8)).save(folder / f"{number}.png")
            rows.writerow([f"{number}.png", "only noise", split])
    return folder


@pytest.mark.parametrize("name", ["googlenet", "resnet152", "densenet201"])
def test_an_encoder_without_weights_trains_with_random_ones(name, noise, tmp_path):
    changes = {
        "vocabulary": {"min_count": 1},
        "preprocessing": {"size": 64},
        "encoder": {"weights": "none"},
        "captioner": {"embedding": 16, "hidden": 16, "attention": 16},
        "training": {"epochs": 1, "batch": 4},
        "decoding": {"beam": 2, "max_words": 4},
    }
    recipe = read_recipe(RECIPES / f"flickr8k-encoder-{name}.toml", **changes)
    train(recipe, read(noise), tmp_path / "run", device="cpu", workers=0)
    run = json.loads((tmp_path / "run" / "run.json").read_text())
    assert run["progress"]["finished"]
    assert run["recipe"]["encoder"]["name"] == name
    events = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    losses = [event["loss"] for event in events if "loss" in event]
    assert losses
    assert all(math.isfinite(loss) for loss in losses)
