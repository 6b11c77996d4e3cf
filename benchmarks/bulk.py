"""Many images: memory, speed beside the encoder and decoder alone, and what is left after 20 kills.

    python benchmarks/bulk.py memory --images DIR [--json FILE]      saywhy caption --in DIR, its memory on the way
    python benchmarks/bulk.py speed --images DIR [--json FILE]       the job, and encoder + decoder alone, in turns
    python benchmarks/bulk.py kill --images DIR [--json FILE]        20 times SIGKILL, started again each time

DIR holds at least 10,000 images for `memory`; the others use the first few hundred. `--json FILE` adds the result to
FILE.
Memory is the proportional set size (PSS) of the process and its readers, from /proc.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

PART = re.compile(r"part-\d+-(\d+)-(\d+)-of")


def command(images: Path, out: Path, part_size: int, options: argparse.Namespace) -> list[str]:
    """The command line of a run."""
    caption = [sys.executable, "-m", "saywhy", "caption", "--in", str(images), "--out", str(out)]
    model = ["--model", options.model] if options.model else []
    return [*caption, "--part-size", str(part_size), "--device", options.device, *model]


def rows_written(parts: Path) -> int:
    """How many rows the finished parts have."""
    matches = (PART.match(path.name) for path in parts.glob("part-*"))
    return sum(int(match[2]) - int(match[1]) for match in matches if match)


def family(process: int) -> list[int]:
    """A process and all that it has started."""
    found, waiting = [], [process]
    while waiting:
        number = waiting.pop()
        found.append(number)
        try:
            waiting += map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split())
        except OSError:
            continue
    return found


def megabytes(process: int) -> float:
    """The proportional set size of a process and all that it has started."""
    total = 0
    for number in family(process):
        try:
            text = Path(f"/proc/{number}/smaps_rollup").read_text()
        except OSError:  # ended meanwhile
            continue
        total += int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1])
    return total / 1024


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Memory around 1,000 and around the last of at least 10,000 images."""
    with tempfile.TemporaryDirectory() as folder:
        out, samples = Path(folder) / "captions.parquet", list[tuple[int, float]]()
        start = time.monotonic()
        process = subprocess.Popen(command(options.images, out, 250, options))
        while process.poll() is None and time.monotonic() - start < options.seconds:
            samples.append((rows_written(out.with_name(f"{out.name}.parts")), megabytes(process.pid)))
            time.sleep(1)
        seconds = time.monotonic() - start
        if process.poll() is None:
            process.terminate()
            process.wait()
        elif process.returncode:
            raise SystemExit(process.returncode)
        images = max(rows for rows, _ in samples)
    early = [size for rows, size in samples if 750 <= rows <= 1250]
    late = [size for rows, size in samples if rows >= images - 500]
    result = {
        "images": images,
        "model": options.model or "the shipped one",
        "MB after 1,000": round(statistics.median(early), 1),
        f"MB after {images:,}": round(statistics.median(late), 1),
        "largest MB": round(max(size for _, size in samples), 1),
        "seconds": round(seconds, 1),
    }
    result["growth"] = round(statistics.median(late) / statistics.median(early) - 1, 4)
    return result


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Images per second of a job, and of its encoder and decoder on batches in memory, in turns in one process."""
    import torch

    from saywhy.bulk.caption_task import CaptionTask
    from saywhy.bulk.find_inputs import find_shards
    from saywhy.bulk.job import Job, run_here
    from saywhy.bulk.output import Output
    from saywhy.bulk.parts import Plan
    from saywhy.bulk.shards import ImageFiles
    from saywhy.bulk.tasks import ModelChoice
    from saywhy.inference.batches import ImageBatches

    paths = list(islice(find_shards([str(options.images)])[0].names(), options.count))
    task = CaptionTask(ModelChoice(options.model, options.device))
    worker = task.load()
    model, decoding = worker.model, worker.model.decoding
    batches = list(ImageBatches(model.preprocessing, paths, batch_size=options.batch_size))
    seconds: dict[str, list[float]] = {"job": [], "encoder and decoder alone": []}
    used: dict[str, list[float]] = {name: [] for name in seconds}  # processor time of the main process
    reading = 0.0

    def job(folder: Path) -> None:
        shards = [ImageFiles(paths)]
        settings = {"part_size": options.count, "batch_size": options.batch_size, "workers": options.workers}
        job = Job(shards, task, Output(folder / "captions.jsonl", task.columns), **settings)
        with job.output.opened(job.settings(worker)):
            plan = Plan(shards, options.count, [], print)
            assert sum(len(written.part) for written in run_here(job, plan.remaining(), worker)) == len(paths)

    def alone() -> None:
        with torch.inference_mode():
            for batch in batches:
                model._decode(model._encode(batch), batch, decoding)

    def measured(name: str, function: Any, *arguments: Any) -> None:
        wall, processor = time.perf_counter(), processor_seconds()
        function(*arguments)
        seconds[name].append(time.perf_counter() - wall)
        used[name].append(processor_seconds() - processor)

    alone()  # warm-up
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            reading -= processor_seconds(resource.RUSAGE_CHILDREN)
            measured("job", job, Path(folder))
            reading += processor_seconds(resource.RUSAGE_CHILDREN)
        measured("encoder and decoder alone", alone)
    rates = {name: round(len(paths) / statistics.median(values), 2) for name, values in seconds.items()}
    shares = [alone / job for job, alone in zip(*seconds.values(), strict=True)]
    return {
        "images": len(paths),
        "rounds": options.rounds,
        "reading processes": options.workers,
        "threads": torch.get_num_threads(),
        "images per second": rates,
        "processor seconds per image, main process": {
            name: round(statistics.median(values) / len(paths), 4) for name, values in used.items()
        },
        "processor seconds per image, reading processes": round(reading / options.rounds / len(paths), 4),
        "share by processor time of the main process": round(
            statistics.median(used["encoder and decoder alone"]) / statistics.median(used["job"]), 3
        ),
        "share of encoder and decoder alone": round(statistics.median(shares), 3),
        "shares of the rounds": [round(share, 3) for share in shares],
    }


def processor_seconds(who: int = resource.RUSAGE_SELF) -> float:
    """What this process, or those that it has started and that have ended, have used."""
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def kill(options: argparse.Namespace) -> dict[str, Any]:
    """Kill a run at random moments and start it again, 20 times; compare it with an uninterrupted one."""
    with tempfile.TemporaryDirectory() as folder:
        images, moments = Path(folder) / "images", random.Random(0)
        images.mkdir()
        names = sorted(path for path in options.images.rglob("*.jpg"))[: options.count]
        for number, path in enumerate(names):
            (images / f"{number:05d}.jpg").symlink_to(path.resolve())
        out, parts, done = Path(folder) / "captions.jsonl", Path(folder) / "captions.jsonl.parts", []
        while len(done) < options.kills:
            process = subprocess.Popen(command(images, out, 8, options), stdout=subprocess.DEVNULL)
            before = rows_written(parts)
            while rows_written(parts) == before and process.poll() is None:
                time.sleep(0.02)
            time.sleep(moments.uniform(0, 2))
            if process.poll() is not None:
                raise SystemExit(f"the run has finished after {len(done)} kills: use a larger --count")
            process.kill()
            process.wait()
            done.append(rows_written(parts))
        subprocess.run(command(images, out, 8, options), check=True)
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        whole = Path(folder) / "whole.jsonl"
        subprocess.run(command(images, whole, 8, options), check=True)
        expected = [str(images / f"{number:05d}.jpg") for number in range(len(names))]
        result = {
            "images": len(names),
            "kills": len(done),
            "rows after each kill": done,
            "rows": len(rows),
            "every image exactly once": [row["image"] for row in rows] == expected,
            "rows equal those of an uninterrupted run": out.read_text() == whole.read_text(),
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measurement", choices=("memory", "speed", "kill"))
    parser.add_argument("--images", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--count", type=int, default=256, help="images of speed and kill")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=max(1, len(os.sched_getaffinity(0)) - 1))
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop `memory` after so long")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--name", help="the name of the result in FILE; by default that of the measurement")
    options = parser.parse_args()
    import torch

    from saywhy.inference.model import choose_device
    from saywhy.provenance import machine

    result = {"memory": memory, "speed": speed, "kill": kill}[options.measurement](options)
    print(json.dumps(result, indent=2))
    if options.json:
        known = json.loads(options.json.read_text()) if options.json.exists() else {}
        cores = len(os.sched_getaffinity(0))
        device = torch.device(choose_device(options.device))
        known[options.name or options.measurement] = {**result, "cores": cores, **machine(device)}
        options.json.write_text(json.dumps(known, indent=2) + "\n")


if __name__ == "__main__":
    main()
