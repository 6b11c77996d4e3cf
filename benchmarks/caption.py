"""One picture, end to end, on the CPU: where the time goes.

    python benchmarks/caption.py [PICTURE] [--repeats 15] [--json FILE]

Load is a fresh process from its start to a ready model, imports and all. The rest is timed in one process after a
warm-up, the parts of each repeat one after the other; medians. Times are of this machine; the ratios travel better.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

PARTS = ("open", "prepare", "encode", "decode")


def load_seconds(repeats: int) -> list[float]:
    """Seconds of whole processes that load the shipped model and do no more."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import saywhy; saywhy.load(device='cpu')"], check=True)
        seconds.append(time.perf_counter() - began)
    return seconds


def measure(picture: Path, repeats: int) -> dict[str, float]:
    import torch

    import saywhy
    from saywhy.data.pictures import open_picture
    from saywhy.decoding import decode

    model = saywhy.load(device="cpu")
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    for repeat in range(repeats + 3):
        with torch.inference_mode():
            marks = [time.perf_counter()]
            opened = open_picture(picture)
            marks.append(time.perf_counter())
            pixels = torch.from_numpy(model.preprocessing(opened))[None]
            marks.append(time.perf_counter())
            annotations = model.captioner.encode(pixels)
            marks.append(time.perf_counter())
            decode(model.captioner, annotations, model.decoding)
            marks.append(time.perf_counter())
        if repeat >= 3:  # the first ones warm up
            for part, (start, end) in zip(PARTS, pairwise(marks), strict=True):
                times[part].append(end - start)
    return {part: statistics.median(values) for part, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    example = Path(__file__).parents[1] / "examples" / "pictures" / "coffee.png"
    parser.add_argument("picture", type=Path, nargs="?", default=example)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    import torch

    parts = {"load": statistics.median(load_seconds(3)), **measure(asked.picture, asked.repeats)}
    for part, seconds in parts.items():
        print(f"{part:8} {seconds * 1000:8.1f} ms")
    ratio = parts["decode"] / parts["encode"]
    print(f"decoding costs {ratio:.2f} of encoding, with {torch.get_num_threads()} threads")
    if asked.json:
        about = {"picture": asked.picture.name, "threads": torch.get_num_threads(), "torch": torch.__version__}
        table = {**about, "seconds": parts, "decode_over_encode": ratio}
        asked.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
