"""Which rules of LRP, and which methods, point at what a word names: dev images with boxes.

    python benchmarks/composites.py --data DIR [--model DIR] [--limit 200] [--device auto] [--json FILE]

For every word of the model's own captions that ends a phrase of a reference with boxes: the share of the map's positive
part inside the boxes, whether its highest point (of the map smoothed over 17 × 17 pixels) lies inside, and the share of
the negative part. `uniform` is what the area of the boxes alone gives. Words whose boxes cover more than nine tenths of
the image are left out. A quick look, to choose a default by; on dev.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import numpy as np
from PIL import Image, ImageFilter

import saywhy
from saywhy.data.datasets import read
from saywhy.explain import METHODS, Explanation, composites

LARGEST = 0.9


def masks(explanation: Explanation, told: dict) -> dict[int, np.ndarray]:
    """The boxes of each word that has some, as a map over the encoder's square."""
    S, found = explanation.seen, {}
    for i, word in enumerate(explanation.words):
        of_word = [each for each in told["phrases"] if each["phrase"].lower().split()[-1] == word.word]
        mask = np.zeros((S, S), bool)
        for left, top, right, bottom in (box for each in of_word for box in each["boxes"]):
            rows, columns = (
                slice(_at(top, told["height"], S), _at(bottom, told["height"], S) + 1),
                slice(_at(left, told["width"], S), _at(right, told["width"], S) + 1),
            )
            mask[rows, columns] = True
        if mask.any() and mask.mean() < LARGEST:
            found[i] = mask
    return found


def _at(pixel: float, side: int, S: int) -> int:
    return int(pixel / side * S)


def scores(values: np.ndarray, mask: np.ndarray) -> tuple[float, float, float]:
    """Positive part inside, highest point inside, negative part inside."""
    up, down = np.clip(values, 0, None), np.clip(-values, 0, None)
    soft = Image.fromarray((255 * up / max(up.max(), 1e-30)).astype(np.uint8)).filter(ImageFilter.BoxBlur(8))
    top = np.unravel_index(np.asarray(soft).argmax(), mask.shape)
    shares = [float((part * mask).sum() / part.sum()) if part.sum() else 0.0 for part in (up, down)]
    return shares[0], float(mask[top]), shares[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    model = saywhy.load(asked.model, asked.device)
    with gzip.open(asked.data / "boxes.jsonl.gz", "rt") as lines:
        told = {each["image"]: each for each in map(json.loads, lines)}
    images = [each.path for each in read(asked.data).split("dev").images[: asked.images]]
    found: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for name in composites:
        methods = METHODS if name == next(iter(composites)) else ["lrp"]
        for each in model.explanations(images, methods=methods, composite=name, batch=asked.batch):
            square = (each.seen, each.seen)
            for i, mask in masks(each, told[Path(each.image).name]).items():
                for method in methods:
                    row = scores(each.map(i, method, size=square), mask)
                    found[f"lrp, {name}" if method == "lrp" else method].append(row)
                if methods == METHODS:
                    found["uniform"].append(scores(np.ones(square), mask))
    table = {"model": model.name, "split": "dev", "images": len(images), "words": len(found["uniform"])}
    columns = ("positive inside", "highest inside", "negative inside")
    rows = {key: dict(zip(columns, map(fmean, zip(*of, strict=True)), strict=True)) for key, of in found.items()}
    print(json.dumps({**table, "rows": rows}, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps({**table, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
