"""Complete runs on generated images: interrupted and resumed, in several processes, with unreadable files."""

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
from typing import Any

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file

from saywhy.data.datasets import read
from saywhy.errors import UserError
from saywhy.training import trainer
from saywhy.training.recipe import Recipe, from_table, read_recipe
from saywhy.training.trainer import train

pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')

pytestmark = pytest.mark.usefixtures("one_thread")  # as in the processes started here, for equal weights
COLOURS = {"red": (200, 40, 40), "green": (40, 170, 60), "blue": (50, 70, 210), "grey": (120, 120, 120)}
ON_CPU: dict[str, Any] = {"device": "cpu", "workers": 0}
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
    """Sixteen images of one colour each, captioned with their colour, in a folder with a split column."""
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
    """The recipe with other training settings."""
    table = tomllib.loads(RECIPE)
    table["training"] |= training
    return from_table(table)


def without_random_numbers() -> dict:
    """The recipe without augmentation and dropout."""
    table = tomllib.loads(RECIPE)
    del table["augmentation"]
    table["captioner"]["dropout"] = 0.0
    return table


def start(arguments: list[object]) -> subprocess.Popen[str]:
    command = [sys.executable, *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def train_command(recipe: Path, data: Path, out: Path, *more: object) -> list[object]:
    return ["-m", "saywhy", "train", recipe, "--data", data, "--out", out, "--device", "cpu", "--workers", 0, *more]


def wait_for_steps(process: subprocess.Popen[str], out: Path, steps: int) -> None:
    log = out / "log.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") >= steps):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the run made no progress"
        time.sleep(0.01)


def stop_at(step: int) -> Any:
    """An `on_event` that interrupts the run after this step."""

    def on_event(event: dict) -> None:
        if event["kind"] == "step" and event["step"] == step:
            raise KeyboardInterrupt

    return on_event


def same_weights(first: Path, second: Path, *names: str) -> bool:
    for name in names or ("model.safetensors", "checkpoint.safetensors"):
        ours, theirs = load_file(first / name), load_file(second / name)
        if ours.keys() != theirs.keys() or not all(ours[key].equal(theirs[key]) for key in ours):
            return False
    return True


def log_events(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


def losses(folder: Path) -> list[float]:
    return [event["loss"] for event in log_events(folder) if "loss" in event]


@pytest.fixture(scope="module")
def uninterrupted(colours: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that was never interrupted."""
    out = tmp_path_factory.mktemp("uninterrupted") / "run"
    train(tiny(), read(colours), out, **ON_CPU)
    return out


EXIT_CODES = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 128 + signal.SIGTERM}


@pytest.mark.parametrize("number", EXIT_CODES)
def test_a_run_locks_its_folder_and_resumes_exactly_after_a_signal(number, colours, recipe, uninterrupted, tmp_path):
    process = start(train_command(recipe, colours, tmp_path / "run"))
    wait_for_steps(process, tmp_path / "run", 5)  # after a checkpoint, within the second epoch
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(UserError, match="another process is training into this folder"):
        train(tiny(), read(colours), tmp_path / "run", resume=True, **ON_CPU)
    process.send_signal(number)
    process.send_signal(signal.SIGCONT)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == EXIT_CODES[number], output
    assert "Traceback" not in output
    if number == signal.SIGTERM:
        assert output.splitlines()[-1] == "saywhy: interrupted; continue from the last checkpoint with --resume"
        assert not list((tmp_path / "run").glob(".*.part"))
    train(tiny(), read(colours), tmp_path / "run", resume=True, **ON_CPU)
    assert same_weights(uninterrupted, tmp_path / "run")
    assert losses(uninterrupted) == losses(tmp_path / "run")


def test_two_processes_have_the_losses_of_one_and_report_the_same_unreadable_images(colours, recipe, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "data")
    for number in (2, 3, 4):
        (folder / f"{number}.png").write_text("not an image")
    recipe.write_text(RECIPE.replace("[augmentation]\ncolour = 0.1\n", "").replace("dropout = 0.3", "dropout = 0.0"))
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", 2, "--standalone"]
    two = start([*launcher, *train_command(recipe, folder, tmp_path / "two")])
    train(read_recipe(recipe), read(folder), tmp_path / "one", **ON_CPU)
    assert two.wait() == 0, two.communicate()[0]
    assert len(losses(tmp_path / "one")) == 9
    np.testing.assert_allclose(losses(tmp_path / "two"), losses(tmp_path / "one"), rtol=1e-4)
    run_of_one, run_of_two = (json.loads((tmp_path / name / "run.json").read_text()) for name in ("one", "two"))
    assert run_of_two["processes"] == 2
    assert len(run_of_two["unreadable"]) == 3
    assert run_of_two["unreadable"] == run_of_one["unreadable"]


@pytest.mark.parametrize("name", ["hard-attention", "coca"])
def test_captioners_that_sample_or_have_an_auxiliary_loss_resume_exactly(name, colours, tmp_path):
    table = tomllib.loads(RECIPE)
    sizes = {"width": 16, "heads": 2} if name == "coca" else {"hidden": 16, "embedding": 16, "attention": 16}
    table["captioner"] = {"name": name, **sizes}
    table["training"] |= {"conditioning_dropout": 0.3}
    train(from_table(table), read(colours), tmp_path / "uninterrupted", **ON_CPU)
    with pytest.raises(KeyboardInterrupt):
        train(from_table(table), read(colours), tmp_path / "stopped", on_event=stop_at(5), **ON_CPU)
    train(from_table(table), read(colours), tmp_path / "stopped", resume=True, **ON_CPU)
    assert same_weights(tmp_path / "uninterrupted", tmp_path / "stopped")
    config = json.loads((tmp_path / "stopped" / "config.json").read_text())
    assert config["conditioning_dropout"] == 0.3, "guidance cannot tell that it may use the model without an image"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hard-attention", "ada-lstm", "mh-fc", "coca"])
def test_every_captioner_trains_in_two_processes_and_also_without_images(name, colours, recipe, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "data")
    (folder / "2.png").write_text("not an image")
    sizes = "width = 16\nheads = 2" if name == "coca" else "hidden = 16\nembedding = 16"
    table = RECIPE.replace(
        "embedding = 16\nhidden = 16\nattention = 16", f'name = "{name}"\nno_image = "learned"\n{sizes}'
    )
    recipe.write_text(table.replace("warmup = 2", "warmup = 2\nconditioning_dropout = 0.5\ndoubly_stochastic = 0.1"))
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node", 2, "--standalone"]
    two = start([*launcher, *train_command(recipe, folder, tmp_path / "two")])
    assert two.wait() == 0, two.communicate()[0]
    assert len(losses(tmp_path / "two")) == 9
    assert load_file(tmp_path / "two" / "model.safetensors")["no_image"].abs().sum() > 0


@pytest.mark.parametrize("batches", ["images", "equal-length"])
@pytest.mark.parametrize("optimiser", ["adam", "rmsprop"])
def test_training_lowers_the_loss(colours, tmp_path, batches, optimiser):
    changes = {"batches": batches, "optimiser": optimiser, "epochs": 6, "lr": 0.01, "average": 0.0}
    train(tiny(**changes, checkpoint_every=0), read(colours), tmp_path / "run", **ON_CPU)
    curve = losses(tmp_path / "run")
    assert np.mean(curve[-3:]) < 0.7 * np.mean(curve[:3])


def test_accumulated_batches_make_the_step_of_one_large_batch(colours, tmp_path):
    table = without_random_numbers()
    for name, batch, accumulate in (("large", 12, 1), ("small", 4, 3)):
        table["training"] |= {"batch": batch, "accumulate": accumulate, "epochs": 2, "clip": 0.0}
        train(from_table(table), read(colours), tmp_path / name, **ON_CPU)
    np.testing.assert_allclose(losses(tmp_path / "small"), losses(tmp_path / "large"), rtol=1e-4)


def test_a_frozen_encoder_runs_once_per_image_and_a_second_run_reads_its_features(colours, tmp_path):
    table = tomllib.loads(RECIPE)
    del table["augmentation"]
    table["encoder"]["finetune_from"] = ""
    events: list[dict] = []
    settings = {"cache": tmp_path / "cache", "on_event": events.append, **ON_CPU}
    for name in ("first", "second"):
        train(from_table(table), read(colours), tmp_path / name, **settings)
    encoded = [event for event in events if event["kind"] == "encode"]
    assert encoded == [{"kind": "encode", "done": 12, "total": 12}]
    assert losses(tmp_path / "first") == losses(tmp_path / "second")


def test_an_unreadable_image_is_reported_and_skipped(colours, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "data")
    (folder / "3.png").write_text("not an image")
    (folder / "13.png").unlink()
    events: list[dict] = []
    train(tiny(), read(folder), tmp_path / "run", on_event=events.append, **ON_CPU)
    (event,) = [event for event in events if event["kind"] == "unreadable"]
    assert event["count"] == 1
    assert "3.png" in event["line"]
    assert "3.png" in json.loads((tmp_path / "run" / "run.json").read_text())["unreadable"][0]


def test_a_student_is_distilled_from_its_teachers(colours, tmp_path):
    train(tiny(epochs=1), read(colours), tmp_path / "teacher", **ON_CPU)
    student = tiny(epochs=1, distil=0.5)
    train(student, read(colours), tmp_path / "student", teachers=[tmp_path / "teacher"], **ON_CPU)
    assert (tmp_path / "student" / "model.safetensors").exists()
    with pytest.raises(UserError, match="teacher"):
        train(student, read(colours), tmp_path / "without", **ON_CPU)


def test_of_epochs_with_equal_scores_the_last_one_is_kept(colours, tmp_path):
    folder = shutil.copytree(colours, tmp_path / "data")
    table = (folder / "captions.csv").read_text().splitlines()
    (folder / "captions.csv").write_text("\n".join(row for row in table if row[:2] not in ("13", "14", "15")))
    progress = train(tiny(epochs=3), read(folder), tmp_path / "run", **ON_CPU)
    assert [event["cider"] for event in progress.history] == [0.0, 0.0, 0.0]  # as always with one image
    assert progress.best_epoch == 2


def test_a_run_is_not_resumed_with_other_captions(colours, tmp_path, monkeypatch):
    folder = shutil.copytree(colours, tmp_path / "data")
    train(tiny(epochs=1), read(folder), tmp_path / "run", **ON_CPU)
    text = (folder / "captions.csv").read_text()
    (folder / "captions.csv").write_text(text.replace("a red wall", "a wall red"))
    monkeypatch.setattr(trainer, "build_captioner", None)  # refused before an encoder is built
    with pytest.raises(UserError, match="a run with other data"):
        train(tiny(epochs=1), read(folder), tmp_path / "run", resume=True, **ON_CPU)


def test_a_data_set_without_its_images_is_refused_before_anything_is_written(colours, tmp_path):
    shutil.copytree(colours, tmp_path / "data", ignore=shutil.ignore_patterns("*.png"))
    with pytest.raises(UserError, match="none of the 12 images of train exists"):
        train(tiny(), read(tmp_path / "data"), tmp_path / "run", **ON_CPU)
    assert not (tmp_path / "run").exists()


def test_without_a_minimum_the_most_frequent_words_are_the_vocabulary(colours, tmp_path):
    table = tomllib.loads(RECIPE)
    table["vocabulary"] = {"size": 3}
    table["training"]["epochs"] = 1
    train(from_table(table), read(colours), tmp_path / "run", **ON_CPU)
    assert len(json.loads((tmp_path / "run" / "vocabulary.json").read_text())) == 4 + 3


def test_patience_ends_a_run_without_improvement(colours, tmp_path):
    progress = train(tiny(epochs=9, lr=0.0, patience=2), read(colours), tmp_path / "run", **ON_CPU)
    assert progress.epoch < 9
    assert progress.epoch - 1 - progress.improved == 2


def test_a_run_writes_model_log_curves_and_run_json(colours, tmp_path):
    train(tiny(epochs=1), read(colours), tmp_path / "run", **ON_CPU)
    written = {path.name for path in (tmp_path / "run").iterdir()}
    files = {"config.json", "model.safetensors", "vocabulary.json", "checkpoint.safetensors", "log.jsonl", "run.json"}
    assert files | {"curves.png", "tensorboard"} <= written
    assert not [name for name in written if name.endswith(".part")]


def test_a_folder_that_holds_a_run_is_not_overwritten(colours, tmp_path):
    train(tiny(epochs=1), read(colours), tmp_path / "run", **ON_CPU)
    with pytest.raises(UserError, match="--resume"):
        train(tiny(epochs=1), read(colours), tmp_path / "run", **ON_CPU)
    with pytest.raises(UserError, match="no checkpoint"):
        train(tiny(epochs=2), read(colours), tmp_path / "new", resume=True, **ON_CPU)


def test_a_finished_run_continues_with_more_epochs_and_a_recomputed_schedule(colours, tmp_path):
    train(tiny(epochs=2), read(colours), tmp_path / "run", **ON_CPU)
    progress = train(tiny(epochs=3), read(colours), tmp_path / "run", resume=True, **ON_CPU)
    assert (progress.epoch, progress.step, progress.finished) == (3, 9, True)
    train(tiny(epochs=3), read(colours), tmp_path / "long", **ON_CPU)
    events = [log_events(tmp_path / name) for name in ("run", "long")]
    rates, long_rates = ([event["lr"] for event in run if "lr" in event] for run in events)
    assert rates[:6] != long_rates[:6]
    assert rates[6:] == long_rates[6:]
    assert train(tiny(epochs=3), read(colours), tmp_path / "run", resume=True, **ON_CPU).step == 9  # nothing is left


def test_another_recipe_is_refused_by_its_key_before_anything_is_loaded(colours, tmp_path, monkeypatch):
    train(tiny(epochs=2), read(colours), tmp_path / "run", **ON_CPU)
    for name in ("launch_fabric", "check_images", "build_captioner", "source_digests"):
        monkeypatch.setattr(trainer, name, None)
    with pytest.raises(UserError, match=r"\(training\.lr: 0\.0005 in the checkpoint, 0\.001 now\)"):
        train(tiny(epochs=2, lr=0.001), read(colours), tmp_path / "run", resume=True, **ON_CPU)
    with pytest.raises(UserError, match=r"\(training\.epochs: 2 in the checkpoint, 1 now\)"):
        train(tiny(epochs=1), read(colours), tmp_path / "run", resume=True, **ON_CPU)


def test_events_tell_what_is_trained_and_how_long_it_takes(colours, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "PLOT_INTERVAL", 0.0)
    events: list[dict] = []
    curves = tmp_path / "run" / "curves.png"
    drawn: list[bytes] = []

    def on_event(event: dict) -> None:
        events.append(event)
        if event["kind"] == "epoch":
            drawn.append(curves.read_bytes())

    train(tiny(evaluate_every=2), read(colours), tmp_path / "run", on_event=on_event, **ON_CPU)
    assert [event["kind"] for event in events] == ["start", *(["step"] * 3 + ["epoch"]) * 3]
    start_event, epochs = events[0], [event for event in events if event["kind"] == "epoch"]
    expected = {"captioner": "soft-attention", "encoder": "efficientnet-lite0", "images": 12, "captions": 24}
    expected |= {"epochs": 3, "steps": 9, "step": 0, "out": str(tmp_path / "run"), "device": "cpu"}
    assert expected.items() <= start_event.items()
    assert 0 < start_event["trained_parameters"] < start_event["parameters"]
    assert [event["epoch"] for event in epochs] == [1, 2, 3]
    assert ["cider" in event for event in epochs] == [False, True, True]
    for number, event in enumerate(epochs):
        steps = [event["loss"] for event in events if event["kind"] == "step" and event["epoch"] == number + 1]
        assert min(steps) < event["loss"] < max(steps)
        assert event["images_per_second"] > 0
    seconds_left = [event["seconds_left"] for event in epochs]
    assert min(seconds_left[:2]) > seconds_left[2] == 0  # an estimate, which may rise on a busy machine
    assert len(set(drawn)) == 3, "the curves are not drawn again after each epoch"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="mounting a file system needs root")
def test_a_full_disk_is_one_line_that_names_the_file(colours, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted")
    try:
        with pytest.raises(UserError) as caught:
            train(tiny(), read(colours), disk / "run", **ON_CPU)
        assert not list((disk / "run").glob(".*.part"))
    finally:
        subprocess.run(["umount", disk], check=True)
    line = str(caught.value)
    assert line.startswith(f"{disk / 'run' / 'checkpoint.safetensors'}: cannot be written")
    assert "No space left on device" in line
    assert "\n" not in line


def test_self_critical_training_raises_the_reward_and_logs_it(colours, tmp_path):
    train(tiny(epochs=8, lr=0.01, average=0.0), read(colours), tmp_path / "start", **ON_CPU)
    table = tomllib.loads(RECIPE) | {"reward": {"samples": 8}}
    table["training"] |= {"epochs": 8, "lr": 0.01, "average": 0.0}
    events: list[dict] = []
    options = {"start": tmp_path / "start", "on_event": events.append, **ON_CPU}
    train(from_table(table), read(colours), tmp_path / "run", **options)
    rewards = [event["reward"] for event in events if event["kind"] == "epoch"]
    assert np.mean(rewards[-3:]) > rewards[0] + 15
    logged = log_events(tmp_path / "run")
    assert (logged[0]["step"], logged[0]["epoch"]) == (0, 0)
    assert "cider" in logged[0]
    assert all("reward" in event for event in logged if "loss" in event)


@pytest.mark.parametrize("baseline", ["others", "greedy"])
def test_self_critical_training_resumes_exactly(baseline, colours, tmp_path):
    table = tomllib.loads(RECIPE) | {"reward": {"samples": 3, "weight": 0.8, "baseline": baseline}}
    train(from_table(table), read(colours), tmp_path / "uninterrupted", **ON_CPU)
    with pytest.raises(KeyboardInterrupt):
        train(from_table(table), read(colours), tmp_path / "stopped", on_event=stop_at(5), **ON_CPU)
    train(from_table(table), read(colours), tmp_path / "stopped", resume=True, **ON_CPU)
    assert same_weights(tmp_path / "uninterrupted", tmp_path / "stopped")


@pytest.mark.parametrize("inputs", ["files", "memory"])
def test_self_critical_training_with_relevance_and_frozen_features(inputs, colours, tmp_path):
    table = tomllib.loads(RECIPE) | {"reward": {"samples": 2, "weight": 0.5}, "relevance": {"weights": "lrp"}}
    del table["augmentation"]
    table["encoder"]["finetune_from"] = ""
    table["training"] |= {"epochs": 1}
    train(from_table(table), read(colours), tmp_path / "run", inputs=inputs, **ON_CPU)
    assert all("reward" in event for event in log_events(tmp_path / "run") if "loss" in event)
