"""What explaining costs: LRP of a ten-word caption against ten backward passes of the encoder, in one run.

    python benchmarks/explain.py [IMAGE] [--model DIR] [--repeats 7] [--device cpu] [--json FILE]

The parts of each repeat are timed one after the other, after a warm-up; medians, and ratios of medians:

- `backward`: ten plain backward passes through the encoder, from gradients of its features to the pixels;
- `relevance`: LRP of all ten words, from the pixels forward and from the logits back to pixels, the budget with it;
- `one call a word`: the same, asked ten times for one word;
- `explain`: all six methods, from the file to the explanation; on a GPU `--batch 64` images at a time.

`memory` is by how much the process grows beyond what the model and a caption took (on a GPU, what torch allocates).
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
from saywhy.explain.explaining import words_at_a_time
from saywhy.explain.passes import run_relevance
from saywhy.explain.request import Asked, question
from saywhy.inference.model import Model

WORDS = ("a", "man", "in", "a", "red", "shirt", "is", "standing", "outside", "building")


def parts(model: Model, image: Path, rules: str) -> dict[str, Callable[[], object]]:
    """What is timed, by name."""
    captioner, device = model.captioner, model.captioner.device
    pixels = torch.from_numpy(model.preprocessing(open_image(image))).unsqueeze(0).to(device)
    whole = Asked(WORDS, tuple(range(len(WORDS))), WORDS)
    single = [Asked(WORDS, (place,), (word,)) for place, word in enumerate(WORDS)]
    ask = [question([each], model.vocabulary, None, device) for each in (whole, *single)]
    chunk = words_at_a_time(device)
    x = captioner.encoder.normalise(pixels).detach().requires_grad_()
    for parameter in captioner.parameters():
        parameter.requires_grad_(False)
    vectors = captioner.encoder.encode_normalised(x).vectors
    g = torch.randn_like(vectors)

    def backward() -> None:
        for _ in WORDS:
            torch.autograd.grad(vectors, x, g, retain_graph=True)

    def relevance() -> None:
        run_relevance(captioner, pixels, None, ask[0], composite(rules), chunk)

    def one_call_a_word() -> None:
        for each in ask[1:]:
            run_relevance(captioner, pixels, None, each, composite(rules), chunk)

    return {
        "backward": backward,
        "relevance": relevance,
        "one call a word": one_call_a_word,
        "explain": lambda: model.explain(image, caption=" ".join(WORDS), composite=rules),
    }


def seconds(table: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each part."""
    taken = defaultdict(list)
    for _ in range(repeats + 1):
        for name, part in table.items():
            began = time.perf_counter()
            part()
            if device.type == "cuda":
                torch.cuda.synchronize()
            taken[name].append(time.perf_counter() - began)
    return {name: statistics.median(each[1:]) for name, each in taken.items()}  # the first ones warm up


def memory(model: Model, image: Path, rules: str) -> float:
    """Gigabytes that LRP of ten words needs beyond the model."""
    on_gpu = model.captioner.device.type == "cuda"
    relevance = parts(model, image, rules)["relevance"]

    def used() -> float:
        peak = (
            torch.cuda.max_memory_allocated() if on_gpu else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        )
        return peak / 1e9

    model.caption(image)
    before = used()
    relevance()
    return used() - before


def captions_a_second(model: Model, image: Path, batch: int, methods: list[str]) -> float:
    """Captions explained a second, the model's own, `batch` at a time."""
    images = [image] * batch
    list(model.explanations(images, batch=batch, methods=methods))
    began = time.perf_counter()
    list(model.explanations(images, batch=batch, methods=methods))
    return batch / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    example = Path(__file__).parents[1] / "examples" / "images" / "astronaut.png"
    parser.add_argument("image", type=Path, nargs="?", default=example)
    parser.add_argument("--model")
    parser.add_argument("--composite", default=DEFAULT)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    model = saywhy.load(asked.model, asked.device)
    about = {"model": model.name, "composite": asked.composite, "device": asked.device, "torch": torch.__version__}
    table: dict[str, object] = {**about, "threads": torch.get_num_threads()}
    table["memory GB"] = memory(model, asked.image, asked.composite)  # first: a process's peak never falls
    taken = seconds(parts(model, asked.image, asked.composite), asked.repeats, model.captioner.device)
    table |= {"seconds": taken, "relevance / backward": taken["relevance"] / taken["backward"]}
    table["one call a word / relevance"] = taken["one call a word"] / taken["relevance"]
    table["batch"] = asked.batch
    table["captions a second, all methods"] = captions_a_second(model, asked.image, asked.batch, list(METHODS))
    table["captions a second, LRP"] = captions_a_second(model, asked.image, asked.batch, ["lrp"])
    print(json.dumps(table, indent=2))
    if asked.json:
        asked.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
