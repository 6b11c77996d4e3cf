"""LRP of VGG-16's convolutions for ten words: saywhy compared with zennit, in one run.

    python benchmarks/zennit_vgg.py [--repeats 5] [--weights FILE] [--json FILE]

The same network, the same relevance of its 14 × 14 × 512 features for ten words, the same rule (α1β0 with biases,
z⁺). `zennit` registers its hooks once and runs one backward pass per word; `zennit, ten copies` runs the image ten
times in one batch. The largest difference of the maps, relative to the largest relevance, is printed with the times.
Zennit has no rules for what saywhy's captioners use besides: batch norms folded at run time, sums and activations that
are not modules, LSTM cells, gates and attention.
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
from saywhy.explain.lrp import LRPMode

WORDS = 10


def by_saywhy(body: nn.Module, x: Tensor, R: Tensor) -> Tensor:
    """Relevance of pixels (K, 1, 3, S, S) for that of the map (K, 1, D, rows, columns)."""
    x = x.clone().requires_grad_()
    with LRPMode(composite("epsilon-plus"), x):
        y = body(x)
    g = torch.where(y == 0, 0, R / y.detach())
    gradients = [torch.autograd.grad((y * g_word).sum(), x, retain_graph=True)[0] for g_word in g]
    return torch.stack(gradients) * x.detach()


def by_zennit(body: nn.Module, x: Tensor, R: Tensor) -> Tensor:
    """The same with zennit, one word per pass."""
    x = x.clone().requires_grad_()
    rules = LayerMapComposite([(nn.ReLU, Pass()), (nn.Conv2d, ZPlus(stabilizer=1e-9))])
    with rules.context(body) as hooked:
        y = hooked(x)
        return torch.stack([torch.autograd.grad(y, x, R_word, retain_graph=True)[0] for R_word in R])


def by_zennit_in_one_batch(body: nn.Module, x: Tensor, R: Tensor) -> Tensor:
    """The same in one pass, with one copy of the image per word."""
    x = x.repeat(len(R), 1, 1, 1).requires_grad_()
    rules = LayerMapComposite([(nn.ReLU, Pass()), (nn.Conv2d, ZPlus(stabilizer=1e-9))])
    with rules.context(body) as hooked:
        return torch.autograd.grad(hooked(x), x, R[:, 0])[0].unsqueeze(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", default="none")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    body = saywhy.encoders.build("vgg16", weights=args.weights).body.eval()
    for module in body.modules():
        if isinstance(module, nn.ReLU):
            module.inplace = False  # as zennit's hooks require
    x = torch.randn(1, 3, 224, 224)
    R = torch.randn(WORDS, *body(x).shape)
    R = R * (body(x).detach() > 0)
    methods: dict[str, Callable[..., Tensor]] = {
        "saywhy": by_saywhy,
        "zennit": by_zennit,
        "zennit, ten copies": by_zennit_in_one_batch,
    }
    durations, maps = defaultdict(list), {}
    for _ in range(args.repeats + 1):
        for name, method in methods.items():
            start = time.perf_counter()
            maps[name] = method(body, x, R)
            durations[name].append(time.perf_counter() - start)
    seconds = {name: statistics.median(values[1:]) for name, values in durations.items()}
    difference = float((maps["saywhy"] - maps["zennit"]).abs().max() / maps["zennit"].abs().max())
    table = {"threads": torch.get_num_threads(), "seconds": seconds, "largest difference": difference}
    table |= {f"{name} / saywhy": seconds[name] / seconds["saywhy"] for name in list(methods)[1:]}
    print(json.dumps(table, indent=2))
    if args.json:
        args.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
