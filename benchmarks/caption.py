"""Time of each stage of captioning an image on the CPU.

    python benchmarks/caption.py [IMAGE] [--repeats 15] [--json FILE]

Loading is timed in a new process, from its start to the loaded model, imports included. The other stages are timed in
one process after a warm-up; all values are medians. Times depend on the machine, ratios less so. Decoding is timed with
the settings of the model (a beam of 3) and with greedy decoding, for one image and per image of a batch of 16.
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
    """Seconds of processes that only load the shipped model."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import saywhy; saywhy.load(device='cpu')"], check=True)
        seconds.append(time.perf_counter() - start)
    return seconds


def measure(image: Path, batch_size: int, repeats: int) -> dict[str, float]:
    """Median seconds per image of each stage, for batches of `batch_size` images."""
    import torch

    import saywhy
    from saywhy.data.images import open_image
    from saywhy.decoding import decode

    model = saywhy.load(device="cpu")
    greedy = replace(model.decoding, method="greedy")
    start = model.vocabulary.start(model.decoding.style)
    seconds: dict[str, list[float]] = defaultdict(list)
    for _ in range(repeats + 3):
        last = time.perf_counter()

        def mark(stage: str) -> None:
            nonlocal last
            now = time.perf_counter()
            seconds[stage].append((now - last) / batch_size)
            last = now

        with torch.inference_mode():
            images = [open_image(image) for _ in range(batch_size)]
            mark("open")
            pixels = torch.stack([torch.from_numpy(model.preprocessing(opened)) for opened in images])
            mark("prepare")
            features = model.captioner.encode(pixels)
            mark("encode")
            decode(model.captioner, features, model.decoding, start=start)
            mark("decode")
            decode(model.captioner, features, greedy, start=start)
            mark("decode greedily")
    return {
        stage: statistics.median(values[3:]) for stage, values in seconds.items()
    }  # the first three are the warm-up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    example = Path(__file__).parents[1] / "examples" / "images" / "astronaut.jpg"
    parser.add_argument("image", type=Path, nargs="?", default=example)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    machine = {"image": options.image.name, "threads": torch.get_num_threads(), "torch": torch.__version__}
    table: dict[str, object] = {**machine, "load": statistics.median(load_seconds(3))}
    print(f"load {table['load']:.2f} s, {machine['threads']} threads")
    for name, batch_size in (("one image", 1), ("per image of a batch of 16", 16)):
        stages = measure(options.image, batch_size, options.repeats if batch_size == 1 else 3)
        ratio = stages["decode"] / stages["encode"]
        table[name] = {**stages, "decode over encode": ratio}
        print(f"{name}: " + ", ".join(f"{stage} {value * 1000:.1f} ms" for stage, value in stages.items()))
        print(f"  decoding takes {ratio:.2f} times as long as encoding")
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
