"""Every captioner can memorise eight images with ImageNet features, over a grid and over regions."""

from __future__ import annotations

import csv
import gzip
import json
from dataclasses import fields
from pathlib import Path

import pytest
from PIL import Image

import tiny  # noqa: F401  (registers the captioner of the documentation)
from saywhy.captioners import captioners
from saywhy.data.datasets import read
from saywhy.inference.model import load
from saywhy.training.recipe import from_table
from saywhy.training.trainer import train

pytest.importorskip("lightning_fabric", reason='training needs pip install "saywhy[train]"')
pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"
REGIONS = {"grid": {}, "regions": {"regions": {"kind": "boxes", "most": 12}}}
CAPTIONS = {  # of the left and right halves of the example photographs
    "astronaut.jpg": ("a flag hangs behind a woman in an orange suit", "a model of a white rocket stands on a table"),
    "chelsea.jpg": ("the left ear and eye of a striped cat", "a striped cat lies and looks to the side"),
    "coffee.jpg": ("a spoon lies on a table beside a red saucer", "a cup of coffee stands on a red saucer"),
    "rocket.jpg": ("a dark sky above a line of trees", "a rocket stands on the pad at night and is lit by lamps"),
}


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The halves of four photographs with a caption each, for training and for dev, and boxes of their quarters."""
    folder = tmp_path_factory.mktemp("halves")
    rows, lines = [["image", "caption", "split"]], []
    for file_name, captions in CAPTIONS.items():
        with Image.open(EXAMPLES / file_name) as photograph:
            width, height = photograph.width // 2, photograph.height
            for side, caption in enumerate(captions):
                for split in ("train", "dev"):
                    name = f"{split}-{side}-{Path(file_name).stem}.png"
                    half = photograph.crop((side * width, 0, side * width + width, height))
                    half.resize((224, 224)).save(folder / name)
                    rows.append([name, caption, split])
                    boxes = [[0, 0, 112, 112], [112, 0, 224, 112], [0, 112, 112, 224], [112, 112, 224, 224]]
                    lines.append({"image": name, "width": 224, "height": 224, "phrases": [{"boxes": boxes}]})
    (folder / "boxes.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, lines)).encode()))
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder


@pytest.mark.parametrize("kind", REGIONS)
@pytest.mark.parametrize("name", captioners)
def test_a_captioner_reproduces_its_training_captions(name, kind, halves, tmp_path):
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
                "evaluate_every": 25, "patience": 50, "precision": "float32",
            },
            **REGIONS[kind],
        }
    )  # fmt: skip
    progress = train(recipe, read(halves), tmp_path, workers=0, device="cpu")
    assert progress.best > 900  # CIDEr in percent; 1000 if all captions are reproduced
    regions = halves / "boxes.jsonl.gz" if kind == "regions" else None
    caption = load(tmp_path, "cpu").caption(halves / "train-0-coffee.png", regions=regions)
    assert caption.words[:4] == ("a", "spoon", "lies", "on")
