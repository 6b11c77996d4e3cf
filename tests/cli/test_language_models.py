"""`saywhy train-lm`, `saywhy evaluate-lm` and `saywhy caption --lm`, and their users' mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from saywhy.data.tokenizer import END, START
from saywhy.language_models import load_scorer
from saywhy.language_models.word_scorer import caption_log_probabilities

RECIPE = """
name = "lm"
[language_model]
width = 8
hidden = 8
[training]
epochs = 2
batch = 4
precision = "float32"
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "lm.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "captions.tsv"
    path.write_text("".join(f"{n}.png\tword{n % 3} word{n % 2}\n" for n in range(20)))
    return path


@pytest.fixture
def train_lm(run, recipe: Path, text: Path, data: Path, model: Path, tmp_path: Path):
    def call(*options: object, text: Path = text, recipe: Path = recipe, out: Path = tmp_path / "lm"):
        common = ("--data", data, "--vocabulary", model, "--out", out, "--device", "cpu")
        return run("train-lm", recipe, "--text", text, *common, *options)

    return call


def test_a_language_model_is_trained_and_evaluated(run, train_lm, data: Path, model: Path, tmp_path: Path):
    trained = train_lm()
    assert trained.code == 0, trained.err
    assert "perplexity" in trained.out
    record = json.loads((tmp_path / "lm" / "run.json").read_text())
    (source,) = record["sources"]["text"]  # 0 to 3 are train images, 4 to 8 dev and test, the others unknown
    assert source == {"name": "captions.tsv", "captions": 15, "left_out": 5, "without_image": 0}
    options = ("--data", data, "--vocabulary", model, "--device", "cpu", "--json")
    found = run("evaluate-lm", tmp_path / "lm", *options)
    assert found.code == 0, found.err
    scores = json.loads(found.out)
    assert scores["own_vocabulary"]["perplexity"] == pytest.approx(record["dev"]["perplexity"], rel=1e-4)
    assert scores["own_vocabulary"]["words"] == 16  # two images, two captions of three words and <end>
    assert scores["guidance"]["perplexity"] < scores["own_vocabulary"]["perplexity"]  # <unk> is no candidate there
    table = run("evaluate-lm", tmp_path / "lm", *options[:-1], "--split", "val")
    assert "as guidance sees it" in table.out
    assert f"{scores['guidance']['perplexity']:.2f}" in table.out


def test_more_images_are_left_out(train_lm, tmp_path: Path):
    (tmp_path / "names.txt").write_text("0.png\n12.png\n")
    assert train_lm("--exclude", tmp_path / "names.txt").code == 0
    assert json.loads((tmp_path / "lm" / "run.json").read_text())["captions"] == 13


def test_captions_that_are_all_too_long_are_a_mistake_of_text_or_recipe(train_lm, text: Path):
    text.write_text("0.png\t" + "word1 " * 10_000)
    assert train_lm().error.endswith("check --text, --data, --exclude and training.max_words")


def test_captions_without_an_image_are_announced(train_lm, tmp_path: Path):
    (tmp_path / "captions.txt").write_text("word0 word1\nword2\n")
    result = train_lm(text=tmp_path / "captions.txt")
    assert result.code == 0
    assert "2 captions do not name their image" in result.err


def test_values_of_the_recipe_are_changed(train_lm, tmp_path: Path):
    result = train_lm("--set", "language_model.hidden=6", "--epochs", 1, "--seed", 5)
    assert result.code == 0
    recipe = json.loads((tmp_path / "lm" / "run.json").read_text())["recipe"]
    assert (recipe["language_model"]["settings"]["hidden"], recipe["training"]["epochs"], recipe["seed"]) == (6, 1, 5)


def test_bad_input_is_refused_in_one_line(run, train_lm, model: Path, data: Path, tmp_path: Path):
    assert "gone.toml: no such recipe" in train_lm(recipe=tmp_path / "gone.toml").error
    assert "gone.tsv: no such file or folder" in train_lm(text=tmp_path / "gone.tsv").error
    assert "no captions to train on" in train_lm("--set", "training.max_words=1").error
    assert "unknown key 'training.speed'" in train_lm("--set", "training.speed=1").error
    assert "not a saywhy model" in train_lm("--vocabulary", data).error
    assert not (tmp_path / "lm" / "config.json").exists()


def test_what_is_no_language_model_is_refused_in_one_line(run, train_lm, model: Path, data: Path, tmp_path: Path):
    options = ("--data", data, "--vocabulary", model, "--device", "cpu")
    assert "is a captioner, not a language-model" in run("evaluate-lm", model, *options).error
    assert "no language model; give a folder" in run("evaluate-lm", tmp_path / "gone", *options).error
    assert train_lm().code == 0
    assert "is a language-model, not a captioner" in run("caption", data, "--model", tmp_path / "lm").error
    assert "holds a model already" in train_lm().error


def test_a_language_model_without_a_common_word_is_refused_in_one_line(run, train_lm, data: Path, tmp_path: Path):
    assert train_lm().code == 0
    error = run("evaluate-lm", tmp_path / "lm", "--data", data, "--device", "cpu").error  # with the shipped vocabulary
    assert "shares no word with the captioner's vocabulary" in error


def json_lines(result) -> list[dict]:
    assert result.code == 0, result.err
    return [json.loads(line) for line in result.out.splitlines()]


def test_a_trained_language_model_guides_captions(run, train_lm, model: Path, photos: list[Path], tmp_path: Path):
    assert train_lm().code == 0
    common, lm = ("caption", *photos, "--model", model, "--json", "--device", "cpu"), ("--lm", tmp_path / "lm")
    plain = json_lines(run(*common))
    guided = json_lines(run(*common, *lm, "--guidance", 1.5))
    assert [(caption["guidance"], caption["lm"]) for caption in guided] == [(1.5, "lm")] * 3
    assert all(one["score"] != other["score"] for one, other in zip(guided, plain, strict=True))
    weighted = json_lines(run(*common, *lm, "--lm-weight", "5,2.5"))
    assert [(caption["lm"], caption["lm_weight"]) for caption in weighted] == [("lm", [5.0, 2.5])] * 3


def test_without_a_weight_of_the_image_the_language_model_writes_alone(
    run, train_lm, model: Path, photos: list[Path], tmp_path: Path
):
    assert train_lm().code == 0
    common = ("caption", *photos, "--model", model, "--json", "--device", "cpu", "--length-penalty", 0)
    alone = json_lines(run(*common, "--lm", tmp_path / "lm", "--lm-weight", "0,0"))
    same = json_lines(run(*common, "--lm", tmp_path / "lm", "--guidance", 0))
    assert len({caption["caption"] for caption in alone}) == 1
    assert len({caption["caption"] for caption in json_lines(run(*common))}) > 1, "the captioner itself sees the image"
    words = tiny.vocabulary()
    tokens = [START, *(words.ids[word] for word in alone[0]["caption"].split()), END]
    (log_q,) = caption_log_probabilities(load_scorer(tmp_path / "lm", words), [tokens])
    for one, other in zip(alone, same, strict=True):
        assert one["caption"] == other["caption"]
        assert one["score"] == pytest.approx(sum(log_q), abs=1e-4)
        assert other["score"] == pytest.approx(sum(log_q), abs=1e-4)


@pytest.mark.parametrize("options", [("--guidance", 1.5), ("--lm-weight", "5,2.5")], ids=str)
def test_captions_are_not_guided_by_what_is_no_language_model(
    run, train_lm, model: Path, model_copy: Path, photos: list[Path], tmp_path: Path, options: tuple
):
    def error(lm: Path, captioner: Path = model) -> str:
        return run("caption", *photos, "--model", captioner, "--device", "cpu", "--lm", lm, *options).error

    assert "is a captioner, not a language-model" in error(model)
    assert "no language model; give a folder" in error(tmp_path / "gone")
    assert "has no config.json" in error(photos[0].parent)
    assert train_lm().code == 0
    vocabulary = model_copy / "vocabulary.json"
    vocabulary.write_text(vocabulary.read_text().replace("word", "Wort"))
    assert "shares no word with the captioner's vocabulary" in error(tmp_path / "lm", model_copy)
