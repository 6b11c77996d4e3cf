"""Training in two processes over loopback beside one process, and a model of more processes.

    python benchmarks/training_processes.py --data DIR [--rounds 3] [--json FILE]

DIR is a captioned data set, such as Flickr8k; 192 of its images are used. Each process has one thread, and as many
images per step as the single process. One and two processes run in turns, with cached features (the decoder alone is
trained) and with images (the last block of the encoder is fine-tuned, too). The all-reduce of as many bytes is timed
alone.

The model assumes a ring all-reduce of the gradient after the backward pass, without overlap, and no other cost:

    seconds per step of N processes = seconds of one + 2 (N − 1) / N · bytes / bandwidth + 2 (N − 1) · latency
    efficiency = seconds of one / seconds of N
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from files_per_command import write_subset

RECIPE = """
name = "processes"
[vocabulary]
min_count = 1
[preprocessing]
size = 224
fit = "squash"
[encoder]
name = "efficientnet-lite0"
weights = "none"
{finetune}
[captioner]
name = "soft-attention"
[training]
epochs = 3
batch = {batch}
evaluate_every = 100
[decoding]
beam = 1
max_words = 5
"""
FINETUNE = 'finetune_from = "blocks.6"\nlr = 1e-5'
NETWORKS = {"1 Gbit/s Ethernet": (0.117e9, 50e-6), "10 Gbit/s": (1.17e9, 30e-6), "100 Gbit/s": (11.7e9, 5e-6)}
ALL_REDUCE = """
import os, sys, time, torch
import torch.distributed as distributed
distributed.init_process_group("gloo")
torch.set_num_threads(1)
values = torch.ones(int(sys.argv[1]))
seconds = []
for _ in range(15):
    distributed.barrier()
    start = time.perf_counter()
    distributed.all_reduce(values)
    seconds.append(time.perf_counter() - start)
if distributed.get_rank() == 0:
    print(sorted(seconds)[len(seconds) // 2])
"""


def train(folder: Path, data: Path, processes: int, finetune: bool, batch: int) -> dict[str, float]:
    """Seconds per step in the last epoch of a short run, and the parameters that it trains."""
    out = folder / f"run-{finetune}-{processes}-{time.monotonic_ns()}"
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(finetune=FINETUNE if finetune else "", batch=batch * processes))
    command = [sys.executable, "-m", "saywhy", "train", str(recipe), "--data", str(data), "--out", str(out)]
    command += ["--cache", str(folder / "cache"), "--device", "cpu", "--workers", "0", "--processes", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    events = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    last = [event for event in events if event.get("epoch") == 3 and "images_per_second" in event][-1]
    return {"images per second": last["images_per_second"], "trained": trained_parameters(out)}


def trained_parameters(out: Path) -> int:
    from safetensors import safe_open

    with safe_open(out / "checkpoint.safetensors", framework="pt") as file:
        names = [name for name in file.keys() if name.startswith("weights/")]  # noqa: SIM118
        return sum(file.get_tensor(name).numel() for name in names)


def all_reduce(numbers: int) -> float:
    """Median seconds of an all-reduce of this many floats by two processes over loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", ALL_REDUCE, str(numbers)],
            env={**shared, "RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate()[0] for process in both]
    return float(outputs[0])


def modelled(seconds: float, size: float) -> dict[str, dict[str, float]]:
    """The efficiency of 2 to 64 processes by network, as in the module's docstring."""
    table = {}
    for name, (bandwidth, latency) in NETWORKS.items():
        times = {n: seconds + 2 * (n - 1) / n * size / bandwidth + 2 * (n - 1) * latency for n in (2, 4, 8, 16, 32, 64)}
        table[name] = {str(n): round(seconds / value, 3) for n, value in times.items()}
    return table


def measure(folder: Path, data: Path, finetune: bool, rounds: int, batch: int) -> dict[str, Any]:
    """One and two processes in turns."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(rounds):
        for processes, values in rates.items():
            result = train(folder, data, processes, finetune, batch)
            values.append(result["images per second"])
            print(f"{'fine-tuned' if finetune else 'cached'}, {processes}: {values[-1]:.2f} images/s", flush=True)
    numbers = int(result["trained"])
    one = statistics.median(rates[1])
    seconds, shares = batch / one, [two / (2 * single) for single, two in zip(rates[1], rates[2], strict=True)]
    return {
        "images per second": {str(processes): values for processes, values in rates.items()},
        "efficiency of two processes": round(statistics.median(shares), 3),
        "efficiency of the rounds": [round(share, 3) for share in shares],
        "seconds per step of one process": round(seconds, 3),
        "trained parameters": numbers,
        "megabytes of gradient per step": round(4 * numbers / 1e6, 2),
        "seconds of the all-reduce alone, over loopback": round(all_reduce(numbers), 4),
        "modelled efficiency": modelled(seconds, 4 * numbers),
        "modelled efficiency of a device that is 100 times as fast": modelled(seconds / 100, 4 * numbers),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=192)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    import torch

    from saywhy.provenance import machine

    table: dict[str, Any] = {"images": options.images, "images per process and step": options.batch}
    table |= {"cores": len(os.sched_getaffinity(0)), **machine(torch.device("cpu"))}
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        write_subset(options.data, data, train=options.images)
        for name in ("cached features", "fine-tuned encoder"):
            finetune = name == "fine-tuned encoder"
            table[name] = measure(Path(folder), data, finetune, options.rounds, options.batch)
            if options.json:
                options.json.write_text(json.dumps(table, indent=2) + "\n")
    print(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
