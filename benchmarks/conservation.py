"""Do the books balance on photographs: logit = image + words + start + absorbed, for every word of many captions.

    python benchmarks/books.py --data DIR [--model DIR] [--split test] [--limit 100] [--device auto] [--json FILE]

In single and in double precision. Every term is summed on its own; what is printed is the largest difference over all
words, by max(1, |logit|): of the budget, and of what reached the pixels and what the encoder absorbed on the way from
the image's share. Beside them the mean share of the image, and of it the mean part that the encoder absorbed.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

import torch

import saywhy
from saywhy.data.datasets import read
from saywhy.explain import Word
from saywhy.explain.composites import DEFAULT

BOUNDS = {"float32": 1e-3, "float64": 1e-9}


def difference(word: Word) -> float:
    return abs(word.logit - word.budget.total) / max(1.0, abs(word.logit))


def on_the_way(word: Word) -> float:
    assert word.pixels is not None
    return abs(word.budget.image - word.pixels - word.absorbed_by_encoder) / max(1.0, abs(word.logit))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--composite", default=DEFAULT)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    model = saywhy.load(asked.model, asked.device)
    images = [each.path for each in read(asked.data).split(asked.split).images[: asked.images]]
    table: dict[str, object] = {"model": model.name, "split": asked.split, "composite": asked.composite}
    for precision, bound in BOUNDS.items():
        model.captioner.to(getattr(torch, precision))
        rules = {"methods": ["lrp"], "composite": asked.composite, "batch": asked.batch}
        words = [word for each in model.explanations(images, **rules) for word in each.words]
        table[precision] = {
            "images": len(images),
            "words": len(words),
            "largest difference": max(map(difference, words)),
            "largest difference on the way to pixels": max(map(on_the_way, words)),
            "bound": bound,
            "balances": max(map(difference, words)) <= bound,
            "mean share of the image": fmean(word.budget.share for word in words),
            "mean part of it absorbed by the encoder": fmean(
                word.absorbed_by_encoder / word.budget.image for word in words if word.budget.image
            ),
        }
        print(json.dumps({precision: table[precision]}, indent=2), flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
