"""Whole runs on made-up images: killed and resumed, spread over processes, with broken files."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from saywhy.data.datasets import read
from saywhy.errors import UserError
from saywhy.training.recipe import Recipe, from_table, read_recipe
from saywhy.training.trainer import train

pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')

pytestmark = pytest.mark.usefixtures("one_thread")  # as in the processes started here: weights equal to the bit
COLOURS = {"red": (200, 40, 40), "green": (40, 170, 60), "blue": (50, 70, 210), "grey": (120, 120, 120)}
RECIPE = """
name = "tiny"
[vocabulary]
min_count = 1
[preprocessing]
size = 64
fit = "squash"
[augmentation]
colour = 0.1
[encoder]
name = "efficientnet-lite0"
weights = "none"
finetune_from = "blocks.6"
[captioner]
embedding = 16
hidden = 16
attention = 16
dropout = 0.3
[training]
epochs = 3
batch = 4
warmup = 2
average = 0.9
label_smoothing = 0.1
checkpoint_every = 2
[decoding]
beam = 2
"""


@pytest.fixture(scope="module")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen plain images, captioned with their colour, in a folder with a split column."""
    folder = tmp_path_factory.mktemp("colours")
    random = np.random.default_rng(0)
    with (folder / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption", "split"])
        for number in range(16):
            name, colour = list(COLOURS.items())[number % 4]
            noise = random.integers(-20, 20, (48, 64, 3))
            Image.fromarray((np.array(colour) + noise).clip(0, 255).astype(np.uint8)).save(folder / f"{number}.png")
            split = "train" if number < 12 else "dev"
            rows.writerow([f"{number}.png", f"a {name} wall", split])
            rows.writerow([f"{number}.png", f"this is a {name} image", split])
    return folder


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(RECIPE)
    return path


def tiny(**training: object) -> Recipe:
    """The recipe, with other settings of training."""
    table = tomllib.loads(RECIPE)
    table["training"] |= training
    return from_table(table)


def start(arguments: list[object], **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, *map(str, arguments)]
    told = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.Popen(command, env=told, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def same_weights(one: Path, other: Path, name: str) -> bool:
    ours, theirs = load_file(one / name), load_file(other / name)
    return ours.keys() == theirs.keys() and all(ours[key].equal(theirs[key]) for key in ours)


def losses(folder: Path) -> list[float]:
    events = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [event["loss"] for event in events if "loss" in event]


def test_a_run_killed_with_sigkill_and_resumed_ends_with_the_weights_of_one_left_alone(colours, recipe, tmp_path):
    run = ["-m", "saywhy", "train", recipe, "--data", colours, "--device", "cpu", "--workers", 0]
    killed = start([*run, "--out", tmp_path / "killed"])
    log = tmp_path / "killed" / "log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= 5):  # beyond a checkpoint, within the second epoch
        assert killed.poll() is None, killed.communicate()[0]
        assert time.monotonic() < deadline, "the run did not get anywhere"
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    resumed = start([*run, "--out", tmp_path / "killed", "--resume"])
    train(tiny(), read(colours), tmp_path / "alone", device="cpu", workers=0)
    assert resumed.wait() == 0, resumed.communicate()[0]
    assert same_weights(tmp_path / "alone", tmp_path / "killed", "model.safetensors")
    assert same_weights(tmp_path / "alone", tmp_path / "killed", "checkpoint.safetensors")
    assert losses(tmp_path / "alone") == losses(tmp_path / "killed")


def test_two_processes_have_the_loss_curve_of_one_and_name_the_same_broken_images(colours, recipe, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "data")
    for number in (2, 3, 4):
        (folder / f"{number}.png").write_text("not an image")
    still = RECIPE.replace("[augmentation]\ncolour = 0.1\n", "").replace("dropout = 0.3", "dropout = 0.0")
    recipe.write_text(still)
    run = ["-m", "saywhy", "train", recipe, "--data", folder, "--device", "cpu", "--workers", 0]
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", 2, "--standalone"]
    two = start([*launcher, *run, "--out", tmp_path / "two"])
    train(read_recipe(recipe), read(folder), tmp_path / "one", device="cpu", workers=0)
    assert two.wait() == 0, two.communicate()[0]
    assert len(losses(tmp_path / "one")) == 9
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-4)
    alone, shared = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two"))
    assert shared["processes"] == 2
    assert len(shared["broken"]) == 3
    assert shared["broken"] == alone["broken"]


@pytest.mark.parametrize("name", ["hard-attention", "coca"])
def test_what_draws_or_has_a_loss_of_its_own_goes_on_after_a_stop_as_if_there_was_none(name, colours, tmp_path):
    table = tomllib.loads(RECIPE)
    sizes = {"width": 16, "heads": 2} if name == "coca" else {"hidden": 16, "embedding": 16, "attention": 16}
    table["captioner"] = {"name": name, **sizes}
    table["training"] |= {"drop_image": 0.3}

    def stop(event: dict) -> None:
        if event["kind"] == "step" and event["step"] == 5:
            raise KeyboardInterrupt

    how = {"device": "cpu", "workers": 0}
    train(from_table(table), read(colours), tmp_path / "alone", **how)
    with pytest.raises(KeyboardInterrupt):
        train(from_table(table), read(colours), tmp_path / "stopped", on_event=stop, **how)
    train(from_table(table), read(colours), tmp_path / "stopped", resume=True, **how)
    assert same_weights(tmp_path / "alone", tmp_path / "stopped", "model.safetensors")
    assert same_weights(tmp_path / "alone", tmp_path / "stopped", "checkpoint.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hard-attention", "ada-lstm", "mh-fc", "coca"])
def test_every_captioner_trains_in_two_processes_and_also_without_images(name, colours, recipe, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "data")
    (folder / "2.png").write_text("not an image")
    sizes = "width = 16\nheads = 2" if name == "coca" else "hidden = 16\nembedding = 16"
    table = RECIPE.replace(
        "embedding = 16\nhidden = 16\nattention = 16", f'name = "{name}"\nno_image = "learned"\n{sizes}'
    )
    recipe.write_text(table.replace("warmup = 2", "warmup = 2\ndrop_image = 0.5\ndoubly_stochastic = 0.1"))
    run = [
        "-m",
        "saywhy",
        "train",
        recipe,
        "--data",
        folder,
        "--device",
        "cpu",
        "--workers",
        0,
        "--out",
        tmp_path / "two",
    ]
    two = start(["-m", "torch.distributed.run", "--nproc-per-node", 2, "--standalone", *run])
    assert two.wait() == 0, two.communicate()[0]
    assert len(losses(tmp_path / "two")) == 9
    learnt = load_file(tmp_path / "two" / "model.safetensors")
    assert learnt["no_image"].abs().sum() > 0


@pytest.mark.parametrize("batches", ["images", "equal-length"])
@pytest.mark.parametrize("optimiser", ["adam", "rmsprop"])
def test_training_lowers_the_loss(colours, tmp_path, batches, optimiser):
    how = {"batches": batches, "optimiser": optimiser, "epochs": 6, "lr": 0.01, "average": 0.0, "checkpoint_every": 0}
    train(tiny(**how), read(colours), tmp_path / "run", device="cpu", workers=0)
    curve = losses(tmp_path / "run")
    assert np.mean(curve[-3:]) < 0.7 * np.mean(curve[:3])


def test_accumulated_batches_make_the_step_of_one_large_batch(colours, tmp_path):
    still = tomllib.loads(RECIPE)
    still |= {"captioner": {**still["captioner"], "dropout": 0.0}}
    del still["augmentation"]
    for name, batch, accumulate in (("large", 12, 1), ("small", 4, 3)):
        still["training"] |= {"batch": batch, "accumulate": accumulate, "epochs": 2, "clip": 0.0}
        train(from_table(still), read(colours), tmp_path / name, device="cpu", workers=0)
    np.testing.assert_allclose(losses(tmp_path / "small"), losses(tmp_path / "large"), rtol=1e-4)


def test_a_frozen_encoder_runs_once_a_image_and_a_second_run_reads_its_features(colours, tmp_path):
    frozen = tomllib.loads(RECIPE)
    del frozen["augmentation"]
    frozen["encoder"]["finetune_from"] = ""
    events: list[dict] = []
    for name in ("first", "second"):
        settings = {"device": "cpu", "workers": 0, "cache": tmp_path / "cache", "on_event": events.append}
        train(from_table(frozen), read(colours), tmp_path / name, **settings)
    encoded = [event for event in events if event["kind"] == "encode"]
    assert encoded[-1]["done"] == 12
    assert len(encoded) == 1
    assert losses(tmp_path / "first") == losses(tmp_path / "second")


def test_a_broken_image_is_named_and_skipped_and_training_goes_on(colours, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "data")
    (folder / "3.png").write_text("not an image")
    (folder / "13.png").unlink()
    events: list[dict] = []
    train(tiny(), read(folder), tmp_path / "run", device="cpu", workers=0, on_event=events.append)
    named = [event for event in events if event["kind"] == "broken"]
    assert [event["count"] for event in named] == [1]
    assert "3.png" in named[0]["line"]
    assert "3.png" in json.loads((tmp_path / "run" / "run.json").read_text())["broken"][0]


def test_a_student_learns_from_its_teachers(colours, tmp_path):
    train(tiny(epochs=1), read(colours), tmp_path / "teacher", device="cpu", workers=0)
    taught = tiny(epochs=1, distil=0.5)
    train(taught, read(colours), tmp_path / "student", device="cpu", workers=0, teachers=[tmp_path / "teacher"])
    assert (tmp_path / "student" / "model.safetensors").exists()
    with pytest.raises(UserError, match="teacher"):
        train(taught, read(colours), tmp_path / "alone", device="cpu", workers=0)


def test_of_equal_epochs_the_later_one_is_kept(colours, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "data")
    table = (folder / "captions.csv").read_text().splitlines()
    (folder / "captions.csv").write_text("\n".join(row for row in table if row[:2] not in ("13", "14", "15")))
    progress = train(tiny(epochs=3), read(folder), tmp_path / "run", device="cpu", workers=0)
    assert [event["cider"] for event in progress.history] == [0.0, 0.0, 0.0]  # as always with one image
    assert progress.best_epoch == 2


def test_a_run_is_not_resumed_on_other_captions(colours, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "data")
    train(tiny(epochs=1), read(folder), tmp_path / "run", device="cpu", workers=0)
    text = (folder / "captions.csv").read_text()
    (folder / "captions.csv").write_text(text.replace("a red wall", "a wall red"))
    with pytest.raises(UserError, match="different: data"):
        train(tiny(epochs=1), read(folder), tmp_path / "run", device="cpu", workers=0, resume=True)


def test_a_data_set_without_its_images_is_refused_before_anything_is_written(colours, tmp_path):
    shutil.copytree(colours, tmp_path / "data", ignore=shutil.ignore_patterns("*.png"))
    with pytest.raises(UserError, match="none of the 12 images of train is there"):
        train(tiny(), read(tmp_path / "data"), tmp_path / "run", device="cpu", workers=0)
    assert not (tmp_path / "run").exists()


def test_without_a_minimum_the_most_frequent_words_are_the_vocabulary(colours, tmp_path):
    table = tomllib.loads(RECIPE)
    table["vocabulary"] = {"size": 3}
    table["training"]["epochs"] = 1
    train(from_table(table), read(colours), tmp_path / "run", device="cpu", workers=0)
    assert len(json.loads((tmp_path / "run" / "vocabulary.json").read_text())) == 4 + 3


def test_patience_ends_a_run_that_no_longer_gets_better(colours, tmp_path):
    progress = train(tiny(epochs=9, lr=0.0, patience=2), read(colours), tmp_path / "run", device="cpu", workers=0)
    assert progress.epoch < 9
    assert progress.epoch - 1 - progress.improved == 2


def test_a_run_leaves_a_model_a_log_curves_and_what_it_was_made_of(colours, tmp_path):
    train(tiny(epochs=1), read(colours), tmp_path / "run", device="cpu", workers=0)
    there = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.json", "model.safetensors", "vocabulary.json", "checkpoint.safetensors", "log.jsonl", "run.json"}
    assert files | {"curves.png", "tensorboard"} <= there
    assert not [name for name in there if name.endswith(".part")]


def test_a_folder_that_holds_a_run_is_not_written_over(colours, tmp_path):
    train(tiny(epochs=1), read(colours), tmp_path / "run", device="cpu", workers=0)
    with pytest.raises(UserError, match="--resume"):
        train(tiny(epochs=1), read(colours), tmp_path / "run", device="cpu", workers=0)
    with pytest.raises(UserError, match="another recipe"):
        train(tiny(epochs=2), read(colours), tmp_path / "run", device="cpu", workers=0, resume=True)
    with pytest.raises(UserError, match="no checkpoint"):
        train(tiny(epochs=2), read(colours), tmp_path / "new", device="cpu", workers=0, resume=True)
