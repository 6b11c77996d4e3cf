"""Captions, CIDEr-D, size and speed of a model's ONNX exports, compared with torch.

    python benchmarks/export.py --data FOLDER [--model NAME|DIR] [--images 1000] [--batch 8] [--rounds 5] [--json FILE]

The model is exported in each precision. First all test images of Flickr8k are captioned by torch and by each export:
how many captions are the same, and CIDEr-D against the five references. Then the same few images are captioned by
torch and by all exports in turn, round after round; the ratios are medians over the rounds, so that other load on the
machine affects all of them alike. An image is captioned from its file: reading, encoder, beam search.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import saywhy
from saywhy.data.datasets import read
from saywhy.metrics import cider
from saywhy.onnx_engine.engine import load_onnx
from saywhy.onnx_engine.export import export_model
from saywhy.provenance import machine

CALIBRATION = 200  # training images by which the encoder is quantised
Captioner = Callable[[list[Path], int], list[str]]


def captioner_of(model: saywhy.Model | saywhy.OnnxModel) -> Captioner:
    """Captions of images by a model, as text."""
    return lambda images, batch: [caption.text for caption in model.captions(images, batch_size=batch)]


def export_all(model: saywhy.Model, folder: Path, photographs: list[Path]) -> dict[str, Path]:
    """The model as ONNX, in each precision; "int8 decoder" has its encoder in single precision."""
    folders = {precision: export_model(model, folder / precision, precision).folder for precision in ("fp32", "fp16")}
    folders["int8 decoder"] = export_model(model, folder / "int8-decoder", "int8").folder
    folders["int8"] = export_model(model, folder / "int8", "int8", photographs).folder
    return folders


def rates(captioners: dict[str, Captioner], images: list[Path], batch: int, rounds: int) -> dict[str, list[float]]:
    """Images per second of each captioner, round by round."""
    seconds: dict[str, list[float]] = {name: [] for name in captioners}
    for _ in range(rounds):
        for name, caption in captioners.items():
            start = time.perf_counter()
            caption(images, batch)
            seconds[name].append(time.perf_counter() - start)
    return {name: [len(images) / value for value in values] for name, values in seconds.items()}


def ratio(rate: list[float], of_torch: list[float]) -> float:
    """The median over rounds of how many times as fast as torch."""
    return statistics.median(mine / other for mine, other in zip(rate, of_torch, strict=True))


def quality(captioners: dict[str, Captioner], images: list[Path], references: list[list[str]], batch: int) -> dict:
    """Of each captioner, CIDEr-D and how many captions equal those of torch."""
    captions = {name: caption(images, batch) for name, caption in captioners.items()}
    return {
        name: {
            "cider": round(100 * cider(found, references).cider, 2),
            "same_captions": sum(a == b for a, b in zip(found, captions["torch"], strict=True)),
        }
        for name, found in captions.items()
    }


def size_of(folder: Path) -> float:
    """MB of the graphs of an export, or of the weights of a model of torch."""
    return round(sum(path.stat().st_size for path in [*folder.glob("*.onnx"), *folder.glob("model.*")]) / 1e6, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Flickr8k, or another captioned data set")
    parser.add_argument("--model", help="name or folder of a model; the shipped one by default")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--timed", type=int, default=16, help="images of each round")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()

    model = saywhy.load(options.model, device="cpu")
    data = read(options.data)
    items = data.split("test").images[: options.images]
    photographs = [image.path for image in data.split("train").evenly_spaced(CALIBRATION).images]
    images, references = [item.path for item in items], [list(item.captions) for item in items]
    with tempfile.TemporaryDirectory() as folder:
        folders = export_all(model, Path(folder), photographs)
        captioners = {"torch": captioner_of(model)}
        captioners |= {precision: captioner_of(load_onnx(path)) for precision, path in folders.items()}
        table = quality(captioners, images, references, options.batch)
        sizes = {"torch": size_of(model.folder)} | {name: size_of(path) for name, path in folders.items()}
        for batch, timed in ((1, images[:4]), (options.batch, images[: options.timed])):
            found = rates(captioners, timed, batch, options.rounds)
            for name, rate in found.items():
                table[name][f"images_per_second_batch_{batch}"] = round(statistics.median(rate), 2)
                table[name][f"times_as_fast_batch_{batch}"] = round(ratio(rate, found["torch"]), 2)
    for name, row in table.items():
        row["mb"] = sizes[name]
        print(f"{name:12}", row)
    if options.json:
        about = {"model": model.name, "images": len(images), "batch": options.batch, "rounds": options.rounds}
        summary = {**about, "machine": machine(model.captioner.device), "engines": table}
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
