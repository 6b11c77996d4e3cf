"""Speed of self-critical training: its reward compared with pycocoevalcap's, and images per second of a step.

    python benchmarks/self_critical.py [--data FOLDER] [--images 64] [--samples 5] [--json FILE]
        [--reward-only | --steps-only] [--float32] [--peer FOLDER]

The reward scores `samples` captions of each of `images` images against the images' references. pycocoevalcap's scorer
gets the same words with `<end>`; its time is that of cutting n-grams and comparing, without document frequencies, which
both know beforehand. Both must return the same values. Runs alternate; times are medians.

The decoder's forward pass is teacher forcing of as many captions, without gradient, by the shipped captioner; a step is
sampling, reward, backward pass and update of its decoder, on random features of the size of its encoder's, as training
runs it (on a GPU as a CUDA graph, in bfloat16; with `--float32` also in float32).

With `--peer`, steps of self-critical.pytorch are timed alternately with these (`self_critical_peer.py`), on features of
the same size, with as many images and samples, and at most 20 words. Its decoder of adaptive attention ("adaatt") is
the nearest to the shipped one, and smaller: one LSTM in place of two. Both rewards must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from self_critical_peer import DECODERS, Peer
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
Step = Callable[[int], object]  # called with 0, 1, 2, …, it trains on one batch after another
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
    if not options.steps_only:
        result |= compare_rewards(train, vocabulary, options, device)
    if not options.reward_only:
        result |= decoder_forward(captioner, train, options, device)
        if not options.steps_only:
            result["reward_share_of_forward"] = result["seconds"]["saywhy"] / result["seconds_decoder_forward"]
        result |= measure_steps(vocabulary, words, train, style, options)
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
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--reward-only", action="store_true", help="do not time the decoder")
    parts.add_argument("--steps-only", action="store_true", help="do not compare with pycocoevalcap")
    parser.add_argument("--float32", action="store_true", help="time steps in float32 too")
    parser.add_argument("--peer", type=Path, help="folder with self-critical.pytorch/ and cider/ in it: time it too")
    parser.add_argument("--peer-decoder", default="adaatt", choices=DECODERS)
    parser.add_argument("--json", type=Path, help="write the measurements here")
    return parser.parse_args()


def report(result: dict[str, Any]) -> None:
    if "seconds" in result:
        saywhy, other = 1000 * result["seconds"]["saywhy"], 1000 * result["seconds"]["pycocoevalcap"]
        print(f"reward: saywhy {saywhy:.2f} ms, pycocoevalcap {other:.1f} ms,")
        print(f"        {result['ratio']:.1f} times as fast, largest difference {result['largest_difference']:.1e}")
    if "images_per_second" not in result:
        return
    print(f"decoder's forward pass {1000 * result['seconds_decoder_forward']:.1f} ms")
    print(f"step: {result['images_per_second']:.4g} images/s; of an eager step, in ms: {result['step_milliseconds']}")
    if "images_per_second_float32" in result:
        print(f"      in float32 {result['images_per_second_float32']:.4g} images/s")
    if "peer" in result:
        peer = result["peer"]
        print(f"peer ({peer['decoder']}): {peer['images_per_second']:.4g} images/s; in ms: {peer['step_milliseconds']}")
        ratios = {name: round(ratio, 2) for name, ratio in result["times_as_fast_as_peer"].items()}
        print(f"      times as fast as the peer: {ratios}")


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


def measure_steps(
    vocabulary: Vocabulary, words: list, train: Groups, style: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Images per second of steps as training makes them, and the milliseconds of the parts of a step."""
    ours = SaywhySteps(vocabulary, words, train, style, "auto", options)
    runs: dict[str, Step] = {"saywhy": ours}
    if options.float32:
        runs["float32"] = SaywhySteps(vocabulary, words, train, style, "float32", options)
    if options.peer:
        vectors, sizes = ours.features.vectors, (options.images, options.samples)
        runs["peer"] = peer = Peer(options.peer, options.peer_decoder, train, len(vocabulary), vectors, *sizes)
    rates = images_per_second(runs, options, ours.fabric.device)
    parts, words_per_sample = ours.parts()
    result: dict[str, Any] = {"images_per_second": rates["saywhy"], "step_milliseconds": parts}
    result |= {"words_per_sample": words_per_sample, "parameters": ours.parameters}
    if options.float32:
        result["images_per_second_float32"] = rates["float32"]
    if options.peer:
        result["peer"] = {"images_per_second": rates["peer"]} | describe(peer, ours, train, options)
        result["times_as_fast_as_peer"] = {name: rates[name] / rates["peer"] for name in rates if name != "peer"}
    return result


def images_per_second(runs: dict[str, Step], options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Medians of up to five rounds; within a round, one run follows the other."""
    for run in runs.values():
        for number in range(CapturedUpdate.WARM_UP + 2 if device.type == "cuda" else 1):
            run(number)
    steps = options.steps or (200 if device.type == "cuda" else 3)
    rounds = min(5, steps)

    def several(run: Step) -> None:
        for number in range(steps // rounds):
            run(number)

    seconds = median_seconds({name: partial(several, run) for name, run in runs.items()}, rounds, device)
    return {name: (steps // rounds) * options.images / value for name, value in seconds.items()}


def describe(peer: Peer, ours: SaywhySteps, train: Groups, options: argparse.Namespace) -> dict[str, Any]:
    """Where the time of the peer's step goes, and whether its reward is ours."""
    references = [[caption[1:] for caption in group] for group in train[: options.images]]
    candidates = candidates_for(references, options.samples)
    width, device = max(len(caption) for group in references for caption in group), ours.fabric.device
    tensors = padded(candidates, MAX_WORDS + 1, device), padded(references, width, device)
    copies = (tensors[1] != PAD).any(dim=-1)
    expected = ours.loss.reward(*tensors, copies).flatten().cpu().numpy()
    difference = float(np.abs(peer.scores(candidates) - expected).max())
    assert difference < 1e-4, f"the rewards differ by {difference}"
    return {
        "decoder": options.peer_decoder,
        "step_milliseconds": peer.parts(2 if device.type == "cpu" else 9),
        "parameters": peer.parameters,
        "largest_difference": difference,
    } | peer.sample_lengths()


class SaywhySteps:
    """Steps of the decoder of the shipped captioner, on random features of the first images."""

    def __init__(
        self, vocabulary: Vocabulary, words: list, train: Groups, style: str, precision: str, options: Any
    ) -> None:
        self.fabric = launch_fabric(precision, options.device)
        device = self.fabric.device
        captioner = load(device=options.device).captioner
        captioner.encoder.requires_grad_(False)
        images = words[: 8 * options.images]
        batches = Batches(images, vocabulary, None, styles=[style] * len(images))
        self.features = random_features(captioner, len(images), device)
        self.resident = ResidentBatches(batches, self.features.vectors.half(), {})
        order = batches.order("images", options.images, 0, 0)
        self.resident.fit(order)
        self.plans = [torch.from_numpy(self.resident.plan(pairs)).to(device) for pairs in order]
        reward = CiderReward(train, len(vocabulary))
        self.loss = SelfCriticalLoss(CaptionLoss(captioner.train(), 0), reward, 5, MAX_WORDS, samples=options.samples)
        captured = device.type == "cuda"
        optimiser = adam(parameter_groups(captioner, 1e-6, 0.0, capturable=captured), 0.0, capturable=captured)
        self.module, _ = self.fabric.setup(self.loss, optimiser)
        update = Update(self.fabric, self.module, optimiser, 5.0, self.features.grid)
        self.update = CapturedUpdate(update, self.resident)
        self.parameters = sum(weights.numel() for weights in captioner.parameters() if weights.requires_grad)

    def __call__(self, number: int) -> None:
        """One step, on one of the batches."""
        self.update(self.plans[number % len(self.plans)])

    def parts(self) -> tuple[dict[str, float], float]:
        """Of an eager step, milliseconds of reward, forward pass (with sampling and reward), and both passes.

        Also the mean number of words of its samples, with `<end>`.
        """
        batch = self.resident.gather(self.plans[0])
        inputs = batch.inputs, batch.may_flip, batch.tokens, batch.image_index, self.features.grid, None, batch.active
        calls: list[tuple] = []
        hook = self.loss.reward.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))

        def forward() -> Any:
            return self.module(*inputs)

        def forward_and_backward() -> None:
            self.fabric.backward(forward().loss)
            self.module.zero_grad()

        forward()
        hook.remove()
        runs: dict[str, Callable[[], object]] = {"reward": partial(self.loss.reward, *calls[0])}
        runs |= {"forward": forward, "forward and backward": forward_and_backward}
        device = self.fabric.device
        seconds = median_seconds(runs, 2 if device.type == "cpu" else 9, device)
        words = (calls[0][0] != PAD).sum(dim=-1).float().mean().item()
        return {name: round(1000 * value, 2) for name, value in seconds.items()}, words


if __name__ == "__main__":
    main()
