"""Runs whose images are in the device's memory, and runs that start from other models or mix data sets."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests import tiny
from tests.data.test_training_batches import make_batches
from tests.training.test_trainer import ON_CPU, RECIPE, colours, losses, same_weights, without_random_numbers  # noqa: F401

from saywhy.captioners.model_folder import load
from saywhy.data.datasets import read
from saywhy.data.loading import ImageFiles
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import PAD
from saywhy.data.training_batches import ResidentBatches
from saywhy.errors import UserError
from saywhy.training.recipe import from_table
from saywhy.training.resident import load_resident
from saywhy.training.trainer import train

pytestmark = pytest.mark.usefixtures("one_thread")
TWO = {"data": [{"name": "walls"}, {"name": "others", "weight": 2.0}]}


def table(**changes: dict) -> dict:
    """The recipe without random numbers, with other settings."""
    recipe = without_random_numbers()
    for name, values in changes.items():
        recipe[name] = {**recipe[name], **values}
    return recipe


@pytest.fixture
def others(colours: Path, tmp_path: Path) -> Path:  # noqa: F811
    """The same images in another folder under other names and captions."""
    folder = tmp_path / "others"
    folder.mkdir()
    for path in colours.glob("*.png"):
        (folder / f"other-{path.name}").write_bytes(path.read_bytes() + b" ")
    text = (colours / "captions.csv").read_text().replace("a ", "one ").splitlines()
    (folder / "captions.csv").write_text("\n".join([text[0], *(f"other-{line}" for line in text[1:])]) + "\n")
    return folder


@pytest.mark.parametrize("frozen", [False, True])
def test_inputs_in_memory_give_the_losses_of_inputs_from_files(frozen, colours, tmp_path):  # noqa: F811
    recipe = from_table(table(encoder={"finetune_from": "" if frozen else "blocks.6"}))
    for inputs in ("files", "memory"):
        train(recipe, read(colours), tmp_path / inputs, inputs=inputs, **ON_CPU)
    tolerance = 1e-3 if frozen else 1e-4  # features are kept in half precision
    assert losses(tmp_path / "memory") == pytest.approx(losses(tmp_path / "files"), rel=tolerance)


def test_a_run_with_inputs_in_memory_resumes_exactly(colours, tmp_path):  # noqa: F811
    recipe = from_table(tomllib.loads(RECIPE))

    def stop(event: dict) -> None:
        if event["kind"] == "step" and event["step"] == 4:
            raise KeyboardInterrupt

    train(recipe, read(colours), tmp_path / "complete", inputs="memory", **ON_CPU)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, read(colours), tmp_path / "stopped", inputs="memory", on_event=stop, **ON_CPU)
    train(recipe, read(colours), tmp_path / "stopped", inputs="memory", resume=True, **ON_CPU)
    assert same_weights(tmp_path / "complete", tmp_path / "stopped")


def test_unknown_inputs_are_refused(colours, tmp_path):  # noqa: F811
    with pytest.raises(UserError, match="unknown inputs 'disk'"):
        train(from_table(table()), read(colours), tmp_path / "run", inputs="disk", **ON_CPU)


def test_gathered_batches_are_those_that_are_read_from_files():
    batches = make_batches([[["a", "dog"]], [["a"], ["dog", "runs", "b"]], [["b"]]])
    inputs = torch.from_numpy(batches.inputs.rows([0, 1, 2])[0])
    resident = ResidentBatches(batches, inputs, {})
    pairs = [(2, 0), (1, 1), (0, 0), (1, 0)]
    resident.fit([pairs, [(0, 0)]])
    read_batch, gathered = batches[pairs], resident.gather(torch.from_numpy(resident.plan(pairs)))
    rows = len(read_batch.tokens)
    assert torch.equal(gathered.tokens[:rows], read_batch.tokens)
    assert (gathered.tokens[rows:] == PAD).all()
    assert torch.equal(gathered.inputs[gathered.image_index[:rows]], read_batch.inputs[read_batch.image_index])
    assert all(most >= count for most, count in zip(gathered.active, read_batch.active, strict=True))
    smaller = resident.gather(torch.from_numpy(resident.plan([(0, 0)])))
    assert smaller.tokens.shape == gathered.tokens.shape
    assert smaller.inputs.shape == gathered.inputs.shape


def test_a_second_run_reads_the_pixels_from_the_cache(tmp_path, monkeypatch):
    paths = tiny.image_files(tmp_path, 3)
    (tmp_path / "damaged.jpg").write_bytes(b"no image")
    files = ImageFiles([*paths, tmp_path / "damaged.jpg"], (3, 64, 64), Preprocessing(64), 64)
    cache = (tmp_path / "cache", {"fit": "crop"})
    first, errors = load_resident(files, torch.device("cpu"), 0, cache, lambda event: None)
    monkeypatch.setattr(ImageFiles, "load", lambda *_: pytest.fail("the image was decoded again"))
    second, same_errors = load_resident(files, torch.device("cpu"), 0, cache, lambda event: None)
    assert torch.equal(first, second)
    assert list(errors) == list(same_errors) == [3]
    assert "damaged.jpg" in errors[3]


def test_two_data_sets_train_one_captioner_with_two_styles(colours, others, tmp_path):  # noqa: F811
    recipe = from_table(table() | TWO)
    progress = train(recipe, {"walls": read(colours), "others": read(others)}, tmp_path / "run", **ON_CPU)
    model = load(tmp_path / "run")
    assert model.vocabulary.styles == ("walls", "others")
    assert model.captioner.styles == 2
    assert set(progress.history[-1]["data"]) == {colours.name, "others"}, "each data set is scored on its own"


def test_a_run_starts_from_the_weights_and_the_vocabulary_of_a_model(colours, others, tmp_path):  # noqa: F811
    train(from_table(table() | TWO), {"walls": read(colours), "others": read(others)}, tmp_path / "first", **ON_CPU)
    still = from_table(table(encoder={"weights": "imagenet", "lr": 0.0}, training={"lr": 0.0, "average": 0.0}))
    train(still, read(others), tmp_path / "second", start=tmp_path / "first", **ON_CPU)
    first, second = (load_file(tmp_path / run / "model.safetensors") for run in ("first", "second"))
    assert all(torch.allclose(first[name], second[name]) for name in first)
    assert load(tmp_path / "second").vocabulary == load(tmp_path / "first").vocabulary


def test_a_model_of_another_architecture_is_no_start(colours, tmp_path):  # noqa: F811
    train(from_table(table(training={"epochs": 1})), read(colours), tmp_path / "first", **ON_CPU)
    with pytest.raises(UserError, match=r"its \[captioner\] table differs"):
        train(
            from_table(table(captioner={"hidden": 8})), read(colours), tmp_path / "second",
            start=tmp_path / "first", **ON_CPU,
        )  # fmt: skip


def test_the_encoder_of_a_model_folder_can_be_used(colours, tmp_path):  # noqa: F811
    train(from_table(table(training={"epochs": 1})), read(colours), tmp_path / "first", **ON_CPU)
    encoder = {"weights": str(tmp_path / "first"), "finetune_from": ""}
    train(from_table(table(encoder=encoder, training={"epochs": 1})), read(colours), tmp_path / "second", **ON_CPU)
    first, second = (load_file(tmp_path / run / "model.safetensors") for run in ("first", "second"))
    assert all(torch.equal(first[name], second[name]) for name in first if name.startswith("encoder."))


def test_captions_longer_than_max_words_are_left_out(colours, tmp_path):  # noqa: F811
    events: list[dict] = []
    recipe = from_table(table(training={"epochs": 1, "max_words": 3}))
    train(recipe, read(colours), tmp_path / "run", on_event=events.append, **ON_CPU)
    (start,) = [event for event in events if event["kind"] == "start"]
    assert start["captions"] == 12, "of “a red wall” and “this is a red image” the second is too long"
