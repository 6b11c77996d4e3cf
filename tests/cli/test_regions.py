"""`--regions`: a region-based model reads its regions from a file, or an error says what to do."""

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


@pytest.fixture(scope="module")
def region_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A region-based model with random weights."""
    folder, preprocessing = tmp_path_factory.mktemp("models") / "region_model", Preprocessing(tiny.SIDE)
    decoding, regions = {"beam": 2, "max_words": 6}, RegionSettings("boxes", 4)
    SavedModel("region_model", tiny.sensitive_captioner(), tiny.vocabulary(), preprocessing, decoding, regions).save(
        folder
    )
    return folder


def write_boxes(folder: Path, path: Path, without: str = "") -> Path:
    """Two boxes for each image of a folder, in pixels (80 × 70)."""
    rows = [
        {"image": image.name, "width": 80, "height": 70, "phrases": [{"boxes": [[9, 9, 40, 60], [30, 5, 70, 66]]}]}
        for image in sorted(folder.glob("*.png"))
        if image.name != without
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def test_captioning_without_regions_names_the_option(run, region_model, photos):
    error = run("caption", photos[0], "--model", region_model).error
    assert "model region_model" in error
    assert "--regions PATH" in error


def test_captioning_with_regions_prints_captions_and_draws_figures(run, region_model, photos, tmp_path):
    table = write_boxes(photos[0].parent, tmp_path / "boxes.jsonl")
    result = run("caption", *photos, "--model", region_model, "--regions", table, "--figures", tmp_path / "figures")
    assert (result.code, result.err) == (0, "")
    assert result.out.count("word") >= 3
    assert len(list((tmp_path / "figures").glob("*.png"))) == 3


def test_explaining_needs_regions_of_every_image(run, region_model, photos, tmp_path):
    command = ("explain", *photos, "--model", region_model, "--out", tmp_path / "why")
    assert "--regions PATH" in run(*command).error
    incomplete = write_boxes(photos[0].parent, tmp_path / "incomplete.jsonl", without="1.png")
    assert "no regions for 1 of 3 images" in run(*command, "--regions", incomplete).error
    assert not (tmp_path / "why").exists()
    result = run(*command, "--regions", write_boxes(photos[0].parent, tmp_path / "boxes.jsonl"))
    assert (result.code, result.err) == (0, "")
    for name in "012":
        explanation = Explanation.load(tmp_path / "why" / name)
        assert explanation.boxes is not None
        assert all(word.budget.total == pytest.approx(word.score, abs=1e-3) for word in explanation.words)


def test_image_without_regions_is_named_before_the_first_caption(run, region_model, photos, tmp_path):
    table = write_boxes(photos[0].parent, tmp_path / "boxes.jsonl", without="1.png")
    error = run("caption", *photos, "--model", region_model, "--regions", table).error
    assert "no regions for 1 of 3 images, such as 1.png" in error


def test_grid_model_refuses_regions(run, model, photos, tmp_path):
    table = write_boxes(photos[0].parent, tmp_path / "boxes.jsonl")
    assert "--regions" in run("caption", photos[0], "--model", model, "--regions", table).error


def test_evaluation_uses_the_boxes_of_the_dataset_and_notes_that_they_are_an_oracle(run, region_model, data, tmp_path):
    command = ("evaluate", "--data", data, "--model", region_model, "--no-meteor", "--json", "--workers", 0)
    assert "--regions" in run(*command).error
    explicit = run(*command, "--regions", write_boxes(data, tmp_path / "boxes.jsonl"))
    write_boxes(data, data / "boxes.jsonl.gz")
    out = tmp_path / "result.json"
    implicit = run(*command, "--out", out)
    assert (explicit.code, implicit.code) == (0, 0), explicit.err + implicit.err
    assert json.loads(explicit.out) == json.loads(implicit.out)
    assert json.loads(implicit.out)["notes"][0].startswith("oracle regions")
    regions = json.loads(out.read_text())["regions"]
    assert (regions["kind"], regions["name"], regions["oracle"]) == ("boxes", "boxes.jsonl.gz", True)


def test_captions_file_and_regions_exclude_one_another(run, data, tmp_path):
    command = ("evaluate", "--data", data, "--captions", tmp_path / "c.jsonl", "--regions", tmp_path)
    assert "one or the other" in run(*command).error


def test_model_of_region_features_is_trained_and_evaluated(run, data, tmp_path):
    pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')
    recipe, features, out = tmp_path / "tiny.toml", tmp_path / "features", tmp_path / "run"
    features.mkdir()
    for number, image in enumerate(sorted(data.glob("*.png"))):
        np.save(features / f"{image.stem}.npy", np.full((2, 5), number, np.float32))
    recipe.write_text(FEATURES)
    command = ("train", recipe, "--data", data, "--out", out, "--device", "cpu", "--workers", 0)
    assert "--regions" in run(*command).error
    trained = run(*command, "--regions", features)
    assert trained.code == 0, trained.err
    scored = run(
        "evaluate", "--data", data, "--model", out, "--no-meteor", "--json", "--workers", 0, "--regions", features
    )
    assert scored.code == 0, scored.err
    assert not [note for note in json.loads(scored.out)["notes"] if "oracle" in note]


@pytest.mark.parametrize("workers", [0, 1])
def test_damaged_regions_are_named_in_one_line(run, data, tmp_path, workers):
    pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')
    for number, image in enumerate(sorted(data.glob("*.png"))):
        np.save(tmp_path / f"{image.stem}.npy", np.ones((2, 5 if number < 8 else 6), np.float32))
    np.save(tmp_path / "2.npy", np.ones((0, 5), np.float32))
    recipe, encoder = tmp_path / "tiny.toml", encoders.build("features:5", None)
    recipe.write_text(FEATURES)
    options = ("--data", data, "--device", "cpu", "--workers", workers, "--regions", tmp_path)
    result = run("train", recipe, "--out", tmp_path / "run", *options)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[-1].startswith(f"saywhy: {tmp_path / '2.npy'}: ")
    assert "Traceback" not in result.err
    captioner = build("soft-attention", encoder, tiny.WORDS, **tiny.settings("soft-attention"))
    regions = RegionSettings("features", 4)
    SavedModel("f", captioner, tiny.vocabulary(), Preprocessing(), {}, regions).save(tmp_path / "f")
    error = run("evaluate", "--model", tmp_path / "f", "--no-meteor", *options).error
    assert "8.png" in error
    assert "not 5" in error
