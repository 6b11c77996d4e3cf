"""`saywhy audit familiarity` fits, tests and saves the familiarity; `caption` and `explain` report strange images."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image

import audit_data
from saywhy.inference.familiarity_model import FAMILIARITY_FILE

SCENES = {f"{split}{number}.png": (split, ["a dog"], []) for split in ("train", "dev", "test") for number in range(24)}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return audit_data.write_data(tmp_path_factory.mktemp("photographs") / "noise", SCENES, boxes=False)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    audit_data.saved().save(tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def black(tmp_path: Path) -> Path:
    folder = tmp_path / "unfamiliar" / "flat"
    folder.mkdir(parents=True)
    Image.new("RGB", (90, 70)).save(folder / "black.png")
    return folder / "black.png"


@pytest.fixture
def fit(run, photographs: Path, model: Path, black: Path, tmp_path: Path):
    def call(*options: object):
        fixed = ("--data", photographs, "--model", model, "--out", tmp_path / "out", "--workers", 0, "--device", "cpu")
        return run("audit", "familiarity", *fixed, *options)

    return call


def test_one_command_fits_saves_and_tests(fit, run, photographs, model, black, tmp_path):
    result = fit("--fit-familiarity", photographs, "--save-familiarity", "--unfamiliar", black.parents[1])
    assert result.code == 0, result.err
    assert f"the familiarity is saved in {model / FAMILIARITY_FILE}" in result.err
    assert "flat" in result.out
    body = json.loads((tmp_path / "out" / "audit-tiny-soft-attention-familiarity.json").read_text(encoding="utf-8"))
    assert body["kinds"]["flat"]["auc"]["value"] == 1
    assert (tmp_path / "out" / "familiarity.md").is_file()
    known = photographs / "test0.png"
    captioned = run("caption", black, known, "--model", model, "--json", "--device", "cpu")
    rows = [json.loads(line) for line in captioned.out.splitlines()]
    assert rows[0]["familiarity"] < rows[1]["familiarity"]
    assert rows[0]["familiar"] is False
    warnings = [line for line in captioned.err.splitlines() if "unlike the photographs" in line]
    assert warnings == [
        f"saywhy: {black}: unlike the photographs this model was trained on "
        f"(familiarity {rows[0]['familiarity']:.2g}); its caption may be wrong"
    ]
    explained = run("explain", black, "--model", model, "--out", tmp_path / "why", "--method", "lrp", "--device", "cpu")
    assert "unlike the photographs this model was trained on" in explained.err
    saved = json.loads((tmp_path / "why" / "explanation.json").read_text(encoding="utf-8"))
    assert saved["familiar"] is False


def test_a_file_of_other_weights_is_one_line_and_the_captions_still_come(fit, run, photographs, model):
    fit("--fit-familiarity", photographs, "--save-familiarity")
    audit_data.saved(seed=8).save(model)
    result = run("caption", photographs / "test0.png", "--model", model, "--device", "cpu")
    assert result.code == 0
    assert result.out.count("\n") == 1
    assert result.err.count("\n") == 1
    assert "familiarity is left out" in result.err
    assert "was fitted to other weights" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--save-familiarity"], "--save-familiarity: nothing is fitted; give --fit-familiarity DATA"),
        (["--unfamiliar", "nowhere"], "--unfamiliar nowhere: no such folder"),
        (["--fit-familiarity", "nowhere"], "nowhere: no such file or folder"),
    ],
)
def test_bad_options_are_one_line(fit, options, message):
    assert message in fit(*options).error


def test_a_folder_without_kinds_is_one_line(fit, black):
    assert "has no sub-folders; put the images of each kind into one" in fit("--unfamiliar", black.parent).error


def test_its_options_belong_to_no_other_audit(run, photographs, model, tmp_path):
    fixed = ("--data", photographs, "--model", model, "--out", tmp_path / "out")
    result = run("audit", "sanity", *fixed, "--unfamiliar", tmp_path)
    assert "belong to the audit familiarity, not to sanity" in result.error
