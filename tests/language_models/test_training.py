"""Training of language models: batches, the run's folder, reproducible weights, early stopping."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch

import tiny
from reference.language_models import caption_log_q
from saywhy.data.tokenizer import PAD, UNK, Vocabulary
from saywhy.errors import UserError
from saywhy.language_models import load
from saywhy.training.language_model_recipe import LanguageModelRecipe, LanguageModelTraining, ModelRecipe
from saywhy.training.language_model_recipe import read_language_model_recipe as read_recipe
from saywhy.training.language_model_trainer import TokenTable, model_perplexity, train_language_model

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("lm-*.toml"))
SMALL = {"lstm": {"width": 16, "hidden": 24, "dropout": 0.1}, "transformer": {"width": 16, "heads": 2, "layers": 2}}
SENTENCES = [f"word{a} word{(a + 1) % 6} word{(a + b) % 6}".split() for a, b in itertools.product(range(6), (2, 3))]
SENTENCES += [["word0", "word1", "yak"]]  # an unknown word
DEV = SENTENCES[::3]
CPU = torch.device("cpu")


def recipe(name: str = "lstm", **training) -> LanguageModelRecipe:
    changes = {"epochs": 30, "batch": 8, "lr": 0.02, "warmup": 5, "average": 0.5, "patience": 0} | training
    return LanguageModelRecipe("mine", 3, ModelRecipe(name, SMALL[name]), LanguageModelTraining(**changes))


def train(out: Path, name: str = "lstm", captions=SENTENCES * 4, dev=DEV, vocabulary=None, events=None, **training):
    return train_language_model(
        recipe(name, **training), captions, dev, vocabulary or tiny.vocabulary(), out,
        device="cpu", sources={"text": "sentences"}, on_event=(events if events is not None else []).append,
    )  # fmt: skip


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_is_valid(path):
    assert read_recipe(path).name == path.stem


def test_both_architectures_have_a_recipe():
    assert {read_recipe(path).language_model.name for path in RECIPES} == {"lstm", "transformer"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[encoder]\n", "unknown key 'encoder'"),
        ("[training]\nlr = -1\n", "training.lr = -1.0 is out of range"),
        ('[training]\noptimiser = "sgd"\n', "unknown optimiser 'sgd'"),
        ('[language_model]\nname = "gru"\n', "unknown language model 'gru'"),
        ("[language_model]\ndepth = 3\n", "unknown key 'language_model.depth'"),
        ("[language_model]\nwidth = 0\n", "width = 0 must be at least 1"),
        ("language_model = 3\n", "'language_model' must be a table"),
        ("seed = -1\n", "seed = -1 is out of range"),
    ],
)
def test_a_recipe_is_refused_in_one_line(text, reason, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(UserError, match=reason) as caught:
        read_recipe(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_batches_hold_every_caption_once_and_captions_of_similar_length_together():
    captions = [["word0"] * (1 + n % 13) for n in range(1000)]
    table = TokenTable(captions, tiny.vocabulary(), CPU)
    batches = table.batches(20, seed=0, epoch=0)
    assert sorted(row for rows in batches for row in rows.tolist()) == list(range(1000))
    assert max(table.lengths[rows].max() - table.lengths[rows].min() for rows in batches) <= 1
    orders = [tuple(map(tuple, table.batches(20, seed, epoch))) for seed, epoch in ((0, 0), (0, 0), (0, 1), (1, 0))]
    assert orders[0] == orders[1]
    assert len(set(orders)) == 3


def test_the_table_counts_words_and_unknown_ones():
    table = TokenTable([["word0", "yak"], ["word1"]], tiny.vocabulary(), CPU)
    assert (table.words, table.unknown) == (5, 1)  # with one <end> each
    assert table.tokens.tolist() == [[1, 5, 2, PAD], [1, 4, UNK, 2]]


@pytest.mark.parametrize("name", SMALL)
def test_training_learns_the_text_and_stores_the_perplexity_on_dev(name, tmp_path):
    events: list[dict] = []
    progress = train(tmp_path, name, events=events)
    saved, run = load(tmp_path), json.loads((tmp_path / "run.json").read_text())
    log_q = [caption_log_q(saved.model, torch.tensor(saved.vocabulary.encode(words))) for words in DEV]
    expected = math.exp(-sum(map(sum, log_q)) / sum(map(len, log_q)))
    assert progress.best == pytest.approx(expected, rel=1e-4)
    assert expected < 3  # 11 at random, 6 from frequencies alone, 1.9 is the entropy of the text
    assert (run["kind"], run["sources"], run["captions"]) == ("language-model", {"text": "sentences"}, 52)
    assert run["dev"] == {"captions": 5, "words": 20, "unknown_words": 1, "perplexity": progress.best}
    assert [event["kind"] for event in events if event["kind"] != "step"] == ["start"] + ["epoch"] * 30
    assert run["progress"]["finished"]


def test_the_same_seed_gives_the_same_weights(tmp_path):
    for out, seed in (("a", 0.02), ("b", 0.02), ("c", 0.01)):
        train(tmp_path / out, epochs=2, lr=seed)
    first, second, other = (load(tmp_path / out).model.state_dict() for out in "abc")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_training_stops_when_dev_gets_worse_and_keeps_the_best_weights(tmp_path):
    random_text = [[f"word{n * n * 7 % 5}", f"word{n * 3 % 7}"] for n in range(12)]
    progress = train(tmp_path, captions=random_text, dev=[["word6", "word6"]], epochs=100, patience=3, average=0.0)
    assert progress.epoch == progress.best_epoch + 3 < 100
    perplexities = [event["perplexity"] for event in progress.history]
    assert progress.best == min(perplexities) == perplexities[progress.best_epoch - 1]
    table = TokenTable([["word6", "word6"]], tiny.vocabulary(), CPU)
    assert model_perplexity(load(tmp_path).model, table).perplexity == pytest.approx(progress.best, rel=1e-5)


def test_markers_of_styles_are_no_words_of_a_language_model(tmp_path):
    vocabulary = Vocabulary(tiny.vocabulary(styles=("coco", "flickr")).words)
    train(tmp_path, vocabulary=vocabulary, epochs=1)
    assert load(tmp_path).vocabulary.words == tiny.vocabulary(len(vocabulary) - 2).words


def test_long_and_empty_captions_are_not_trained_on(tmp_path):
    train(tmp_path, captions=[["word0"] * 5, [], ["word1"]], epochs=1, max_words=3)
    assert json.loads((tmp_path / "run.json").read_text())["captions"] == 1


def test_nothing_to_train_on_is_refused(tmp_path):
    with pytest.raises(UserError, match="no captions to train on"):
        train(tmp_path, captions=[[]])


def test_a_folder_with_a_model_is_not_overwritten(tmp_path):
    train(tmp_path, epochs=1)
    with pytest.raises(UserError, match="holds a model already"):
        train(tmp_path, epochs=1)


def test_bfloat16_trains_as_well(tmp_path):
    assert train(tmp_path, precision="bf16").best < 3
