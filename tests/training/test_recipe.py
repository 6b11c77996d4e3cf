"""Recipes are read completely, or refused in one line that names the key."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from saywhy.encoders.registry import encoders
from saywhy.errors import UserError
from saywhy.training.recipe import Recipe, from_table, read_recipe

FOLDER = Path(__file__).parents[2] / "recipes"
OTHERS = ("lm-", "judge")  # recipes of language models and of judges
RECIPES = sorted(path for path in FOLDER.glob("*.toml") if not path.stem.startswith(OTHERS))


def write_recipe(folder: Path, text: str) -> Path:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path, **changes) -> str:
    with pytest.raises(UserError) as caught:
        read_recipe(path, **changes)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"{path}: ")
    return line


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_is_valid(path):
    assert read_recipe(path).name


def test_there_are_recipes():
    assert RECIPES


STUDY = [path for path in RECIPES if path.stem.startswith("flickr8k-encoder-")]
LITE2 = ["hard", "ada-lstm", "mh-fc", "coca-bottleneck", "coca-attention"]


def without(recipe: Recipe, *keys: str) -> dict:
    """A recipe as a table, without these keys, such as "training.lr"."""
    table = asdict(recipe)
    for path in keys:
        *names, key = path.split(".")
        inner = table
        for name in names:
            inner = inner[name]
        del inner[key]
    return table


def test_every_recipe_is_named_after_its_file_except_that_of_a_model_of_version_0_2():
    names = {path.stem: read_recipe(path).name for path in RECIPES}
    assert names.pop("flickr8k-soft-distilled") == "soft-attention-flickr8k"
    assert all(stem == name for stem, name in names.items())


def test_recipes_of_the_encoder_study_differ_in_the_encoder_and_its_input_size_only():
    recipes = [read_recipe(path) for path in STUDY]
    assert len({recipe.encoder.name for recipe in recipes}) == len(recipes) == 12
    tables = [without(recipe, "name", "encoder.name", "preprocessing.size") for recipe in recipes]
    assert all(table == tables[0] for table in tables)
    for recipe in recipes:
        assert recipe.preprocessing.size == encoders[recipe.encoder.name].size
        assert recipe.encoder.finetune_from == ""
        assert recipe.augmentation is None


@pytest.mark.parametrize("name", LITE2)
def test_recipes_over_lite2_differ_from_soft_attention_in_the_captioner_the_penalty_and_the_epochs_only(name):
    soft = read_recipe(RECIPES[0].parent / "flickr8k-soft.toml")
    other = read_recipe(RECIPES[0].parent / f"flickr8k-{name}.toml")
    differing = ("name", "captioner", "training.doubly_stochastic", "training.epochs", "training.evaluate_every")
    assert without(other, *differing) == without(soft, *differing)
    assert name.startswith(other.captioner.name.removesuffix("-attention"))
    assert other.training.doubly_stochastic == 0


@pytest.mark.parametrize("name", ["ada-lstm", "mh-fc"])
def test_recipes_with_oracle_regions_and_vgg16_differ_only_in_these(name):
    lite2, regions, vgg16 = (
        read_recipe(RECIPES[0].parent / f"flickr8k-{name}{ending}.toml") for ending in ("", "-regions", "-vgg16")
    )
    assert without(regions, "name", "regions") == without(lite2, "name", "regions")
    differing = ("name", "encoder.name", "encoder.lr", "preprocessing.size")
    assert without(vgg16, *differing) == without(lite2, *differing)


def test_keys_that_are_left_out_have_their_defaults(tmp_path):
    assert read_recipe(write_recipe(tmp_path, "")) == Recipe()
    recipe = read_recipe(write_recipe(tmp_path, "seed = 3\n[training]\nlr = 1\n[augmentation]\nscale = [0.5, 1]\n"))
    assert recipe.seed == 3
    assert recipe.training.lr == 1.0
    assert recipe.training.epochs == Recipe().training.epochs
    assert recipe.augmentation is not None
    assert recipe.augmentation.scale == (0.5, 1.0)


def test_settings_of_a_captioner_are_beside_its_name(tmp_path):
    recipe = read_recipe(write_recipe(tmp_path, '[captioner]\nname = "soft-attention"\nhidden = 8\ntie = true\n'))
    assert recipe.captioner.settings == {"hidden": 8, "tie": True}
    assert read_recipe(write_recipe(tmp_path, "[captioner]\nhidden = 8\n")).captioner.name == "soft-attention"


def test_a_recipe_is_the_same_after_json():
    recipe = from_table({"augmentation": {}, "captioner": {"hidden": 8}, "vocabulary": {"min_count": 2, "size": 9}})
    assert from_table(json.loads(json.dumps(asdict(recipe)))) == recipe


def test_changes_replace_values_of_the_file(tmp_path):
    path = write_recipe(tmp_path, 'seed = 1\n[encoder]\nname = "vgg16"\nlr = 0.5\n')
    recipe = read_recipe(path, seed=2, encoder={"weights": "none"}, training={"epochs": 1})
    assert (recipe.seed, recipe.encoder.name, recipe.encoder.lr) == (2, "vgg16", 0.5)
    assert (recipe.encoder.weights, recipe.training.epochs) == ("none", 1)


@pytest.mark.parametrize(
    ("text", "key", "similar"),
    [
        ("sead = 1", "sead", "seed"),
        ("[trainning]", "trainning", "training"),
        ("[vocabulary]\nmin_cuont = 1", "vocabulary.min_cuont", "min_count"),
        ("[preprocessing]\nsice = 64", "preprocessing.sice", "size"),
        ("[augmentation]\nstrech = 1", "augmentation.strech", "stretch"),
        ("[encoder]\nfinetune = 'all'", "encoder.finetune", "finetune_from"),
        ("[captioner]\nhiden = 3", "captioner.hiden", "hidden"),
        ("[training]\nepoch = 3", "training.epoch", "epochs"),
        ("[decoding]\nbeem = 3", "decoding.beem", "beam"),
    ],
)
def test_an_unknown_key_is_refused_with_the_most_similar_one(tmp_path, text, key, similar):
    line = refusal(write_recipe(tmp_path, text))
    assert f"'{key}'" in line
    assert f'did you mean "{similar}"?' in line


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('seed = "one"', "seed"),
        ("seed = 1.5", "seed"),
        ("seed = true", "seed"),
        ("name = 3", "name"),
        ("training = 3", "training"),
        ("[[training]]\nlr = 1", "training"),
        ('[training]\nlr = "fast"', "training.lr"),
        ("[training]\nlr = true", "training.lr"),
        ("[training]\nepochs = 2.0", "training.epochs"),
        ('[vocabulary]\nsize = "all"', "vocabulary.size"),
        ("[encoder]\ntrain_batch_norm = 1", "encoder.train_batch_norm"),
        ("[augmentation]\nscale = 0.5", "augmentation.scale"),
        ("[augmentation]\nscale = [0.5]", "augmentation.scale"),
        ('[augmentation]\nscale = ["a", "b"]', "augmentation.scale"),
        ('captioner = "soft-attention"', "captioner"),
        ("[captioner]\nname = 3", "captioner.name"),
        ('[captioner]\nhidden = "many"', "captioner.hidden"),
        ("[captioner]\ntie = 1", "captioner.tie"),
        ('[decoding]\nbeam = "wide"', "decoding.beam"),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_key(tmp_path, text, key):
    assert f"'{key}' must be" in refusal(write_recipe(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[training]\nbatches = "image"', "images"),
        ('[training]\noptimiser = "adamm"', "adam"),
        ('[training]\nschedule = "cosinus"', "cosine"),
        ('[training]\nselect = "cidre"', "cider"),
        ('[captioner]\nname = "soft-atention"', "soft-attention"),
        ('[preprocessing]\nfit = "crob"', "crop"),
        ('[decoding]\nmethod = "beem"', "beam"),
        ("[decoding]\nbeam = 0", "beam = 0"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path, text, word):
    assert word in refusal(write_recipe(tmp_path, text))


def test_a_missing_file_a_folder_and_text_that_is_not_toml_are_refused(tmp_path):
    assert "no such recipe" in refusal(tmp_path / "missing.toml")
    assert "cannot be read" in refusal(tmp_path)
    assert "not TOML" in refusal(write_recipe(tmp_path, "seed = = 1"))
    assert "not TOML" in refusal(write_recipe(tmp_path, "seed = 1\nseed = 2"))
    assert "nested too deeply" in refusal(write_recipe(tmp_path, "seed = " + "[" * 100_000))
    assert "not TOML" in refusal(write_recipe(tmp_path, "seed = " + "9" * 5000)), "more digits than Python converts"
    (tmp_path / "recipe.toml").write_bytes(b'name = "\xff"')
    assert "not UTF-8 text" in refusal(tmp_path / "recipe.toml")


def test_a_byte_order_mark_is_not_part_of_a_recipe(tmp_path):
    (tmp_path / "recipe.toml").write_bytes(b'\xef\xbb\xbfname = "mine"')
    assert read_recipe(tmp_path / "recipe.toml").name == "mine"


def test_changes_are_checked_like_the_file(tmp_path):
    path = write_recipe(tmp_path, "encoder = 3")
    assert "'encoder' must be a table" in refusal(path, encoder={"weights": "none"})
    assert "'training.epoch'" in refusal(write_recipe(tmp_path, ""), training={"epoch": 3})


@pytest.mark.parametrize(
    ("key", "value"),
    [("batch", 0), ("epochs", 0), ("lr", -1.0), ("label_smoothing", 1.0), ("distil", 1.5), ("average", 1.0)],
)
def test_a_training_setting_out_of_range_is_refused_with_its_key(key, value):
    with pytest.raises(UserError, match=f"training.{key} = {value} is out of range"):
        from_table({"training": {key: value}})


@pytest.mark.parametrize(
    "table",
    [
        {"seed": -1},
        {"vocabulary": {"size": -3}},
        {"encoder": {"lr": -1.0}},
        {"training": {"lr": float("inf")}},
        {"training": {"lr": 10**400}},
        {"preprocessing": {"size": 100_000}},
        {"captioner": {"dropout": 2.0}},
        {"captioner": {"hidden": 0}},
        {"captioner": {"score": "cosine"}},
        {"captioner": {"name": "ada-lstm", "dropout": float("nan")}},
        {"captioner": {"name": "mh-fc", "image_dropout": float("nan")}},
        {"captioner": {"name": "hard-attention", "reward_weight": float("nan")}},
        {"captioner": {"name": "hard-attention", "entropy_weight": float("inf")}},
        {"decoding": {"attention": "argmax"}},
        {"decoding": {"guidance": -1.0}},
    ],
)
def test_values_out_of_range_are_refused_before_anything_is_built(table):
    with pytest.raises(UserError):
        from_table(table)


def test_a_recipe_with_guidance_needs_conditioning_dropout_and_has_no_language_model():
    recipe = from_table({"decoding": {"guidance": 1.5}, "training": {"conditioning_dropout": 0.5}})
    assert recipe.decoding.guidance == 1.5
    with pytest.raises(UserError, match=r"decoding\.guidance needs training\.conditioning_dropout above 0"):
        from_table({"decoding": {"guidance": 1.5}})
    with pytest.raises(UserError, match="a model folder holds no language model"):
        from_table({"decoding": {"lm": "q", "lm_weight": [5, 2.5]}, "training": {"conditioning_dropout": 0.5}})


def test_the_authors_constants_of_hard_attention_differ_in_the_captioner_only():
    authors, ours = (read_recipe(RECIPES[0].parent / f"flickr8k-hard{ending}.toml") for ending in ("-authors", ""))
    assert without(authors, "name", "captioner") == without(ours, "name", "captioner")
    constants = {"reward": "mean", "reward_weight": 0.1, "entropy_weight": 0.002, "coin": "batch"}
    assert constants.items() <= authors.captioner.settings.items()
