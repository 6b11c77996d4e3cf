"""How far captioning, explaining and training are from the limits of the processor, with one thread.

    python benchmarks/limits.py [--rounds 5] [--smoke] [--json FILE]

Three rates are measured: floating-point operations per second of a product of large matrices, bytes per second of a
copy in memory, and pixels per second of decoding a JPEG. The floor of a job is the sum of the floors of its parts:
operations, as torch counts them, over the first rate or, where that is more, bytes of weights over the second; images
over the third. No program reaches it: depthwise convolutions and products of few rows have less work per byte than
large matrices. Times are seconds of the processor, which other programs on the machine change less than the clock.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import saywhy
from saywhy.captioners import base
from saywhy.data.images import open_image
from saywhy.decoding import decode
from saywhy.provenance import machine

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "images" / "astronaut.jpg"


@dataclass(frozen=True)
class Rates:
    """Of one thread: operations, bytes and pixels per second."""

    operations: float
    bytes: float
    pixels: float


@dataclass(frozen=True)
class Job:
    """A job, its measured seconds and its floor, and the floor's parts."""

    name: str
    seconds: float
    floor: float
    times_the_floor: float
    parts: dict[str, float]


def cpu_seconds(program: Callable[[], Any], rounds: int) -> float:
    """The median seconds of the processor, after a warm-up."""
    seconds = []
    for _ in range(rounds + 1):
        start = time.process_time()
        program()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds[1:])


def measured_rates(size: int, rounds: int) -> Rates:
    """The rates of this machine."""
    a, values = torch.randn(size, size), torch.ones(size * size * 8)
    target = torch.empty_like(values)
    image = open_image(EXAMPLE)
    return Rates(
        2 * size**3 / cpu_seconds(lambda: a @ a, rounds),
        2 * values.nbytes / cpu_seconds(lambda: target.copy_(values), rounds),
        image.width * image.height / cpu_seconds(lambda: open_image(EXAMPLE), rounds),
    )


class OperationCounter(TorchDispatchMode):
    """Counts operations by torch's own table; `FlopCounterMode` does it by module, and fails in `autograd.grad`."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        count = flop_registry.get(func._overloadpacket)
        if count is None:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if count is not None:
            self.total += count(*args, **kwargs, out_val=result)
        return result


def operations(program: Callable[[], Any]) -> int:
    """Floating-point operations of a program; a multiplication and an addition are two."""
    with patch.object(base, "_HAS_ONEDNN", False), OperationCounter() as counter:  # oneDNN's products are not in it
        program()
    return counter.total


def job(name: str, program: Callable[[], Any], parts: dict[str, float], rounds: int) -> Job:
    """A job with its floor."""
    seconds, floor = cpu_seconds(program, rounds), sum(parts.values())
    parts = {part: round(value, 5) for part, value in parts.items()}
    return Job(name, round(seconds, 5), round(floor, 5), round(seconds / floor, 2), parts)


def captioning(model: saywhy.Model, rates: Rates, batch: int, rounds: int) -> Job:
    """Captions of one batch of images."""
    images = [EXAMPLE] * batch
    pixels = torch.from_numpy(model.preprocessing(open_image(EXAMPLE))).expand(batch, -1, -1, -1)
    start = model.vocabulary.start(model.decoding.style)
    with torch.inference_mode():
        features = model.captioner.encode(pixels)
        encoder = operations(lambda: model.captioner.encode(pixels))
        decoder = operations(lambda: decode(model.captioner, features, model.decoding, start=start))
    words = len(model.caption(EXAMPLE).words) + 1
    read_at_each_word = [
        value for name, value in model.captioner.named_parameters() if not name.startswith(("encoder.", "E.", "W."))
    ]
    weights = sum(value.nbytes for value in read_at_each_word)
    parts = {
        "JPEG": batch * open_image(EXAMPLE).width * open_image(EXAMPLE).height / rates.pixels,
        "encoder": encoder / rates.operations,
        "decoder": max(decoder / rates.operations, words * weights / rates.bytes),
    }
    return job(f"caption, batch {batch}", lambda: list(model.captions(images, batch_size=batch)), parts, rounds)


def explaining(model: saywhy.Model, rates: Rates, rounds: int) -> Job:
    """LRP of every word of a caption."""

    def explain() -> object:
        return model.explain(EXAMPLE, methods=["lrp"])

    parts = {"operations": operations(explain) / rates.operations}
    return job("explain by LRP, one image", explain, parts, rounds)


def training(model: saywhy.Model, rates: Rates, rows: int, rounds: int) -> Job:
    """A step of the decoder with cached features: cross-entropy and Adam."""
    captioner = model.captioner.train()
    parameters = [value for name, value in captioner.named_parameters() if not name.startswith("encoder.")]
    adam = torch.optim.Adam(parameters, lr=1e-5)
    pixels = torch.from_numpy(model.preprocessing(open_image(EXAMPLE)))[None]
    with torch.no_grad():
        features = captioner.encode(pixels).select(torch.zeros(rows, dtype=torch.long))
    words = torch.randint(6, len(model.vocabulary), (rows, 12))
    captions = torch.cat([torch.full((rows, 1), 4), words, torch.full((rows, 1), 2)], dim=1)

    def step() -> Tensor:
        logits, _ = captioner(features, captions[:, :-1])
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), captions[:, 1:].flatten())
        adam.zero_grad()
        loss.backward()
        adam.step()
        return loss

    weights = sum(value.nbytes for value in parameters)
    parts = {"operations": operations(step) / rates.operations, "Adam": 7 * weights / rates.bytes}
    return job(f"training step, {rows} captions", step, parts, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes, to see that it runs")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if options.smoke else options.rounds
    rates = measured_rates(128 if options.smoke else 2048, rounds)
    print(f"{rates.operations / 1e9:.1f} GFLOP/s, {rates.bytes / 1e9:.1f} GB/s, {rates.pixels / 1e6:.1f} megapixels/s")
    model = saywhy.load(device="cpu")
    jobs = [captioning(model, rates, batch, rounds) for batch in ((1,) if options.smoke else (1, 16))]
    if not options.smoke:
        jobs += [explaining(model, rates, rounds), training(model, rates, 32, rounds)]
    for line in jobs:
        print(f"{line.name:28} {line.seconds:9.4f} s, {line.times_the_floor:6.2f} times the floor {line.floor:.4f} s")
    if options.json:
        summary = {"machine": machine(torch.device("cpu")), "rates": asdict(rates), "jobs": [asdict(j) for j in jobs]}
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
