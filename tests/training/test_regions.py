"""Whole runs that look at regions: cut out of the encoder's grid, or given with their vectors."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import tiny
from saywhy.captioners import captioners
from saywhy.data.datasets import read
from saywhy.data.region_inputs import find_regions
from saywhy.errors import UserError
from saywhy.inference.evaluation import caption_split
from saywhy.inference.model import load
from saywhy.training import trainer
from saywhy.training.objectives import LogLikelihood
from saywhy.training.recipe import Recipe, from_table
from saywhy.training.trainer import train

pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')

RECIPE = """
name = "tiny"
[vocabulary]
min_count = 1
[preprocessing]
size = 64
[regions]
kind = "boxes"
most = 5
[encoder]
name = "efficientnet-lite0"
weights = "none"
[captioner]
embedding = 16
hidden = 16
attention = 16
dropout = 0.3
[training]
epochs = 2
batch = 4
warmup = 2
lr = 0.01
[decoding]
beam = 2
"""
OWNER, MIRROR = torch.tensor([0, 1, 1]), torch.ones(2, dtype=torch.bool)


def recipe(**changes: dict) -> Recipe:
    table = tomllib.loads(RECIPE)
    for name, change in changes.items():
        table[name] = {**table.get(name, {}), **change}
    return from_table(table)


def features(**training: object) -> Recipe:
    return recipe(regions={"kind": "features"}, encoder={"name": "features"}, training=training)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of a light square left or right, its box, and features that tell the side."""
    folder = tmp_path_factory.mktemp("shapes")
    (folder / "features").mkdir()
    lines, captions = [], [["image", "caption", "split"]]
    random = np.random.default_rng(0)
    for number in range(12):
        right = number % 2
        pixels = random.integers(0, 60, (48, 64, 3), dtype=np.uint8)
        box = [36, 12, 60, 36] if right else [4, 12, 28, 36]
        pixels[box[1] : box[3], box[0] : box[2]] = 250
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(
            {"image": f"{number}.png", "width": 128, "height": 96, "phrases": [{"boxes": [[2 * n for n in box]]}]}
        )
        told = random.normal(0, 0.1, (1 + number % 3, 8)).astype(np.float32) + 2 * right
        boxes = np.tile(np.array(box, np.float32), (len(told), 1))
        np.savez(folder / "features" / f"{number}.npz", features=told, boxes=boxes, image_w=64, image_h=48)
        captions.append([f"{number}.png", f"a square {'there' if right else 'here'}", "train" if number < 8 else "dev"])
    (folder / "boxes.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(captions)
    return folder


def losses(folder: Path) -> list[float]:
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if "loss" in event]


def same_weights(one: Path, other: Path) -> bool:
    ours, theirs = (load_file(folder / "checkpoint.safetensors") for folder in (one, other))
    return ours.keys() == theirs.keys() and all(ours[key].equal(theirs[key]) for key in ours)


class Killed(Exception):
    """What ends a run in the middle."""


def killed_and_resumed(monkeypatch, chosen: Recipe, data: Path, out: Path, **more: object) -> None:
    """A run that ends after its third step, beyond a checkpoint, and goes on."""
    whole, steps = trainer.Trainer._step, []

    def step(self, *arguments):
        if len(steps) == 3:
            raise Killed
        steps.append(1)
        return whole(self, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(trainer.Trainer, "_step", step)
        with pytest.raises(Killed):
            train(chosen, read(data), out, device="cpu", workers=0, **more)
    train(chosen, read(data), out, device="cpu", workers=0, resume=True, **more)


VARIED = {"augmentation": {"colour": 0.1}, "encoder": {"finetune_from": "blocks.6"}}


@pytest.mark.parametrize(
    "changes", [{}, VARIED, {"preprocessing": {"fit": "squash"}}], ids=["kept", "varied", "squash"]
)
def test_a_run_with_boxes_captions_images_and_goes_on_as_if_never_stopped(shapes, tmp_path, monkeypatch, changes):
    chosen = recipe(**changes, training={"checkpoint_every": 2})
    train(chosen, read(shapes), tmp_path / "alone", device="cpu", workers=0)
    killed_and_resumed(monkeypatch, chosen, shapes, tmp_path / "killed")
    assert same_weights(tmp_path / "alone", tmp_path / "killed")
    assert json.loads((tmp_path / "alone" / "config.json").read_text())["regions"] == {"kind": "boxes", "most": 5}
    said = load(tmp_path / "alone", "cpu").caption(shapes / "1.png", regions=shapes / "boxes.jsonl.gz")
    assert said.grid is None
    assert said.boxes.shape == (2, 4)
    assert said.alpha.shape == (len(said.words), 2)
    assert said.show().width > 0


def test_a_run_with_features_opens_no_image_and_goes_on_as_if_never_stopped(shapes, tmp_path, monkeypatch):
    data = shutil.copytree(shapes, tmp_path / "data", ignore=shutil.ignore_patterns("*.png", "boxes.jsonl.gz"))
    chosen, where = (
        features(checkpoint_every=2, epochs=30, lr=0.03, doubly_stochastic=0.0),
        {"regions": shapes / "features"},
    )
    train(chosen, read(data), tmp_path / "alone", device="cpu", workers=0, **where)
    killed_and_resumed(monkeypatch, chosen, data, tmp_path / "killed", **where)
    assert same_weights(tmp_path / "alone", tmp_path / "killed")
    assert np.mean(losses(tmp_path / "alone")[-3:]) < 0.6 * np.mean(losses(tmp_path / "alone")[:3])
    model = load(tmp_path / "alone", "cpu")
    assert model.captioner.encoder.width == 8
    said = [model.caption(shapes / f"{n}.png", shapes / "features").text for n in (8, 9, 10, 11)]
    assert said == ["a square here", "a square there"] * 2
    with Image.open(shapes / "9.png") as image:
        caption = model.caption(image, shapes / "features")
    assert caption.text == said[1]
    assert caption.region == (0, 0, 64, 48)
    np.testing.assert_allclose(caption.boxes, [[36 / 64, 0.25, 60 / 64, 0.75]], rtol=1e-6)


def test_evaluation_and_captioning_say_the_same(shapes, tmp_path):
    train(recipe(training={"epochs": 1}), read(shapes), tmp_path / "run", device="cpu", workers=0)
    model, images = load(tmp_path / "run", "cpu"), read(shapes).split("dev").images
    given = find_regions(model.regions, None, "it", shapes)
    said = caption_split(
        model.captioner, model.vocabulary, model.preprocessing, images, model.decoding,
        batch=3, workers=0, regions=given,
    ).captions  # fmt: skip
    for image in images:
        caption = model.caption(image.path, regions=given.table)
        assert caption.words == said[image.name].words
        np.testing.assert_allclose(caption.alpha, said[image.name].alpha, atol=1e-5)
        np.testing.assert_array_equal(caption.boxes, said[image.name].boxes)


def test_a_frozen_grid_from_the_cache_gives_the_regions_of_the_pixels():
    captioner, words, pixels = tiny.opinionated(), tiny.captions(3), tiny.pixels(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9], [0] * 4]] * 2)
    objective, grid = LogLikelihood(captioner, 64, penalty=1.0), captioner.encode(pixels)
    from_pixels = objective(pixels, MIRROR, words, OWNER, None, boxes)
    from_cache = objective(grid.vectors, MIRROR, words, OWNER, grid.grid, boxes)
    torch.testing.assert_close(from_pixels.loss, from_cache.loss)
    assert not torch.isclose(from_pixels.loss, objective(pixels, MIRROR, words, OWNER, None).loss)


def test_absent_regions_teach_nothing():
    captioner, words, pixels = tiny.opinionated(), tiny.captions(3), tiny.pixels(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9]]] * 2)
    objective = LogLikelihood(captioner, 64, penalty=1.0)
    padded = torch.cat([boxes, torch.zeros(2, 4, 4)], dim=1)
    one, other = (objective(pixels, MIRROR, words, OWNER, None, each) for each in (boxes, padded))
    torch.testing.assert_close(one.loss, other.loss)


def test_teachers_see_the_regions_too(shapes, tmp_path):
    train(recipe(training={"epochs": 1}), read(shapes), tmp_path / "teacher", device="cpu", workers=0)
    taught = recipe(training={"epochs": 1, "distil": 0.5})
    train(taught, read(shapes), tmp_path / "student", device="cpu", workers=0, teachers=[tmp_path / "teacher"])
    grid = replace(taught, regions=None)
    with pytest.raises(UserError, match="kind of regions"):
        train(grid, read(shapes), tmp_path / "other", device="cpu", workers=0, teachers=[tmp_path / "teacher"])


def test_a_run_is_not_resumed_on_other_regions(shapes, tmp_path):
    data = shutil.copytree(shapes, tmp_path / "data")
    train(recipe(training={"epochs": 1}), read(data), tmp_path / "run", device="cpu", workers=0)
    lines = gzip.decompress((data / "boxes.jsonl.gz").read_bytes()).decode().splitlines()
    (data / "boxes.jsonl.gz").write_bytes(gzip.compress("\n".join([*lines, lines[0]]).encode()))
    with pytest.raises(UserError, match="different: the regions' file"):
        train(recipe(training={"epochs": 1}), read(data), tmp_path / "run", device="cpu", workers=0, resume=True)


def test_a_broken_image_among_regions_is_skipped(shapes, tmp_path):
    data = shutil.copytree(shapes, tmp_path / "data")
    for number in (3, 9):
        (data / f"{number}.png").write_text("not an image")
    train(recipe(**VARIED), read(data), tmp_path / "run", device="cpu", workers=0)
    assert np.isfinite(losses(tmp_path / "run")).all()
    assert "3.png" in json.loads((tmp_path / "run" / "run.json").read_text())["broken"][0]


def test_what_does_not_go_together_is_refused_before_anything_is_written(shapes, tmp_path):
    for changes, said in (
        ({"regions": {"kind": "features"}}, "go together"),
        ({"encoder": {"name": "features"}}, "go together"),
        ({"regions": {"kind": "features"}, "encoder": {"name": "features"}, "augmentation": {}}, "no pixels to vary"),
        ({"regions": {"kind": "cells"}}, "regions.kind 'cells'"),
    ):
        with pytest.raises(UserError, match=said):
            recipe(**changes)
    data = read(shapes)
    for chosen, where, said in (
        (features(), None, "say where they are with --regions PATH"),
        (features(), shapes / "boxes.jsonl.gz", "boxes without features"),
        (replace(recipe(), regions=None), shapes / "boxes.jsonl.gz", "looks at a grid"),
    ):
        with pytest.raises(UserError, match=said):
            train(chosen, data, tmp_path / "run", device="cpu", workers=0, regions=where)
    few = shutil.copytree(shapes / "features", tmp_path / "few")
    (few / "9.npz").unlink()
    with pytest.raises(UserError, match=r"no regions for 1 of 4 images, such as 9\.png"):
        train(features(), data, tmp_path / "run", device="cpu", workers=0, regions=few)
    assert not (tmp_path / "run").exists()


@pytest.mark.data
def test_regions_of_real_images_are_learned_from(flickr8k, tmp_path):
    data = read(flickr8k)
    chosen = {"train": 6, "dev": 3}
    few = tuple(image for split, count in chosen.items() for image in data.split(split).images[:count])
    train(recipe(**VARIED, regions={"most": 12}), replace(data, images=few), tmp_path / "run", device="cpu", workers=0)
    assert np.isfinite(losses(tmp_path / "run")).all()
    said = load(tmp_path / "run", "cpu").caption(few[0].path, regions=flickr8k / "boxes.jsonl.gz")
    assert 2 < len(said.boxes) <= 12


@pytest.mark.parametrize("name", list(captioners))
def test_every_captioner_learns_from_regions(name):
    captioner, words, pixels = tiny.captioner(name), tiny.captions(3), tiny.pixels(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9], [0] * 4], [[0, 0, 1, 1], [0] * 4, [0] * 4]])
    sums = LogLikelihood(captioner.train(), 64, penalty=1.0, drop_image=0.3)(
        pixels, MIRROR, words, OWNER, None, boxes.float()
    )
    sums.loss.backward()
    learned = [parameter.grad for parameter in captioner.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in learned)
    assert any(gradient.any() for gradient in learned)
