"""Localisation by LRP composites and other methods: how well maps agree with boxes of the named objects, on dev.

    python benchmarks/composites.py --data DIR [--model DIR] [--limit 200] [--device auto] [--json FILE]

For every word of the model's own captions that is the last word of a reference phrase with boxes: the share of the
map's positive part inside the boxes, whether its maximum (after smoothing over 17 × 17 pixels) is inside, and the share
of the negative part. `uniform` is a constant map. Words whose boxes cover more than 90 % of the image are left out. It
served to choose the default composite.
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

MAX_AREA = 0.9


def box_masks(explanation: Explanation, annotation: dict) -> dict[int, np.ndarray]:
    """The boxes of each word that has some, as a mask over the encoder's input."""
    S, masks = explanation.input_size, {}
    for i, word in enumerate(explanation.words):
        phrases = [p for p in annotation["phrases"] if p["phrase"].lower().split()[-1] == word.word]
        mask = np.zeros((S, S), bool)
        for left, top, right, bottom in (box for phrase in phrases for box in phrase["boxes"]):
            rows = slice(_scale(top, annotation["height"], S), _scale(bottom, annotation["height"], S) + 1)
            columns = slice(_scale(left, annotation["width"], S), _scale(right, annotation["width"], S) + 1)
            mask[rows, columns] = True
        if mask.any() and mask.mean() < MAX_AREA:
            masks[i] = mask
    return masks


def _scale(pixel: float, side: int, S: int) -> int:
    return int(pixel / side * S)


def scores(values: np.ndarray, mask: np.ndarray) -> tuple[float, float, float]:
    """Share of the positive part inside, whether the maximum is inside, share of the negative part inside."""
    positive, negative = np.clip(values, 0, None), np.clip(-values, 0, None)
    levels = (255 * positive / max(positive.max(), 1e-30)).astype(np.uint8)
    smooth = Image.fromarray(levels).filter(ImageFilter.BoxBlur(8))
    maximum = np.unravel_index(np.asarray(smooth).argmax(), mask.shape)
    shares = [float((part * mask).sum() / part.sum()) if part.sum() else 0.0 for part in (positive, negative)]
    return shares[0], float(mask[maximum]), shares[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = saywhy.load(args.model, args.device)
    with gzip.open(args.data / "boxes.jsonl.gz", "rt") as lines:
        annotations = {row["image"]: row for row in map(json.loads, lines)}
    images = [image.path for image in read(args.data).split("dev").images[: args.limit]]
    results: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for name in composites:
        methods = METHODS if name == next(iter(composites)) else ["lrp"]
        options = {"methods": methods, "composite": name, "batch_size": args.batch_size}
        for explanation in model.explanations(images, **options):
            size = (explanation.input_size, explanation.input_size)
            for i, mask in box_masks(explanation, annotations[Path(explanation.source).name]).items():
                for method in methods:
                    row = scores(explanation.map(i, method, size=size), mask)
                    results[f"lrp, {name}" if method == "lrp" else method].append(row)
                if methods == METHODS:
                    results["uniform"].append(scores(np.ones(size), mask))
    table = {"model": model.name, "split": "dev", "images": len(images), "words": len(results["uniform"])}
    columns = ("positive inside", "maximum inside", "negative inside")
    means = {key: map(fmean, zip(*rows, strict=True)) for key, rows in results.items()}
    rows = {key: dict(zip(columns, values, strict=True)) for key, values in means.items()}
    print(json.dumps({**table, "rows": rows}, indent=2))
    if args.json:
        args.json.write_text(json.dumps({**table, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
