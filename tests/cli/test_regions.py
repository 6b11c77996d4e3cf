"""`--regions`: a model of regions is told where they are, or says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import tiny
from saywhy.captioners.saving import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSettings


@pytest.fixture(scope="module")
def looker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights that looks at boxes."""
    folder, preprocessing = tmp_path_factory.mktemp("models") / "looker", Preprocessing(tiny.SIDE)
    decoding, regions = {"beam": 2, "max_words": 6}, RegionSettings("boxes", 4)
    SavedModel("looker", tiny.opinionated(), tiny.vocabulary(), preprocessing, decoding, regions).save(folder)
    return folder


def boxes_of(folder: Path, path: Path, without: str = "") -> Path:
    """Two boxes for each picture in a folder, in its own pixels (80 × 70)."""
    rows = [
        {"image": picture.name, "width": 80, "height": 70, "phrases": [{"boxes": [[9, 9, 40, 60], [30, 5, 70, 66]]}]}
        for picture in sorted(folder.glob("*.png"))
        if picture.name != without
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_captioning_without_regions_says_what_to_do(run, looker, photos):
    line = run("caption", photos[0], "--model", looker).complaint
    assert line == ("saywhy: model looker looks at given boxes of each picture: say where they are with --regions PATH")


def test_captioning_with_regions_says_something_and_draws_it(run, looker, photos, tmp_path):
    table = boxes_of(photos[0].parent, tmp_path / "boxes.jsonl")
    result = run("caption", *photos, "--model", looker, "--regions", table, "--figures", tmp_path / "figures")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("word") >= 3
    assert len(list((tmp_path / "figures").glob("*.png"))) == 3


def test_a_picture_without_regions_is_named_before_anything_is_said(run, looker, photos, tmp_path):
    table = boxes_of(photos[0].parent, tmp_path / "boxes.jsonl", without="1.png")
    line = run("caption", *photos, "--model", looker, "--regions", table).complaint
    assert "no regions for 1 of 3 pictures, such as 1.png" in line


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
    for number, picture in enumerate(sorted(data.glob("*.png"))):
        np.save(dump / f"{picture.stem}.npy", np.full((2, 5), number, np.float32))
    recipe.write_text(
        'name = "f"\n[vocabulary]\nmin_count = 1\n[regions]\nkind = "features"\n[encoder]\nname = "features"\n'
        "[captioner]\nembedding = 8\nhidden = 8\nattention = 8\n[training]\nepochs = 1\nbatch = 2\n"
    )
    trained = ("train", recipe, "--data", data, "--out", out, "--device", "cpu", "--workers", 0)
    assert "recipe f looks at given regions with their features" in run(*trained).complaint
    done = run(*trained, "--regions", dump)
    assert done.code == 0, done.err
    scored = run("evaluate", "--data", data, "--model", out, "--no-meteor", "--json", "--workers", 0, "--regions", dump)
    assert scored.code == 0, scored.err
    assert not [note for note in json.loads(scored.out)["notes"] if "oracle" in note]
