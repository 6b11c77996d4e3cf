"""Every captioner learns eight photographs by heart, from pixels, over a grid and over regions."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

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
    """Eight photographs with one caption each, to learn and, under other names, to be asked about."""
    whole = read(flickr8k)
    some = [replace(image, captions=image.captions[:1]) for image in whole.split("train").images[:8]]
    asked = [replace(image, name=f"asked/{image.name}", split="dev") for image in some]
    return replace(whole, images=(*some, *asked))


@pytest.mark.parametrize("kind", REGIONS)
@pytest.mark.parametrize("name", captioners)
def test_it_captions_them_as_it_was_taught(name, kind, eight, tmp_path):
    torch.manual_seed(0)
    sizes = {each.name: 128 for each in fields(captioners[name].Settings) if each.default == 512}
    recipe = from_table(
        {
            "name": "by heart",
            "vocabulary": {"min_count": 1},
            "preprocessing": {"size": 224, "fit": "squash"},
            "encoder": {"name": "efficientnet-lite0"},
            "captioner": {"name": name, "dropout": 0.0, **sizes},
            "training": {
                "epochs": 80, "batch": 8, "lr": 3e-3, "warmup": 5, "doubly_stochastic": 0.0, "evaluate_every": 40,
                "precision": "float32",
            },
            "decoding": {"max_words": 30},
            **REGIONS[kind],
        }
    )  # fmt: skip
    progress = train(recipe, eight, tmp_path, workers=0, device="cpu")
    assert progress.best > 500  # CIDEr in percent, of 1000
    model, first = load(tmp_path, "cpu"), eight.images[0]
    where = eight.root / "boxes.jsonl.gz" if kind == "regions" else None
    assert model.caption(first.path, regions=where).text.split()[:2] == first.captions[0].lower().split()[:2]
