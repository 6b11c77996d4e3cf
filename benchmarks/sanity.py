"""Do explanations depend on what was learnt? Weights unlearnt from the top down (Adebayo et al. 2018).

    python benchmarks/sanity.py PICTURE... [--composite NAME] [--json FILE]

The shipped model's decoder, and then the stages of its encoder, from the last to the first, have the numbers of every
tensor put in another order; the same captions are explained again after each. What is printed, by method, is the mean
rank correlation of the maps' strength, summed over 8 × 8 pixels, with that of the trained model. Beside it, of the
trained model, `two words`: the mean rank correlation of the maps of two words of one caption.
"""

from __future__ import annotations

import argparse
import json
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
import torch
from torch import nn

import saywhy
from saywhy.explain import METHODS, Explanation, composites
from saywhy.explain.composites import DEFAULT

CELL = 8


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    ranks = [each.ravel().argsort(kind="stable").argsort(kind="stable") for each in (one, other)]
    return float(np.corrcoef(ranks)[0, 1])


def cells(explanation: Explanation, method: str) -> np.ndarray:
    """The maps of a method, (K, …), of pixels by squares of 8 × 8."""
    maps = explanation.maps[method]
    if maps.ndim < 3:
        return maps
    n = maps.shape[-1] // CELL
    return maps[:, : n * CELL, : n * CELL].reshape(len(maps), n, CELL, n, CELL).sum(axis=(2, 4))


def alike(one: Explanation, other: Explanation, method: str) -> float:
    pairs = zip(cells(one, method), cells(other, method), strict=True)
    return fmean(rank_correlation(np.abs(a), np.abs(b)) for a, b in pairs)


def shuffle(part: nn.Module, random: torch.Generator) -> None:
    for values in [*part.parameters(), *part.buffers()]:
        mixed = values.data.flatten()[torch.randperm(values.numel(), generator=random)]
        values.data.copy_(mixed.view_as(values))


def stages(captioner: nn.Module) -> dict[str, list[nn.Module]]:
    """The parts of the shipped model, from the top down."""
    body = captioner.encoder.body
    blocks = {f"stage {i}": [body.blocks[i]] for i in reversed(range(len(body.blocks)))}
    decoder = [part for name, part in captioner.named_children() if name != "encoder"]
    return {"decoder": decoder, "head": [body.conv_head, body.bn2], **blocks, "stem": [body.conv_stem, body.bn1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pictures", type=Path, nargs="+")
    parser.add_argument("--composite", help="LRP alone, by these rules", choices=composites)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    model, random = saywhy.load(device="cpu"), torch.Generator().manual_seed(0)
    methods = ["lrp"] if asked.composite else METHODS
    how = {"methods": methods, "composite": asked.composite or DEFAULT}
    learnt = [model.explain(picture, **how) for picture in asked.pictures]
    pairs = {m: [rank_correlation(a, b) for e in learnt for a, b in combinations(cells(e, m), 2)] for m in methods}
    rows = {"two words": {method: fmean(each) for method, each in pairs.items()}}
    for name, parts in stages(model.captioner).items():
        for part in parts:
            shuffle(part, random)
        again = [model.explain(each.image, caption=each.caption, **how) for each in learnt]
        rows[f"unlearnt down to {name}"] = {
            method: fmean(alike(*pair, method) for pair in zip(learnt, again, strict=True)) for method in methods
        }
        print(name, {method: round(value, 2) for method, value in rows[f"unlearnt down to {name}"].items()}, flush=True)
    table = {"model": model.name, "composite": how["composite"], "pictures": len(learnt), "rows": rows}
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
