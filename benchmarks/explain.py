"""The cost of explaining: LRP of a ten-word caption compared with ten backward passes of the encoder, in one run.

    python benchmarks/explain.py [IMAGE] [--model DIR] [--repeats 7] [--device cpu] [--json FILE]

The parts of each repeat are timed one after the other, after a warm-up. Medians, and ratios of medians:

- `backward`: ten plain backward passes through the encoder, from gradients of its features to the pixels;
- `lrp`: LRP of all ten words, forward and backward to pixels, including the budget;
- `lrp, epsilon-plus`: the same with the default rules of saywhy 0.2;
- `one call per word`: the same as `lrp` in ten calls of one word;
- `occlusion`: the method of that name, for all ten words;
- `explain`: all six methods, from the file to the explanation; on a GPU with `--batch-size 64`.

`memory` is the growth of the process beyond the model and a caption (on a GPU, of what torch allocates).
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import torch

import saywhy
from saywhy.data.images import open_image
from saywhy.explain import METHODS
from saywhy.explain.composites import DEFAULT, composite
from saywhy.explain.passes import Targets, run_lrp
from saywhy.inference.model import Model

WORDS = ("a", "man", "in", "a", "red", "shirt", "is", "standing", "outside", "building")


def parts(model: Model, image: Path, composite_name: str) -> dict[str, Callable[[], object]]:
    """The timed functions by name."""
    captioner, device = model.captioner, model.captioner.device
    pixels = torch.from_numpy(model.preprocessing(open_image(image))).unsqueeze(0).to(device)
    all_words = Targets.of_captions([WORDS], None, model.vocabulary, device)
    single_words = [Targets.of_captions([WORDS], [(i,)], model.vocabulary, device) for i in range(len(WORDS))]
    words_per_pass = 1 if device.type == "cpu" else 16
    x = captioner.encoder.normalise(pixels).detach().requires_grad_()
    for parameter in captioner.parameters():
        parameter.requires_grad_(False)
    vectors = captioner.encoder.encode_normalised(x).vectors
    g = torch.randn_like(vectors)

    def backward() -> None:
        for _ in WORDS:
            torch.autograd.grad(vectors, x, g, retain_graph=True)

    def lrp(rules: str = composite_name) -> None:
        run_lrp(captioner, pixels, None, all_words, composite(rules), words_per_pass)

    def one_call_per_word() -> None:
        for targets in single_words:
            run_lrp(captioner, pixels, None, targets, composite(composite_name), words_per_pass)

    return {
        "backward": backward,
        "lrp": lrp,
        "lrp, epsilon-plus": lambda: lrp("epsilon-plus"),
        "occlusion": lambda: model.explain(image, caption=" ".join(WORDS), methods=["occlusion"]),
        "one call per word": one_call_per_word,
        "explain": lambda: model.explain(image, caption=" ".join(WORDS), composite=composite_name),
    }


def seconds(table: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each part."""
    durations = defaultdict(list)
    for _ in range(repeats + 1):
        for name, part in table.items():
            start = time.perf_counter()
            part()
            if device.type == "cuda":
                torch.cuda.synchronize()
            durations[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in durations.items()}  # the first is the warm-up


def memory(model: Model, image: Path, composite_name: str) -> float:
    """Gigabytes that LRP of ten words needs in addition to the model."""
    on_gpu = model.captioner.device.type == "cuda"
    lrp = parts(model, image, composite_name)["lrp"]

    def used() -> float:
        peak = (
            torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        )
        return peak / 1e9

    model.caption(image)
    before = used()
    lrp()
    return used() - before


def captions_per_second(model: Model, image: Path, batch_size: int, methods: list[str]) -> float:
    """The model's own captions explained per second."""
    images = [image] * batch_size
    list(model.explanations(images, batch_size=batch_size, methods=methods))
    start = time.perf_counter()
    list(model.explanations(images, batch_size=batch_size, methods=methods))
    return batch_size / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    example = Path(__file__).parents[1] / "examples" / "images" / "astronaut.jpg"
    parser.add_argument("image", type=Path, nargs="?", default=example)
    parser.add_argument("--model")
    parser.add_argument("--composite", default=DEFAULT)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = saywhy.load(args.model, args.device)
    settings = {"model": model.name, "composite": args.composite, "device": args.device, "torch": torch.__version__}
    table: dict[str, object] = {**settings, "threads": torch.get_num_threads()}
    table["memory GB"] = memory(model, args.image, args.composite)  # first, since a process's peak never falls
    durations = seconds(parts(model, args.image, args.composite), args.repeats, model.captioner.device)
    table |= {"seconds": durations, "lrp / backward": durations["lrp"] / durations["backward"]}
    table["lrp / lrp, epsilon-plus"] = durations["lrp"] / durations["lrp, epsilon-plus"]
    table["occlusion / lrp"] = durations["occlusion"] / durations["lrp"]
    table["one call per word / lrp"] = durations["one call per word"] / durations["lrp"]
    table["batch size"] = args.batch_size
    table["captions per second, all methods"] = captions_per_second(model, args.image, args.batch_size, list(METHODS))
    table["captions per second, LRP"] = captions_per_second(model, args.image, args.batch_size, ["lrp"])
    print(json.dumps(table, indent=2))
    if args.json:
        args.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
