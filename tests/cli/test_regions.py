"""`--regions`: a model of regions is told where they are, or says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tiny
from saywhy import encoders
from saywhy.captioners import build
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSettings
from saywhy.explain import Explanation

FEATURES = """
name = "f"
vocabulary = {min_count = 1}
regions = {kind = "features"}
encoder = {name = "features"}
captioner = {embedding = 8, hidden = 8, attention = 8}
training = {epochs = 1, batch = 2}
"""
ONE_AT_LEAST = "an image needs one region at least"


@pytest.fixture(scope="module")
def looker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights that looks at boxes."""
    folder, preprocessing = tmp_path_factory.mktemp("models") / "looker", Preprocessing(tiny.SIDE)
    decoding, regions = {"beam": 2, "max_words": 6}, RegionSettings("boxes", 4)
    SavedModel("looker", tiny.opinionated(), tiny.vocabulary(), preprocessing, decoding, regions).save(folder)
    return folder


def boxes_of(folder: Path, path: Path, without: str = "") -> Path:
    """Two boxes for each image in a folder, in its own pixels (80 × 70)."""
    rows = [
        {"image": image.name, "width": 80, "height": 70, "phrases": [{"boxes": [[9, 9, 40, 60], [30, 5, 70, 66]]}]}
        for image in sorted(folder.glob("*.png"))
        if image.name != without
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_captioning_without_regions_says_what_to_do(run, looker, photos):
    line = run("caption", photos[0], "--model", looker).complaint
    assert line == ("saywhy: model looker looks at given boxes of each image: say where they are with --regions PATH")


def test_captioning_with_regions_says_something_and_draws_it(run, looker, photos, tmp_path):
    table = boxes_of(photos[0].parent, tmp_path / "boxes.jsonl")
    result = run("caption", *photos, "--model", looker, "--regions", table, "--figures", tmp_path / "figures")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("word") >= 3
    assert len(list((tmp_path / "figures").glob("*.png"))) == 3


def test_explaining_takes_regions_as_captioning_does(run, looker, photos, tmp_path):
    explained = ("explain", *photos, "--model", looker, "--out", tmp_path / "why")
    assert "say where they are with --regions PATH" in run(*explained).complaint
    lacking = boxes_of(photos[0].parent, tmp_path / "lacking.jsonl", without="1.png")
    assert "no regions for 1 of 3 images" in run(*explained, "--regions", lacking).complaint
    assert not (tmp_path / "why").exists()
    result = run(*explained, "--regions", boxes_of(photos[0].parent, tmp_path / "boxes.jsonl"))
    assert (result.code, result.err) == (0, "")
    for name in "012":
        found = Explanation.load(tmp_path / "why" / name)
        assert found.boxes is not None
        assert all(word.budget.total == pytest.approx(word.logit, abs=1e-3) for word in found.words)


def test_a_image_without_regions_is_named_before_anything_is_said(run, looker, photos, tmp_path):
    table = boxes_of(photos[0].parent, tmp_path / "boxes.jsonl", without="1.png")
    line = run("caption", *photos, "--model", looker, "--regions", table).complaint
    assert "no regions for 1 of 3 images, such as 1.png" in line


def test_a_model_of_a_grid_takes_no_regions(run, model, photos, tmp_path):
    table = boxes_of(photos[0].parent, tmp_path / "boxes.jsonl")
    assert "leave --regions out" in run("caption", photos[0], "--model", model, "--regions", table).complaint


def test_evaluating_takes_the_boxes_in_the_data_and_says_that_people_drew_them(run, looker, data, tmp_path):
    command = ("evaluate", "--data", data, "--model", looker, "--no-meteor", "--json", "--workers", 0)
    assert "there is no" in run(*command).complaint
    given = run(*command, "--regions", boxes_of(data, tmp_path / "boxes.jsonl"))
    boxes_of(data, data / "boxes.jsonl.gz")
    out = tmp_path / "result.json"
    beside = run(*command, "--out", out)
    assert (given.code, beside.code) == (0, 0), given.err + beside.err
    assert json.loads(given.out) == json.loads(beside.out)
    assert json.loads(beside.out)["notes"][0].startswith("oracle regions")
    about = json.loads(out.read_text())["regions"]
    assert (about["kind"], about["most"], about["name"], about["oracle"]) == ("boxes", 4, "boxes.jsonl.gz", True)


def test_given_captions_need_no_regions(run, data, tmp_path):
    asked = ("evaluate", "--data", data, "--captions", tmp_path / "c.jsonl", "--regions", tmp_path)
    assert "one or the other" in run(*asked).complaint


def test_training_with_features_and_evaluating_the_run(run, data, tmp_path):
    pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')
    recipe, dump, out = tmp_path / "tiny.toml", tmp_path / "dump", tmp_path / "run"
    dump.mkdir()
    for number, image in enumerate(sorted(data.glob("*.png"))):
        np.save(dump / f"{image.stem}.npy", np.full((2, 5), number, np.float32))
    recipe.write_text(FEATURES)
    trained = ("train", recipe, "--data", data, "--out", out, "--device", "cpu", "--workers", 0)
    assert "recipe f looks at given regions with their features" in run(*trained).complaint
    done = run(*trained, "--regions", dump)
    assert done.code == 0, done.err
    scored = run("evaluate", "--data", data, "--model", out, "--no-meteor", "--json", "--workers", 0, "--regions", dump)
    assert scored.code == 0, scored.err
    assert not [note for note in json.loads(scored.out)["notes"] if "oracle" in note]


@pytest.mark.parametrize("workers", [0, 1])
def test_regions_found_damaged_on_the_way_are_named_in_a_line(run, data, tmp_path, workers):
    pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')
    for number, image in enumerate(sorted(data.glob("*.png"))):
        np.save(tmp_path / f"{image.stem}.npy", np.ones((2, 5 if number < 8 else 6), np.float32))
    np.save(tmp_path / "2.npy", np.ones((0, 5), np.float32))
    recipe, encoder = tmp_path / "tiny.toml", encoders.build("features:5", None)
    recipe.write_text(FEATURES)
    how = ("--data", data, "--device", "cpu", "--workers", workers, "--regions", tmp_path)
    line = run("train", recipe, "--out", tmp_path / "run", *how).complaint
    assert line == f"saywhy: {tmp_path / '2.npy'}: no box with an area (left, top, right, bottom); {ONE_AT_LEAST}"
    captioner = build("soft-attention", encoder, tiny.WORDS, **tiny.settings("soft-attention"))
    regions = RegionSettings("features", 4)
    SavedModel("f", captioner, tiny.vocabulary(), Preprocessing(), {}, regions).save(tmp_path / "f")
    line = run("evaluate", "--model", tmp_path / "f", "--no-meteor", *how).complaint
    assert line == f"saywhy: {tmp_path}: features of 8.png have 6 numbers a region, not 5"
