"""LRP of VGG-16's convolutions for ten words: saywhy's rules against zennit's, in one run.

    python benchmarks/zennit_vgg.py [--repeats 5] [--weights FILE] [--json FILE]

The same network, the same relevance of its 14 × 14 × 512 features for ten words, the same rule (α1β0 with biases,
z⁺). `zennit` sets its hooks once and goes back word by word; `zennit, ten copies` runs the image ten times in one
batch. The largest difference of the maps, by the largest relevance, is printed beside the times. What zennit cannot
follow, and saywhy's captioners do: batch norms folded as a network runs, sums and activations that are no modules,
LSTM cells, gates and attention.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from zennit.composites import LayerMapComposite
from zennit.rules import Pass, ZPlus

import saywhy.encoders
from saywhy.explain.composites import composite
from saywhy.explain.lrp import Relevance

WORDS = 10


def by_saywhy(body: nn.Module, x: Tensor, R: Tensor) -> Tensor:
    """Relevance of pixels (K, 1, 3, S, S) for that of the map (K, 1, D, rows, columns)."""
    x = x.clone().requires_grad_()
    with Relevance(composite("epsilon-plus"), x):
        y = body(x)
    g = torch.where(y == 0, 0, R / y.detach())
    back = [torch.autograd.grad((y * each).sum(), x, retain_graph=True)[0] for each in g]
    return torch.stack(back) * x.detach()


def by_zennit(body: nn.Module, x: Tensor, R: Tensor) -> Tensor:
    """The same by zennit's hooks, a word at a time."""
    x = x.clone().requires_grad_()
    rules = LayerMapComposite([(nn.ReLU, Pass()), (nn.Conv2d, ZPlus(stabilizer=1e-9))])
    with rules.context(body) as hooked:
        y = hooked(x)
        return torch.stack([torch.autograd.grad(y, x, each, retain_graph=True)[0] for each in R])


def by_zennit_in_a_batch(body: nn.Module, x: Tensor, R: Tensor) -> Tensor:
    """The same, all words at once: the image ten times over."""
    x = x.repeat(len(R), 1, 1, 1).requires_grad_()
    rules = LayerMapComposite([(nn.ReLU, Pass()), (nn.Conv2d, ZPlus(stabilizer=1e-9))])
    with rules.context(body) as hooked:
        return torch.autograd.grad(hooked(x), x, R[:, 0])[0].unsqueeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", default="none")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.manual_seed(0)
    body = saywhy.encoders.build("vgg16", weights=asked.weights).body.eval()
    for module in body.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # zennit's hooks cannot have it so
    x = torch.randn(1, 3, 224, 224)
    R = torch.randn(WORDS, *body(x).shape)
    R = R * (body(x).detach() > 0)
    ways: dict[str, Callable[..., Tensor]] = {
        "saywhy": by_saywhy,
        "zennit": by_zennit,
        "zennit, ten copies": by_zennit_in_a_batch,
    }
    taken, maps = defaultdict(list), {}
    for _ in range(asked.repeats + 1):
        for name, way in ways.items():
            began = time.perf_counter()
            maps[name] = way(body, x, R)
            taken[name].append(time.perf_counter() - began)
    seconds = {name: statistics.median(each[1:]) for name, each in taken.items()}
    apart = float((maps["saywhy"] - maps["zennit"]).abs().max() / maps["zennit"].abs().max())
    table = {"threads": torch.get_num_threads(), "seconds": seconds, "largest difference": apart}
    table |= {f"{name} / saywhy": seconds[name] / seconds["saywhy"] for name in list(ways)[1:]}
    print(json.dumps(table, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
