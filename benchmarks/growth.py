"""How time and memory grow with the number of images, words, vocabulary, grid and beam, on a CPU.

    python benchmarks/growth.py [--smoke] [--json FILE] [--plot FILE]
    python benchmarks/growth.py --read benchmarks/results/growth.json --plot docs/growth.svg

A captioner with soft attention, 512 units and random weights decodes random features by beam search; one size changes
at a time. Captions are scored with random words. Each measurement is a process of its own with one thread: seconds of
the processor, and the memory that it needed on top of what was loaded. The exponent is the slope between the last two
sizes on logarithmic scales: 1 is a straight line, and below 1 a fixed part still counts.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import random
import resource
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from saywhy.captioners import build
from saywhy.decoding import Decoding, decode
from saywhy.encoders.base import Features
from saywhy.metrics import bleu, cider
from saywhy.provenance import machine
from saywhy.viz import plots

IMAGES, WORDS, VOCABULARY, GRID, BEAM = 16, 10, 3000, 8, 3
WIDTH, UNITS = 1280, 512
SCORED_WORDS, REFERENCES = 12, 5
MEMORY = "#D55E00"  # the colour of memory


@dataclass(frozen=True)
class Point:
    """One measurement: the size, seconds of the processor, and MB."""

    size: int
    seconds: float
    mb: float


class _NoEncoder(nn.Identity):
    width = WIDTH


def decode_random(
    images: int = IMAGES, words: int = WORDS, vocabulary: int = VOCABULARY, grid: int = GRID, beam: int = BEAM
) -> Callable[[], Any]:
    """Captions of exactly `words` words for random features."""
    encoder: Any = _NoEncoder()
    captioner = build("soft-attention", encoder, vocabulary, embedding=UNITS, hidden=UNITS, attention=UNITS).eval()
    decoding = Decoding(beam=beam, min_words=words, max_words=words)
    batches = [min(16, images - first) for first in range(0, images, 16)]

    def run() -> None:
        for batch in batches:
            decode(captioner, Features(torch.randn(batch, grid * grid, WIDTH), (grid, grid)), decoding)

    return run


def score_random(captions: int) -> Callable[[], Any]:
    """BLEU and CIDEr-D of random captions of frequent and rare words."""
    rng = random.Random(0)
    words = [f"word{number}" for number in range(5000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]

    def caption() -> list[str]:
        return rng.choices(words, weights, k=SCORED_WORDS)

    candidates = [caption() for _ in range(captions)]
    references = [[caption() for _ in range(REFERENCES)] for _ in range(captions)]
    return lambda: (bleu(candidates, references), cider(candidates, references))


CURVES: dict[str, tuple[Callable[[int], Callable[[], Any]], list[int]]] = {
    "images captioned": (lambda size: decode_random(images=size), [16, 64, 256]),
    "words of a caption": (lambda size: decode_random(words=size), [5, 10, 20, 40]),
    "words of the vocabulary": (lambda size: decode_random(vocabulary=size), [1000, 10_000, 100_000]),
    "features of the grid": (lambda size: decode_random(grid=math.isqrt(size)), [49, 196, 784]),
    "beam": (lambda size: decode_random(beam=size), [1, 3, 10, 20]),
    "captions scored": (score_random, [100, 1000, 10_000, 100_000]),
}


def measure(make: Callable[[int], Callable[[], Any]], size: int, answers: Any) -> None:
    """Run one measurement, and send a `Point`."""
    torch.set_num_threads(1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run = make(size)
    start = time.process_time()
    run()
    seconds = time.process_time() - start
    answers.put(
        Point(size, round(seconds, 4), round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e3, 1))
    )


def curve(make: Callable[[int], Callable[[], Any]], sizes: list[int]) -> list[Point]:
    """One measurement a process, so that memory is that of one size only."""
    context, points = multiprocessing.get_context("fork"), []
    for size in sizes:
        answers = context.SimpleQueue()
        process = context.Process(target=measure, args=(make, size, answers))
        process.start()
        points.append(answers.get())
        process.join()
    return points


def exponent(points: list[Point], of: str) -> float | None:
    """The slope between the last two points on logarithmic scales; None where nothing was measured."""
    if len(points) < 2:
        return None
    a, b = points[-2:]
    low, high = getattr(a, of), getattr(b, of)
    return round(math.log(high / low) / math.log(b.size / a.size), 2) if low > 0 and high > 0 else None


def draw(curves: dict[str, list[Point]]) -> Any:
    """All curves as small plots, logarithmic on both axes."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    figure = plots.new_figure(plots.WIDTH, 5)
    axes = figure.subplots(2, 3)
    for axis, (name, points) in zip(axes.flat, curves.items(), strict=True):
        sizes = [point.size for point in points]
        axis.loglog(sizes, [point.seconds for point in points], "o-", label="seconds", color=plots.ACCENT)
        axis.loglog(sizes, [max(point.mb, 0.1) / 1000 for point in points], "s--", label="GB", color=MEMORY)
        axis.set_title(name)
        axis.xaxis.set_major_locator(FixedLocator(sizes))
        axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:,.0f}"))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.yaxis.set_minor_locator(NullLocator())
    axes.flat[0].legend()
    return figure


def read(path: Path) -> dict[str, list[Point]]:
    """The curves of a file that `--json` wrote."""
    curves = json.loads(path.read_text(encoding="utf-8"))["curves"]
    return {name: [Point(**point) for point in points] for name, points in curves.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="the smallest sizes, to see that it runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="SVG")
    parser.add_argument("--read", type=Path, help="draw the curves of this JSON file and measure nothing")
    options = parser.parse_args()
    if options.read:
        if not options.plot:
            parser.error("--read needs --plot")
        options.plot.write_text(plots.as_svg(lambda: draw(read(options.read))), encoding="utf-8")
        return
    torch.set_num_threads(1)
    curves, exponents = {}, {}
    for name, (make, sizes) in CURVES.items():
        curves[name] = points = curve(make, sizes[:2] if options.smoke else sizes)
        exponents[name] = {"seconds": exponent(points, "seconds"), "mb": exponent(points, "mb")}
        line = ", ".join(f"{point.size:,}: {point.seconds:.2f} s, {point.mb:.0f} MB" for point in points)
        print(f"{name:24} {line}; exponent {exponents[name]['seconds']}")
    if options.plot:
        options.plot.write_text(plots.as_svg(lambda: draw(curves)), encoding="utf-8")
    if options.json:
        summary = {
            "machine": machine(torch.device("cpu")),
            "curves": {name: [asdict(point) for point in points] for name, points in curves.items()},
            "exponents": exponents,
        }
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
