"""Every captioner memorises eight photographs, from pixels, over a grid and over regions."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

import tiny  # noqa: F401  (registers the captioner of the documentation)
from saywhy.captioners import captioners
from saywhy.data.datasets import Dataset, read
from saywhy.inference.model import load
from saywhy.training.recipe import from_table
from saywhy.training.trainer import train

pytestmark = [pytest.mark.data, pytest.mark.slow]
REGIONS = {"grid": {}, "regions": {"regions": {"kind": "boxes", "most": 12}}}


@pytest.fixture(scope="module")
def eight(flickr8k: Path) -> Dataset:
    """Eight photographs with one caption each for training and, under other names, for dev."""
    data = read(flickr8k)
    images = [replace(image, captions=image.captions[:1]) for image in data.split("train").images[:8]]
    dev = [replace(image, name=f"dev/{image.name}", split="dev") for image in images]
    return replace(data, images=(*images, *dev))


@pytest.mark.parametrize("kind", REGIONS)
@pytest.mark.parametrize("name", captioners)
def test_it_reproduces_its_training_captions(name, kind, eight, tmp_path):
    sizes = {field.name: 128 for field in fields(captioners[name].Settings) if field.default == 512}
    recipe = from_table(
        {
            "name": "memorised",
            "vocabulary": {"min_count": 1},
            "preprocessing": {"size": 224, "fit": "squash"},
            "encoder": {"name": "efficientnet-lite0"},
            "captioner": {"name": name, "dropout": 0.0, **sizes},
            "training": {
                "epochs": 200, "batch": 8, "lr": 3e-3, "warmup": 5, "schedule": "constant", "doubly_stochastic": 0.0,
                "evaluate_every": 25, "patience": 25, "precision": "float32",
            },
            "decoding": {"max_words": 30},
            **REGIONS[kind],
        }
    )  # fmt: skip
    progress = train(recipe, eight, tmp_path, workers=0, device="cpu")
    assert progress.best > 900  # CIDEr in percent; 1000 if all captions are reproduced
    model, first = load(tmp_path, "cpu"), eight.images[0]
    regions = eight.root / "boxes.jsonl.gz" if kind == "regions" else None
    assert model.caption(first.path, regions=regions).text.split()[:2] == first.captions[0].lower().split()[:2]
