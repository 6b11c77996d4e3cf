"""The familiarity audit is fitted on train and dev, and separates test images from images of other kinds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import audit_data
from reference import audits as reference
from saywhy.audits import familiarity
from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.audits.familiarity import FamiliarityAudit, fit
from saywhy.audits.runner import run
from saywhy.data.datasets import read
from saywhy.errors import UserError

SCENES = {f"{split}{number}.png": (split, ["a dog"], []) for split in ("train", "dev", "test") for number in range(24)}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of noise in three splits."""
    return audit_data.write_data(tmp_path_factory.mktemp("photographs") / "noise", SCENES, boxes=False)


@pytest.fixture(scope="module")
def unfamiliar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Single colours, and images like the photographs."""
    folder = tmp_path_factory.mktemp("unfamiliar")
    for kind in ("flat", "noise"):
        (folder / kind).mkdir()
        for number in range(8):
            flat = Image.new("RGB", (80, 60), (30 * number, 10, 200))
            (flat if kind == "flat" else audit_data.image(100 + number)).save(folder / kind / f"{number}.png")
    return folder


@pytest.fixture
def context(photographs: Path, tmp_path: Path) -> AuditContext:
    context = audit_data.context(photographs, tmp_path / "cache")
    context.model.familiarity = fit(context, [read(photographs)], 24)
    return context


def test_flat_images_are_told_from_noise(context, unfamiliar):
    (result,) = run(("familiarity",), replace(context, unfamiliar=unfamiliar))
    assert (result["images"], result["photographs"], result["caption_words"]) == (24, 24, 0)
    assert list(result["kinds"]) == ["flat", "noise", "all kinds"]
    assert result["kinds"]["flat"]["auc"]["value"] > 0.9
    assert result["kinds"]["noise"]["auc"]["value"] < 0.8
    assert result["kinds"]["all kinds"]["images"] == 16
    audit = FamiliarityAudit()
    for table in (audit.summary(result), *audit.tables(result)):
        assert all(len(row) == len(table.head) for row in table.rows)


def test_auc_and_false_alarms_are_those_of_the_captions(context, unfamiliar):
    (result,) = run(("familiarity",), replace(context, unfamiliar=unfamiliar))
    model = context.model
    test = [model.caption(image.path) for image in context.data.images]
    noise = [model.caption(path).familiarity for path in sorted((unfamiliar / "noise").iterdir())]
    scores = [-caption.familiarity for caption in test] + [-share for share in noise]
    truth = [False] * len(test) + [True] * len(noise)
    assert result["kinds"]["noise"]["auc"]["value"] == pytest.approx(reference.auc(scores, truth), abs=0.01)
    assert result["false_alarms"]["value"] == pytest.approx(np.mean([not caption.familiar for caption in test]))


def test_test_images_do_not_enter_the_fit(context, photographs, tmp_path):
    data = read(photographs)
    broken = tmp_path / "not an image.png"
    broken.write_text("no image")
    images = tuple(replace(image, path=broken) if image.split == "test" else image for image in data.images)
    again = fit(context, [replace(data, images=images)], 24)
    np.testing.assert_array_equal(again.quantiles, context.model.familiarity.quantiles)


def test_two_data_sets_with_the_same_names_are_both_used(context, photographs, tmp_path):
    scenes = {name: scene for number, (name, scene) in enumerate(SCENES.items()) if number >= 24}
    first = audit_data.write_data(
        tmp_path / "other", {**scenes, **{f"train{n}.png": SCENES["train0.png"] for n in range(3)}}
    )
    both = fit(context, [read(photographs), read(first)], 24)
    assert both.about == {"data": ["noise", "other"], "train": 27, "dev": 48}


def test_too_few_photographs_are_refused(context, photographs, monkeypatch):
    monkeypatch.setattr(familiarity, "MIN_IMAGES", 25)
    with pytest.raises(UserError, match="24 training and 24 dev photographs are too few; it needs 25 of each"):
        fit(context, [read(photographs)], 100)


def test_it_is_not_tested_on_what_it_was_fitted_to(context, photographs):
    dev = replace(context, data=read(photographs).split("dev"))
    with pytest.raises(NotApplicable, match="was fitted on noise dev; give --split test"):
        FamiliarityAudit().run(dev, None)


def test_a_model_without_familiarity_is_told_how_to_fit_one(photographs, tmp_path):
    context = audit_data.context(photographs, tmp_path)
    with pytest.raises(NotApplicable, match=r"no familiarity\.safetensors; give --fit-familiarity DATA"):
        FamiliarityAudit().run(context, None)


def test_without_other_images_only_false_alarms_are_measured(context):
    (result,) = run(("familiarity",), context)
    assert result["kinds"] == {}
    assert result["notes"] == ["only false alarms are measured; give --unfamiliar a folder of other images"]
