"""Images per second of a training epoch, the mean over the epoch, and where the time goes.

    python benchmarks/training_speed.py recipes/coco-soft-224.toml --data DIR --images 15000 --inputs memory files

The data's training images are repeated up to --images. Every epoch is timed from its first step to its last, with
reading, steps and logging; the first epoch of a run also warms up and, on a GPU, captures the step. A last, short run
is profiled on a GPU: kernels by their time on the device, and for which share of the time the device is busy, from the
kernels' time per image and the images per second of the run that was not profiled.
Prints JSON lines.
"""

from __future__ import annotations

import argparse
import inspect
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from saywhy.data.datasets import Dataset, read
from saywhy.training.recipe import Recipe, from_table, read_recipe
from saywhy.training.trainer import train

TOP = 12


def main() -> None:
    arguments = parse()
    data = repeated(read(arguments.data), arguments.images, arguments.dev)
    for inputs in arguments.inputs:
        for batch in arguments.batch:
            changes = {"epochs": arguments.epochs, "batch": batch, "evaluate_every": arguments.epochs}
            recipe = read_recipe(arguments.recipe, training=changes, encoder={"weights": arguments.weights})
            print(json.dumps(measure(recipe, data, inputs, batch, arguments.profile)), flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--weights", default="imagenet")
    parser.add_argument("--images", type=int, default=15_000)
    parser.add_argument("--dev", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, nargs="+", default=[256])
    parser.add_argument("--inputs", nargs="+", default=["memory"])
    parser.add_argument("--profile", type=int, default=20, help="batches of the profiled run, 0 for none")
    return parser.parse_args()


def repeated(data: Dataset, count: int, dev: int) -> Dataset:
    """The data set with `count` training images, each under several names, and `dev` dev images."""
    train_images, dev_images = (split.images for split in data.train_and_dev())
    copies = -(-count // len(train_images))
    images = [replace(image, name=f"{copy}/{image.name}") for copy in range(copies) for image in train_images]
    return replace(data, images=(*images[:count], *dev_images[:dev]))


def measure(recipe: Recipe, data: Dataset, inputs: str, batch: int, profiled: int) -> dict:
    """Time every epoch of a run, then profile a short one."""
    options = {"inputs": inputs} if "inputs" in inspect.signature(train).parameters else {}
    events: list[dict] = []
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        train(recipe, data, Path(folder) / "run", on_event=events.append, **options)
        seconds = time.monotonic() - started
    epochs = [event for event in events if event["kind"] == "epoch"]
    result = {
        "recipe": recipe.name,
        "captioner": recipe.captioner.name,
        "inputs": inputs,
        "batch": batch,
        "images_per_second": [round(event["images_per_second"], 1) for event in epochs],
        "loss": [round(event["loss"], 4) for event in epochs],
        "seconds_with_start_and_evaluation": round(seconds, 1),
    }
    if torch.cuda.is_available():
        result["gigabytes"] = round(torch.cuda.max_memory_reserved() / 1e9, 1)
        result["device"] = torch.cuda.get_device_name()
    if profiled and torch.cuda.is_available():
        result |= profile(recipe, data, batch * profiled, options)
        busy = result["device_milliseconds_per_image"] * result["images_per_second"][-1] / 1000
        result["device_busy"] = round(busy, 3)
    return result


def profile(recipe: Recipe, data: Dataset, images: int, options: dict) -> dict:
    """Kernels of a short run by their time on the device."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    short = repeated(data, images, 20)
    table = {"training": {"epochs": 1}}
    recipe = from_table({**_table(recipe), "training": {**_table(recipe)["training"], **table["training"]}})
    with tempfile.TemporaryDirectory() as folder, record(activities=[ProfilerActivity.CUDA]) as recorded:
        train(recipe, short, Path(folder) / "run", **options)
    rows = [row for row in recorded.key_averages() if row.device_type == DeviceType.CUDA]
    rows.sort(key=lambda row: -row.self_device_time_total)
    return {
        "device_milliseconds_per_image": sum(row.self_device_time_total for row in rows) / 1000 / images,
        "kernels": {row.key[:80]: round(row.self_device_time_total / 1000, 1) for row in rows[:TOP]},
        "launches_per_image": round(sum(row.count for row in rows) / images, 1),
    }


def _table(recipe: Recipe) -> dict:
    from dataclasses import asdict

    return json.loads(json.dumps(asdict(recipe)))


if __name__ == "__main__":
    main()
