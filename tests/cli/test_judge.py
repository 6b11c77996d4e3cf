"""`saywhy train-judge` and `saywhy evaluate --judge`, and their users' mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from saywhy.judges.judging import Judge, judge_captions

RECIPE = """
name = "my-judge"
[vocabulary]
min_count = 1
[preprocessing]
size = 64
fit = "squash"
[augmentation]
flip = 0.5
[encoder]
name = "efficientnet-lite0"
weights = "none"
finetune_from = "blocks.6"
[judge]
embedding = 8
width = 8
layers = 1
heads = 2
[training]
epochs = 2
batch = 4
warmup = 1
precision = "float32"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "judge.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def train_judge(run, recipe: Path, data: Path, tmp_path: Path):
    def call(*options: object, data: object = data, recipe: Path = recipe, out: Path = tmp_path / "judge"):
        return run("train-judge", recipe, "--data", data, "--out", out, "--device", "cpu", "--workers", 0, *options)

    return call


@pytest.fixture
def evaluate(run, data: Path):
    def call(*options: object):
        common = ("--data", data, "--no-meteor", "--workers", 0, "--device", "cpu")
        return run("evaluate", *common, *options)

    return call


def test_a_judge_is_trained_and_judges_a_captioner(train_judge, evaluate, model: Path, tmp_path: Path):
    trained = train_judge()
    assert trained.code == 0, trained.err
    assert "best recall@1 on dev" in trained.out
    assert "training: judge over efficientnet-lite0" in trained.err
    assert "dev recall@1" in trained.err
    record = json.loads((tmp_path / "judge" / "run.json").read_text())
    assert (record["kind"], record["recipe"]["name"], record["progress"]["epoch"]) == ("judge", "my-judge", 2)
    judged = evaluate("--model", model, "--judge", tmp_path / "judge", "--json")
    assert judged.code == 0, judged.err
    scores = json.loads(judged.out)["judge"]
    assert (scores["judge"], scores["encoder"], scores["images"]) == ("my-judge", "efficientnet-lite0", 3)
    assert scores["captions"]["recall_at_10"] == scores["human"]["recall_at_10"] == 100.0  # of three images
    assert scores["human"]["captions_per_image"] == 2
    assert -1 <= scores["captions"]["similarity"] <= 1


def test_given_captions_are_judged_as_in_python(evaluate, judge: Path, data: Path, tmp_path: Path):
    captions, names = ["word0 word4", "word1 word5", "word2 word4"], ["6.png", "7.png", "8.png"]
    lines = [json.dumps({"image": name, "caption": text}) for name, text in zip(names, captions, strict=True)]
    (tmp_path / "captions.jsonl").write_text("\n".join(lines))
    options = ("--captions", tmp_path / "captions.jsonl", "--judge", judge)
    judged = evaluate(*options, "--json", "--out", tmp_path / "results.json")
    assert judged.code == 0, judged.err
    scores = json.loads(judged.out)
    references = [[f"word{n % 3} word{n % 2} word{last}" for last in (4, 5)] for n in (6, 7, 8)]
    expected = judge_captions(Judge.load(judge, workers=0), [data / name for name in names], captions, references)
    assert scores["judge"] == expected.as_dict()
    assert json.loads((tmp_path / "results.json").read_text())["judge"] == scores["judge"]
    table = evaluate(*options)
    assert table.code == 0, table.err
    for text in (
        "R@1",
        "these captions",
        "human captions, mean of 2",
        "judged by random-judge (timm:test_resnet)",
        "not CLIPScore",
    ):
        assert text in table.out


def test_without_a_judge_nothing_is_added(evaluate, model: Path):
    assert "judge" not in json.loads(evaluate("--model", model, "--json").out)


def test_images_are_left_out_and_values_of_the_recipe_are_changed(train_judge, tmp_path: Path):
    (tmp_path / "names.txt").write_text("0.png\n1.png\n")
    result = train_judge("--exclude", tmp_path / "names.txt", "--set", "judge.layers=2", "--epochs", 1, "--seed", 5)
    assert result.code == 0, result.err
    record = json.loads((tmp_path / "judge" / "run.json").read_text())
    assert (record["recipe"]["judge"]["layers"], record["recipe"]["seed"]) == (2, 5)
    assert record["data"][0]["train"] == 2


@pytest.mark.usefixtures("no_model")
def test_a_judge_with_the_captioners_encoder_is_refused(evaluate, model: Path, tmp_path: Path):
    tiny.saved_judge().save(tmp_path / "judge")
    error = evaluate("--model", model, "--judge", tmp_path / "judge").error
    assert "its image network is timm:test_efficientnet, and so is that of the captioner small" in error


@pytest.mark.usefixtures("no_model")
def test_what_is_no_judge_is_refused_before_anything_is_captioned(evaluate, model: Path, data: Path, tmp_path: Path):
    assert "is a captioner, not a judge" in evaluate("--model", model, "--judge", model).error
    assert "no judge at" in evaluate("--model", model, "--judge", tmp_path / "gone").error
    assert "has no config.json" in evaluate("--model", model, "--judge", data).error


def test_a_judge_is_no_captioner(run, photos: list[Path], judge: Path):
    error = run("caption", photos[0], "--model", judge, "--device", "cpu").error
    assert "is a judge, not a captioner: give the folder of a captioner" in error


def test_bad_input_is_refused_in_one_line(train_judge, data: Path, model: Path, tmp_path: Path):
    assert "gone.toml: no such recipe" in train_judge(recipe=tmp_path / "gone.toml").error
    assert "gone: no such file or folder" in train_judge(data=tmp_path / "gone").error
    assert "unknown key 'training.speed'" in train_judge("--set", "training.speed=1").error
    assert "unknown encoder 'resnet'" in train_judge("--set", "encoder.name=resnet").error
    assert "unknown inputs 'disk'" in train_judge("--inputs", "disk").error
    assert "there is no file" in train_judge("--weights", tmp_path / "gone.safetensors").error
    assert "write NAME=DIR" in train_judge("--set", 'data=[{name="a"}]').error
    assert "holds a model already" in train_judge(out=model).error
    (tmp_path / "names.txt").write_text("0.png\n1.png\n2.png\n")
    assert "1 image in train, and a judge learns" in train_judge("--exclude", tmp_path / "names.txt").error
    assert not (tmp_path / "judge" / "config.json").exists()
    assert train_judge("--epochs", 1).code == 0
    assert "holds a model already" in train_judge().error
