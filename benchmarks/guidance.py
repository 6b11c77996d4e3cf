"""Time of guided decoding compared with plain decoding, both in one run.

    python benchmarks/guidance.py [IMAGES] [--model DIR] [--device cpu] [--guidance 1.5] [--repeats 15] [--json FILE]

IMAGES is a folder of photographs; they are encoded once, before anything is timed. Plain and guided decoding take turns
for the same beam and the same number of words per caption, so that both do the same number of steps; the values are
medians, and the ratio is the median of the ratios of neighbouring turns. A beam of 1 is greedy decoding. The limit of
the ratio is 2.1.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path

LIMIT = 2.1
WORDS = 10


def measure(model, features, gamma: float, beam: int, batch_size: int, repeats: int) -> dict[str, float]:
    """Median milliseconds per image of plain and of guided decoding, and their ratio."""
    from saywhy.decoding import decode

    plain = replace(
        model.decoding, beam=beam, method="beam" if beam > 1 else "greedy", min_words=WORDS, max_words=WORDS
    )
    settings = {"plain": plain, "guided": replace(plain, guidance=gamma)}
    start = model.vocabulary.start(plain.style)
    batches = [features[first : first + batch_size] for first in range(0, len(features), batch_size)]
    seconds: dict[str, list[float]] = {name: [] for name in settings}
    for _ in range(repeats + 2):
        for name, decoding in settings.items():
            _wait(model)
            began = time.perf_counter()
            for batch in batches:
                decode(model.captioner, batch, decoding, start=start)
            _wait(model)
            seconds[name].append((time.perf_counter() - began) / len(features))
    timed = {name: values[2:] for name, values in seconds.items()}  # the first two are the warm-up
    ratios = [guided / plain for plain, guided in zip(timed["plain"], timed["guided"], strict=True)]
    medians = {f"{name} ms": 1000 * statistics.median(values) for name, values in timed.items()}
    return {**medians, "ratio": statistics.median(ratios)}


def _wait(model) -> None:
    import torch

    if model.captioner.device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    examples = Path(__file__).parents[1] / "examples" / "images"
    parser.add_argument("images", type=Path, nargs="?", default=examples)
    parser.add_argument("--model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--guidance", type=float, default=1.5)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    import saywhy
    from saywhy.data.images import find_images, open_image
    from saywhy.provenance import machine

    model = saywhy.load(options.model, options.device)
    images = [open_image(path) for path in find_images([str(options.images)])]
    pixels = torch.stack([torch.from_numpy(model.preprocessing(image)) for image in images])
    with torch.inference_mode():
        features = model.captioner.encode(pixels.to(model.captioner.device))
    table: dict[str, object] = {
        "model": model.name,
        "images": len(images),
        "words": WORDS,
        "guidance": options.guidance,
    }
    table |= machine(model.captioner.device)
    ratios = []
    for batch_size in (1, len(images)):
        for beam in (1, 3, 5):
            row = measure(model, features, options.guidance, beam, batch_size, options.repeats)
            table[f"beam {beam}, batches of {batch_size}"] = row
            ratios.append(row["ratio"])
            print(
                f"beam {beam}, batches of {batch_size:2}: plain {row['plain ms']:.1f} ms per image, "
                f"guided {row['guided ms']:.1f} ms, ratio {row['ratio']:.2f}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")
    if max(ratios) > LIMIT:
        raise SystemExit(f"over the limit of {LIMIT}")


if __name__ == "__main__":
    main()
