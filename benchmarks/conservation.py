"""Conservation on photographs: logit = image + earlier words + initial state + absorbed, for words of many captions.

    python benchmarks/conservation.py --data DIR [--model DIR] [--split test] [--limit 100] [--json FILE]

In single and in double precision. Every term is summed separately. Printed are the largest errors over all words,
relative to max(1, |logit|): of the budget, and of pixels + absorbed by the encoder compared with the image's part. Also
the mean image share, and the mean fraction of the image's part that the encoder absorbed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import torch

import saywhy
from saywhy.data.datasets import read
from saywhy.explain import WordExplanation
from saywhy.explain.composites import DEFAULT

BOUNDS = {"float32": 1e-3, "float64": 1e-9}


def budget_error(word: WordExplanation) -> float:
    return abs(word.logit - word.budget.total) / max(1.0, abs(word.logit))


def encoder_error(word: WordExplanation) -> float:
    assert word.pixel_relevance is not None
    return abs(word.budget.image - word.pixel_relevance - word.absorbed_by_encoder) / max(1.0, abs(word.logit))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--composite", default=DEFAULT)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = saywhy.load(args.model, args.device)
    images = [image.path for image in read(args.data).split(args.split).images[: args.limit]]
    table: dict[str, object] = {"model": model.name, "split": args.split, "composite": args.composite}
    for precision, bound in BOUNDS.items():
        model.captioner.to(getattr(torch, precision))
        options = {"methods": ["lrp"], "composite": args.composite, "batch_size": args.batch_size}
        words = [word for explanation in model.explanations(images, **options) for word in explanation.words]
        table[precision] = {
            "images": len(images),
            "words": len(words),
            "largest budget error": max(map(budget_error, words)),
            "largest encoder error": max(map(encoder_error, words)),
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
