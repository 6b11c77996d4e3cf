"""Conservation on photographs: logit = image + earlier words + initial state + absorbed, for words of many captions.

    python benchmarks/conservation.py --data DIR [--model DIR] [--split test] [--limit 100] [--json FILE]

In single and in double precision. Every term is summed separately. Printed are the largest errors over all words,
relative to max(1, |logit|): of the budget, and of pixels + absorbed by the encoder compared with the image's part. The
error of a map that adds up to the image's part is relative to the sum of the map's absolute values. Also the mean image
share, and the mean fraction of the image's part that the encoder absorbed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import numpy as np
import torch

import saywhy
from saywhy.data.datasets import read
from saywhy.explain import Explanation, WordExplanation
from saywhy.explain.composites import DEFAULT

ADDING_UP = ("why", "features")
BOUNDS = {"float32": 1e-3, "float64": 1e-9}


def budget_error(word: WordExplanation) -> float:
    return abs(word.logit - word.budget.total) / max(1.0, abs(word.logit))


def encoder_error(word: WordExplanation) -> float:
    assert word.pixel_relevance is not None
    return abs(word.budget.image - word.pixel_relevance - word.absorbed_by_encoder) / max(1.0, abs(word.logit))


def map_errors(explanation: Explanation) -> list[float]:
    """For every word, the difference of the sum of its map from the image's part; none for maps that do not add up."""
    if explanation.map_kind not in ADDING_UP:
        return []
    maps = explanation.maps["lrp"].astype(np.float64)  # (K, S, S)
    parts = np.array([word.budget.image for word in explanation.words])
    return list(abs(maps.sum(axis=(1, 2)) - parts) / abs(maps).sum(axis=(1, 2)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--composite", default=DEFAULT)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--precision", action="append", choices=BOUNDS)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = saywhy.load(args.model, args.device)
    images = [image.path for image in read(args.data).split(args.split).images[: args.limit]]
    table: dict[str, object] = {"model": model.name, "split": args.split, "composite": args.composite}
    for precision in args.precision or BOUNDS:
        bound = BOUNDS[precision]
        model.captioner.to(getattr(torch, precision))
        options = {"methods": ["lrp"], "composite": args.composite, "batch_size": args.batch_size}
        explanations = list(model.explanations(images, **options))
        words = [word for explanation in explanations for word in explanation.words]
        table[precision] = {
            "images": len(images),
            "words": len(words),
            "largest budget error": max(map(budget_error, words)),
            "largest encoder error": max(map(encoder_error, words)),
            "largest map error": max((error for each in explanations for error in map_errors(each)), default=None),
            "bound": bound,
            "is conserved": max(map(budget_error, words)) <= bound,
            "mean image share": fmean(word.budget.image_share for word in words),
            "mean fraction absorbed by the encoder": fmean(
                word.absorbed_by_encoder / word.budget.image for word in words if word.budget.image
            ),
        }
        print(json.dumps({precision: table[precision]}, indent=2), flush=True)
    if args.json:
        args.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
