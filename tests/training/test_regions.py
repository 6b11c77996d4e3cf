"""Complete runs over regions: pooled from the encoder's grid, or with precomputed features."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import tiny
from saywhy.captioners import captioners
from saywhy.data.datasets import read
from saywhy.data.region_files import find_regions
from saywhy.errors import UserError
from saywhy.inference.evaluation import caption_split
from saywhy.inference.model import load
from saywhy.training.objectives import CaptionLoss
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
IMAGE_INDEX, MAY_FLIP = torch.tensor([0, 1, 1]), torch.ones(2, dtype=torch.bool)
ON_CPU: dict[str, Any] = {"device": "cpu", "workers": 0}
FEATURES = {"regions": {"kind": "features"}, "encoder": {"name": "features"}}
AUGMENTED = {"augmentation": {"colour": 0.1}, "encoder": {"finetune_from": "blocks.6"}}


def recipe(**changes: dict) -> Recipe:
    table = tomllib.loads(RECIPE)
    for name, change in changes.items():
        table[name] = {**table.get(name, {}), **change}
    return from_table(table)


def features_recipe(**training: object) -> Recipe:
    return recipe(**FEATURES, training=training)


@pytest.fixture(scope="module")
def squares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of a light square left or right, its box, and features that depend on the side."""
    folder = tmp_path_factory.mktemp("squares")
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
        vectors = random.normal(0, 0.1, (1 + number % 3, 8)).astype(np.float32) + 2 * right
        boxes = np.tile(np.array(box, np.float32), (len(vectors), 1))
        np.savez(folder / "features" / f"{number}.npz", features=vectors, boxes=boxes, image_w=64, image_h=48)
        captions.append([f"{number}.png", f"a square {'there' if right else 'here'}", "train" if number < 8 else "dev"])
    (folder / "boxes.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(captions)
    return folder


def losses(folder: Path) -> list[float]:
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if "loss" in event]


def same_weights(first: Path, second: Path) -> bool:
    ours, theirs = (load_file(folder / "checkpoint.safetensors") for folder in (first, second))
    return ours.keys() == theirs.keys() and all(ours[key].equal(theirs[key]) for key in ours)


def train_interrupted(settings: Recipe, data: Path, out: Path, **more: object) -> None:
    """A run that is interrupted after its third step, beyond a checkpoint, and resumed."""

    def on_event(event: dict) -> None:
        if event["kind"] == "step" and event["step"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(settings, read(data), out, on_event=on_event, **ON_CPU, **more)
    train(settings, read(data), out, resume=True, **ON_CPU, **more)


@pytest.mark.parametrize(
    "changes", [{}, AUGMENTED, {"preprocessing": {"fit": "squash"}}], ids=["cached", "augmented", "squash"]
)
def test_a_run_over_boxes_captions_images_and_resumes_exactly(squares, tmp_path, changes):
    settings = recipe(**changes, training={"checkpoint_every": 2})
    train(settings, read(squares), tmp_path / "uninterrupted", **ON_CPU)
    train_interrupted(settings, squares, tmp_path / "interrupted")
    assert same_weights(tmp_path / "uninterrupted", tmp_path / "interrupted")
    config = json.loads((tmp_path / "uninterrupted" / "config.json").read_text())
    assert config["regions"] == {"kind": "boxes", "most": 5}
    model = load(tmp_path / "uninterrupted", "cpu")
    caption = model.caption(squares / "1.png", regions=squares / "boxes.jsonl.gz")
    assert caption.grid is None
    assert caption.boxes.shape == (2, 4)
    assert caption.alpha.shape == (len(caption.words), 2)
    assert caption.show().width > 0


def test_a_run_over_precomputed_features_opens_no_image_and_resumes_exactly(squares, tmp_path):
    data = shutil.copytree(squares, tmp_path / "data", ignore=shutil.ignore_patterns("*.png", "boxes.jsonl.gz"))
    settings = features_recipe(checkpoint_every=2, epochs=30, lr=0.03, doubly_stochastic=0.0, evaluate_every=10)
    train(settings, read(data), tmp_path / "uninterrupted", regions=squares / "features", **ON_CPU)
    train_interrupted(settings, data, tmp_path / "interrupted", regions=squares / "features")
    assert same_weights(tmp_path / "uninterrupted", tmp_path / "interrupted")
    curve = losses(tmp_path / "uninterrupted")
    assert np.mean(curve[-3:]) < 0.6 * np.mean(curve[:3])
    model = load(tmp_path / "uninterrupted", "cpu")
    assert model.captioner.encoder.width == 8
    texts = [model.caption(squares / f"{n}.png", regions=squares / "features").text for n in (8, 9, 10, 11)]
    assert texts == ["a square here", "a square there"] * 2
    with Image.open(squares / "9.png") as image:
        caption = model.caption(image, regions=squares / "features")
    assert caption.text == texts[1]
    assert caption.crop == (0, 0, 64, 48)
    np.testing.assert_allclose(caption.boxes, [[36 / 64, 0.25, 60 / 64, 0.75]], rtol=1e-6)


def test_captions_of_a_split_equal_captions_of_single_images(squares, tmp_path):
    train(recipe(training={"epochs": 1}), read(squares), tmp_path / "run", **ON_CPU)
    model, images = load(tmp_path / "run", "cpu"), read(squares).split("dev").images
    regions = find_regions(model.regions, None, "it", squares)
    captions = caption_split(
        model.captioner, model.vocabulary, model.preprocessing, images, model.decoding,
        batch_size=3, workers=0, regions=regions,
    ).captions  # fmt: skip
    for image in images:
        caption = model.caption(image.path, regions=regions.table)
        assert caption.words == captions[image.name].words
        np.testing.assert_allclose(caption.alpha, captions[image.name].alpha, atol=1e-5)
        np.testing.assert_array_equal(caption.boxes, captions[image.name].boxes)


def test_a_cached_grid_gives_the_same_regions_as_pixels():
    captioner, tokens, pixels = tiny.sensitive_captioner(), tiny.captions(3), tiny.pixels(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9], [0] * 4]] * 2)
    loss, grid = CaptionLoss(captioner, 64, penalty=1.0), captioner.encode(pixels)
    from_pixels = loss(pixels, MAY_FLIP, tokens, IMAGE_INDEX, None, boxes)
    from_cache = loss(grid.vectors, MAY_FLIP, tokens, IMAGE_INDEX, grid.grid, boxes)
    torch.testing.assert_close(from_pixels.loss, from_cache.loss)
    assert not torch.isclose(from_pixels.loss, loss(pixels, MAY_FLIP, tokens, IMAGE_INDEX, None).loss)


def test_padding_regions_do_not_change_the_loss():
    captioner, tokens, pixels = tiny.sensitive_captioner(), tiny.captions(3), tiny.pixels(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9]]] * 2)
    loss = CaptionLoss(captioner, 64, penalty=1.0)
    padded = torch.cat([boxes, torch.zeros(2, 4, 4)], dim=1)
    expected = loss(pixels, MAY_FLIP, tokens, IMAGE_INDEX, None, boxes)
    torch.testing.assert_close(loss(pixels, MAY_FLIP, tokens, IMAGE_INDEX, None, padded).loss, expected.loss)


def test_teachers_get_the_same_regions(squares, tmp_path):
    train(recipe(training={"epochs": 1}), read(squares), tmp_path / "teacher", **ON_CPU)
    student = recipe(training={"epochs": 1, "distil": 0.5})
    train(student, read(squares), tmp_path / "student", teachers=[tmp_path / "teacher"], **ON_CPU)
    grid_student = replace(student, regions=None)
    with pytest.raises(UserError, match="kind of regions"):
        train(grid_student, read(squares), tmp_path / "other", teachers=[tmp_path / "teacher"], **ON_CPU)


def test_a_run_is_not_resumed_with_other_regions(squares, tmp_path):
    data = shutil.copytree(squares, tmp_path / "data")
    train(recipe(training={"epochs": 1}), read(data), tmp_path / "run", **ON_CPU)
    lines = gzip.decompress((data / "boxes.jsonl.gz").read_bytes()).decode().splitlines()
    (data / "boxes.jsonl.gz").write_bytes(gzip.compress("\n".join([*lines, lines[0]]).encode()))
    with pytest.raises(UserError, match="a run with other regions"):
        train(recipe(training={"epochs": 1}), read(data), tmp_path / "run", resume=True, **ON_CPU)


def test_an_unreadable_image_is_skipped(squares, tmp_path):
    data = shutil.copytree(squares, tmp_path / "data")
    for number in (3, 9):
        (data / f"{number}.png").write_text("not an image")
    train(recipe(**AUGMENTED), read(data), tmp_path / "run", **ON_CPU)
    assert np.isfinite(losses(tmp_path / "run")).all()
    assert "3.png" in json.loads((tmp_path / "run" / "run.json").read_text())["unreadable"][0]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"regions": {"kind": "features"}}, "go together"),
        ({"encoder": {"name": "features"}}, "go together"),
        (
            {"regions": {"kind": "features"}, "encoder": {"name": "features"}, "augmentation": {}},
            "no pixels to augment",
        ),
        ({"regions": {"kind": "cells"}}, "regions.kind 'cells'"),
    ],
)
def test_contradictory_region_settings_are_refused(changes, error):
    with pytest.raises(UserError, match=error):
        recipe(**changes)


def test_regions_that_do_not_fit_are_refused_before_anything_is_written(squares, tmp_path):
    data = read(squares)
    for settings, location, error in (
        (features_recipe(), None, "--regions PATH"),
        (features_recipe(), squares / "boxes.jsonl.gz", "boxes without features"),
        (replace(recipe(), regions=None), squares / "boxes.jsonl.gz", "grid"),
    ):
        with pytest.raises(UserError, match=error):
            train(settings, data, tmp_path / "run", regions=location, **ON_CPU)
    incomplete = shutil.copytree(squares / "features", tmp_path / "incomplete")
    (incomplete / "9.npz").unlink()
    with pytest.raises(UserError, match=r"no regions for 1 of 4 images, such as 9\.png"):
        train(features_recipe(), data, tmp_path / "run", regions=incomplete, **ON_CPU)
    assert not (tmp_path / "run").exists()


@pytest.mark.data
def test_a_run_over_regions_of_flickr8k_captions_images(flickr8k, tmp_path):
    data = read(flickr8k)
    images = (*data.split("train").images[:6], *data.split("dev").images[:3])
    train(recipe(**AUGMENTED, regions={"most": 12}), replace(data, images=images), tmp_path / "run", **ON_CPU)
    assert np.isfinite(losses(tmp_path / "run")).all()
    caption = load(tmp_path / "run", "cpu").caption(images[0].path, regions=flickr8k / "boxes.jsonl.gz")
    assert 2 < len(caption.boxes) <= 12


@pytest.mark.parametrize("name", list(captioners))
def test_every_captioner_has_finite_gradients_over_regions(name):
    captioner, tokens, pixels = tiny.captioner(name), tiny.captions(3), tiny.pixels(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9], [0] * 4], [[0, 0, 1, 1], [0] * 4, [0] * 4]])
    loss = CaptionLoss(captioner.train(), 64, penalty=1.0, conditioning_dropout=0.3)
    loss(pixels, MAY_FLIP, tokens, IMAGE_INDEX, None, boxes.float()).loss.backward()
    gradients = [parameter.grad for parameter in captioner.parameters() if parameter.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients)
