"""A tiny model to audit: a captioner of English words, coloured images with reference captions, and boxes."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import tiny
from saywhy.audits.context import AuditContext
from saywhy.cache import DiskCache
from saywhy.captioners import Captioner
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.datasets import CaptionedImage, read
from saywhy.data.object_words import ObjectWords
from saywhy.data.phrases import find_phrases
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSettings
from saywhy.data.tokenizer import MARKERS, Vocabulary
from saywhy.hallucination.risk_model import PRIOR_FEATURE, WORD_FEATURES, Risk
from saywhy.inference.model import Model

WORDS = (*MARKERS, "a", "the", "on", "with", "red", "runs", "dog", "dogs", "puppy", "man", "ball", "car")
OBJECTS = {"dog": "dog", "dogs": "dog", "puppy": "puppy", "man": "man", "ball": "ball", "car": "car"}
LONG = {"beam": 2, "min_words": 8, "max_words": 9, "no_repeat": True}
SEEDS = {"soft-attention": 3, "ada-lstm": 9, "mh-fc": 13, "coca": 5}  # captions have object words and stop words
SIZE = (90, 70)
SCENES = {  # by image: split, captions, and phrases with boxes in pixels
    "red.png": ("train", ["a red car", "the car runs"], [("a red car", "vehicles", [[10, 10, 60, 50]])]),
    "green.png": (
        "dev",
        ["a dog runs on the grass", "two puppies"],
        [("a dog", "animals", [[15, 5, 45, 60]]), ("the grass", "scene", [[0, 40, 90, 70]])],
    ),
    "blue.png": ("dev", ["a puppy on the grass", "the man"], [("a man", "people", [[20, 0, 50, 70]])]),
    "teal.png": ("dev", ["a red ball", "the dog"], []),
    "lime.png": ("dev", ["a man", "a puppy on a car"], []),
    "grey.png": (
        "test",
        ["a dog with a ball", "the dogs run"],
        [("the dog", "animals", [[12, 8, 40, 40]]), ("a ball", "other", [[40, 40, 60, 65]])],
    ),
    "pink.png": (
        "test",
        ["a man on a car", "a puppy"],
        [("a man", "people", [[18, 2, 48, 66]]), ("a puppy", "animals", [[50, 20, 80, 60]])],
    ),
    "gold.png": ("test", ["a red ball", "the ball and the man"], [("the ball", "other", [[25, 25, 65, 55]])]),
}


def image(number: int, size: tuple[int, int] = SIZE) -> Image.Image:
    """Noise of one colour, with a square of another."""
    random = np.random.default_rng(number)
    pixels = np.clip(random.integers(0, 256, 3) + random.integers(-40, 40, (size[1], size[0], 3)), 0, 255)
    pixels[15:40, 30:60] = random.integers(0, 256, 3)
    return Image.fromarray(pixels.astype(np.uint8))


def write_data(
    folder: Path, scenes: dict[str, tuple[str, list[str], list[Any]]] | None = None, boxes: bool = True
) -> Path:
    """Write the images with captions.csv and boxes.jsonl."""
    scenes = SCENES if scenes is None else scenes
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(scenes):
        image(number).save(folder / name)
    rows = [(name, caption, split) for name, (split, captions, _) in scenes.items() for caption in captions]
    with (folder / "captions.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "caption", "split"), *rows])
    if boxes:
        entries = [
            {
                **{"image": name, "width": SIZE[0], "height": SIZE[1]},
                "phrases": [{"phrase": text, "type": kind, "boxes": corners} for text, kind, corners in phrases],
            }
            for name, (_, _, phrases) in scenes.items()
        ]
        (folder / "boxes.jsonl").write_text("\n".join(map(json.dumps, entries)) + "\n", encoding="utf-8")
    return folder


def captioner(name: str = "soft-attention", seed: int | None = None) -> Captioner:
    """A captioner whose words depend on the image and on the earlier words."""
    tiny_captioner = tiny.sensitive_captioner(name, words=len(WORDS), seed=SEEDS[name] if seed is None else seed)
    if hasattr(tiny_captioner, "E"):
        tiny_captioner.E.weight.data.mul_(5)
    return tiny_captioner


def saved(
    name: str = "soft-attention", seed: int | None = None, regions: RegionSettings | None = None, **decoding: Any
) -> SavedModel:
    """A model whose captions have eight or nine words, half of them object words."""
    preprocessing, settings = Preprocessing(tiny.SIDE), {**LONG, **decoding}
    return SavedModel(f"tiny-{name}", captioner(name, seed), Vocabulary(WORDS), preprocessing, settings, regions)


def model(name: str = "soft-attention", seed: int | None = None, risk: Risk | None = None, **decoding: Any) -> Model:
    return Model(saved(name, seed, **decoding), risk)


def context(data: Path, cache: Path, name: str = "soft-attention", split: str = "test", **options: Any) -> AuditContext:
    """A context over one split, which reads its images in this process."""
    dataset = read(data)
    return AuditContext(
        options.pop("model", None) or model(name),
        dataset.split(split) if split else dataset,
        cache,
        phrases=find_phrases(data),
        workers=0,
        **options,
    )


def cached(context: AuditContext, stage: str, image: CaptionedImage) -> dict[str, np.ndarray]:
    """The cached arrays of an image, for a stage that was computed with one key only."""
    (folder,) = context.cache.glob(f"{stage}-*")
    key = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    return DiskCache(context.cache, key.pop("stage"), key).load(context.image_key(image))


def some_risk(**changes: Any) -> Risk:
    """A risk with arbitrary weights, none of them zero."""
    count = len(WORD_FEATURES) + 1
    fields = {
        "features": (*WORD_FEATURES, PRIOR_FEATURE),
        "mean": tuple(0.1 * i - 0.5 for i in range(count)),
        "scale": tuple(1 + 0.2 * i for i in range(count)),
        "weights": tuple(0.3 * (-1) ** i + 0.05 * i for i in range(count)),
        "bias": -0.4,
        "object_priors": {"dog": -1.0, "ball": 0.7},
        "default_prior": -0.2,
        "about": {"data": "made up", "split": "dev", "words": 40, "object_words": ObjectWords.read().key},
    }
    return Risk(**{**fields, **changes})
