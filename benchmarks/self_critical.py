"""Speed of self-critical training: its reward compared with pycocoevalcap's, and images per second of a step.

    python benchmarks/self_critical.py [--data FOLDER] [--images 64] [--samples 5] [--reward-only] [--json FILE]

The reward scores `samples` captions of each of `images` images against the images' references. pycocoevalcap's scorer
gets the same words with `<end>`; its time is that of cutting n-grams and comparing, without document frequencies, which
both know beforehand. Both must return the same values. Runs alternate; times are medians.

The decoder's forward pass is teacher forcing of as many captions, without gradient, by the shipped captioner; a step is
sampling, reward, backward pass and update of its decoder, on random features of the size of its encoder's, as training
runs it (on a GPU as a CUDA graph, in bfloat16).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.data.datasets import read
from saywhy.data.tokenizer import END, PAD, UNK, Vocabulary, tokenize
from saywhy.data.training_batches import Batches, ResidentBatches
from saywhy.encoders.base import Features
from saywhy.inference.model import load
from saywhy.provenance import machine
from saywhy.training.builders import launch_fabric
from saywhy.training.objectives import CaptionLoss
from saywhy.training.optimisers import adam, parameter_groups
from saywhy.training.rewards import CiderReward
from saywhy.training.self_critical import SelfCriticalLoss
from saywhy.training.updates import CapturedUpdate, Update

HERE = Path(__file__).resolve().parent
Groups = list[list[list[int]]]
MAX_WORDS = 20


def main() -> None:
    options = parse()
    device = torch.device(options.device)
    model = load(device=options.device)
    vocabulary, captioner = model.vocabulary, model.captioner
    style = "flickr8k" if "flickr8k" in vocabulary.styles else ""
    train_images = read(options.data / "flickr8k").train_and_dev()[0].images
    words = [[tokenize(caption) for caption in image.captions] for image in train_images]
    train = [[vocabulary.encode(caption, style) for caption in image] for image in words]

    result: dict[str, Any] = {"images": options.images, "samples": options.samples, "repeats": options.repeats}
    result |= compare_rewards(train, vocabulary, options, device)
    if not options.reward_only:
        result |= decoder_forward(captioner, train, options, device)
        result["reward_share_of_forward"] = result["seconds"]["saywhy"] / result["seconds_decoder_forward"]
        result |= measure_step(captioner, vocabulary, words, style, options)
    result["machine"] = machine(device)
    report(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAYWHY_DATA") or HERE.parent.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with flickr8k/ in it")
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--steps", type=int, default=0, help="timed steps; 0 for 200 on a GPU and 3 on a CPU")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--reward-only", action="store_true", help="do not time the decoder")
    parser.add_argument("--json", type=Path, help="write the measurements here")
    return parser.parse_args()


def report(result: dict[str, Any]) -> None:
    seconds = result["seconds"]
    print(f"reward: saywhy {1000 * seconds['saywhy']:.2f} ms, pycocoevalcap {1000 * seconds['pycocoevalcap']:.1f} ms,")
    print(f"        {result['ratio']:.1f} times as fast, largest difference {result['largest_difference']:.1e}")
    if "images_per_second" not in result:
        return
    print(f"decoder's forward pass {1000 * result['seconds_decoder_forward']:.1f} ms")
    print(f"step: {result['images_per_second']:.0f} images/s; of an eager step, in ms: {result['step_milliseconds']}")


def median_seconds(runs: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, float]:
    """Run alternately, so that other load on the machine affects all; the first run of each does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats + 1):
        for name, run in runs.items():
            synchronise(device)
            start = time.perf_counter()
            run()
            synchronise(device)
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def padded(groups: Groups, width: int, device: torch.device) -> Tensor:
    """Captions (P, most captions, width)."""
    table = torch.full((len(groups), max(map(len, groups)), width), PAD)
    for image, group in enumerate(groups):
        for row, tokens in enumerate(group):
            table[image, row, : len(tokens)] = torch.tensor(tokens[:width])
    return table.to(device)


def candidates_for(references: Groups, samples: int) -> Groups:
    """Captions about as good as samples: every fourth word comes from a caption of another image."""
    groups = []
    for image, group in enumerate(references):
        foreign = references[(image + 1) % len(references)]
        captions = []
        for sample in range(samples):
            own, other = group[sample % len(group)][:MAX_WORDS], foreign[sample % len(foreign)]
            mixed = [other[i % len(other)] if i % 4 == 3 else token for i, token in enumerate(own)]
            captions.append([token for token in mixed if token not in (END, UNK)] + [END])
        groups.append(captions)
    return groups


def compare_rewards(
    train: Groups, vocabulary: Vocabulary, options: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    """The same rewards by both packages: seconds, and the largest difference of the values."""
    from pycocoevalcap.cider.cider_scorer import CiderScorer

    references = [[caption[1:] for caption in group] for group in train[: options.images]]
    candidates = candidates_for(references, options.samples)
    width = max(len(caption) for group in references for caption in group)
    tensors = padded(candidates, MAX_WORDS + 1, device), padded(references, width, device)
    copies = torch.tensor([[n < len(group) for n in range(tensors[1].shape[1])] for group in references]).to(device)
    lines = [[" ".join(vocabulary.decode(caption)) for caption in group] for group in references]
    candidate_lines = [[" ".join(vocabulary.decode(caption)) for caption in group] for group in candidates]

    def scorer() -> CiderScorer:
        result = CiderScorer(n=4, sigma=6.0)
        for group, image_lines in zip(candidate_lines, lines, strict=True):
            for line in group:
                result += (line, image_lines)
        return result

    known = scorer()
    _, expected = known.compute_score()

    def theirs() -> object:
        scoring = scorer()
        scoring.document_frequency = known.document_frequency
        return scoring.compute_cider()

    # it counts documents in the references of its candidates, and so each image `samples` times
    documents = [[[0, *caption] for caption in group] for group in references for _ in range(options.samples)]
    equal = CiderReward(documents, len(vocabulary)).to(device)(*tensors, copies).flatten().cpu().numpy()
    reward = CiderReward(train, len(vocabulary)).to(device)
    runs = {"saywhy": lambda: reward(*tensors, copies), "pycocoevalcap": theirs}
    seconds = median_seconds(runs, options.repeats, device)
    difference = float(np.abs(equal - np.array(expected)).max())
    assert difference < 1e-4, f"the rewards differ by {difference}"
    ratio = seconds["pycocoevalcap"] / seconds["saywhy"]
    return {"ratio": ratio, "seconds": seconds, "largest_difference": difference, "ngrams": len(reward.keys)}


def decoder_forward(
    captioner: Captioner, train: Groups, options: argparse.Namespace, device: torch.device
) -> dict[str, float]:
    """Seconds of teacher forcing of images × samples captions."""
    count = options.images * options.samples
    captions = [caption for group in train for caption in group][:count]
    tokens = padded([[caption] for caption in captions], MAX_WORDS + 2, device)[:, 0]
    rows = torch.arange(count).to(device) % options.images
    features = random_features(captioner, options.images, device).select(rows)

    def forward() -> object:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            return captioner(features, tokens[:, :-1], [count] * (MAX_WORDS + 1))

    seconds = median_seconds({"forward": forward}, max(3, options.repeats // 3), device)
    return {"seconds_decoder_forward": seconds["forward"]}


def random_features(captioner: Captioner, images: int, device: torch.device) -> Features:
    side = captioner.encoder.size // captioner.encoder.stride
    vectors = torch.rand(images, side * side, captioner.encoder.width, device=device)
    return Features(vectors, (side, side))


def measure_step(
    captioner: Captioner, vocabulary: Vocabulary, words: list, style: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Images per second of steps as training makes them, and the milliseconds of the parts of an eager step."""
    fabric = launch_fabric("auto", options.device)
    device = fabric.device
    steps = options.steps or (200 if device.type == "cuda" else 3)
    captioner.encoder.requires_grad_(False)
    images = words[: 8 * options.images]
    batches = Batches(images, vocabulary, None, styles=[style] * len(images))
    features = random_features(captioner, len(images), device)
    resident = ResidentBatches(batches, features.vectors.half(), {})
    order = batches.order("images", options.images, 0, 0)
    resident.fit(order)
    plans = [torch.from_numpy(resident.plan(pairs)).to(device) for pairs in order]
    reward = CiderReward(batches.token_ids, len(vocabulary))
    loss = SelfCriticalLoss(CaptionLoss(captioner.train(), 0), reward, 5, MAX_WORDS, samples=options.samples)
    captured = device.type == "cuda"
    optimiser = adam(parameter_groups(captioner, 1e-6, 0.0, capturable=captured), 0.0, capturable=captured)
    module, _ = fabric.setup(loss, optimiser)
    update = Update(fabric, module, optimiser, 5.0, features.grid)
    step = CapturedUpdate(update, resident)
    for number in range(CapturedUpdate.WARM_UP + 2 if captured else 1):
        step(plans[number])
    synchronise(device)
    start = time.perf_counter()
    for number in range(steps):
        step(plans[number % len(plans)])
    synchronise(device)
    seconds = time.perf_counter() - start
    parts = step_parts(fabric, loss, module, resident, plans[0], features.grid, options)
    return {"images_per_second": steps * options.images / seconds, "step_milliseconds": parts}


def step_parts(
    fabric: Any, loss: SelfCriticalLoss, module: Any, resident: ResidentBatches, plan: Tensor, grid: Any, options: Any
) -> dict[str, float]:
    """Milliseconds of reward, of the forward pass with it (encoding, sampling, reward), and with the backward pass."""
    batch = resident.gather(plan)
    calls: list[tuple] = []
    hook = loss.reward.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))

    def forward() -> Any:
        return module(batch.inputs, batch.may_flip, batch.tokens, batch.image_index, grid, None, batch.active)

    def forward_and_backward() -> None:
        fabric.backward(forward().loss)
        module.zero_grad()

    forward()
    hook.remove()
    runs = {"reward": lambda: loss.reward(*calls[0]), "forward": forward, "forward and backward": forward_and_backward}
    seconds = median_seconds(runs, 2 if fabric.device.type == "cpu" else 9, fabric.device)
    return {name: round(1000 * value, 2) for name, value in seconds.items()}


if __name__ == "__main__":
    main()
