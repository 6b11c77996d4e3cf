"""One image, end to end, on the CPU: where the time goes.

    python benchmarks/caption.py [IMAGE] [--repeats 15] [--json FILE]

Load is a fresh process from its start to a ready model, imports and all. The rest is timed in one process after a
warm-up, the parts of each repeat one after the other; medians. Times are of this machine; the ratios travel better.
Decoding is timed as the model does it (a beam of 5) and greedily, for one image and an image of a batch of 16.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path


def load_seconds(repeats: int) -> list[float]:
    """Seconds of whole processes that load the shipped model and do no more."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import saywhy; saywhy.load(device='cpu')"], check=True)
        seconds.append(time.perf_counter() - began)
    return seconds


def measure(image: Path, batch: int, repeats: int) -> dict[str, float]:
    """Median seconds an image of each part, for `batch` images at a time."""
    import torch

    import saywhy
    from saywhy.data.images import open_image
    from saywhy.decoding import decode

    model = saywhy.load(device="cpu")
    greedy = replace(model.decoding, method="greedy")
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats + 3):
        last = time.perf_counter()

        def mark(part: str) -> None:
            nonlocal last
            now = time.perf_counter()
            seconds[part].append((now - last) / batch)
            last = now

        with torch.inference_mode():
            opened = [open_image(image) for _ in range(batch)]
            mark("open")
            pixels = torch.stack([torch.from_numpy(model.preprocessing(each)) for each in opened])
            mark("prepare")
            features = model.captioner.encode(pixels)
            mark("encode")
            decode(model.captioner, features, model.decoding)
            mark("decode")
            decode(model.captioner, features, greedy)
            mark("decode greedily")
    return {part: statistics.median(each[3:]) for part, each in seconds.items()}  # the first ones warm up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    example = Path(__file__).parents[1] / "examples" / "images" / "astronaut.png"
    parser.add_argument("image", type=Path, nargs="?", default=example)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    import torch

    about = {"image": asked.image.name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    table: dict[str, object] = {**about, "load": statistics.median(load_seconds(3))}
    print(f"load {table['load']:.2f} s, {about['threads']} threads")
    for name, batch in (("one image", 1), ("an image of sixteen", 16)):
        parts = measure(asked.image, batch, asked.repeats if batch == 1 else 3)
        ratio = parts["decode"] / parts["encode"]
        table[name] = {**parts, "decode over encode": ratio}
        print(f"{name}: " + ", ".join(f"{part} {value * 1000:.1f} ms" for part, value in parts.items()))
        print(f"  decoding costs {ratio:.2f} of encoding")
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
