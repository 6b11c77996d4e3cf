"""How long audits take, and which parts take the time.

    python benchmarks/audits.py --data DIR [--model DIR] [--limit 100] [--device auto] [--seconds 900] [--json FILE]

Runs all audits of test images from an empty cache, and once more from the full cache. Besides the seconds of each
audit, it prints the seconds spent in the parts of the model, in the cache and in numpy.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from saywhy.audits import evidence, localisation, runner, sanity
from saywhy.audits.context import AuditContext
from saywhy.cache import DiskCache
from saywhy.data.datasets import read
from saywhy.data.phrases import find_phrases
from saywhy.inference.model import load
from saywhy.provenance import machine

PARTS = [
    (AuditContext, "encode", "encoding"),
    (AuditContext, "captions", "captioning"),
    (AuditContext, "probabilities", "teacher forcing"),
    (DiskCache, "save", "writing the cache"),
    (DiskCache, "load", "reading the cache"),
    (localisation, "shares", "numpy: boxes"),
    (evidence, "attribute", "explaining"),
    (sanity, "attribute", "explaining"),
]
"""Functions that are timed: their owner, their name, and the part that they belong to."""


class Timer:
    """Seconds by part; the time of a nested call counts for the inner part only."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds, self.nested = device, defaultdict[str, float](float), list[float]()

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def call(*arguments: Any, **options: Any) -> Any:
            start = self._now()
            self.nested.append(0.0)
            try:
                return function(*arguments, **options)
            finally:
                seconds = self._now() - start
                self.seconds[part] += seconds - self.nested.pop()
                if self.nested:
                    self.nested[-1] += seconds

        return call

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()


@contextmanager
def timing(timer: Timer) -> Iterator[None]:
    """Time the parts of audits."""
    with ExitStack() as stack:
        for owner, name, part in PARTS:
            stack.enter_context(mock.patch.object(owner, name, timer.timed(part, getattr(owner, name))))
        yield


def make_context(options: argparse.Namespace, cache: Path) -> AuditContext:
    """The audited model, with test images that are evenly spaced."""
    data = read(options.data)
    images = data.split("test").images
    count = min(options.limit, len(images))
    chosen = tuple(images[i * len(images) // count] for i in range(count))
    return AuditContext(
        load(options.model, options.device),
        replace(data, images=chosen),
        cache,
        phrases=find_phrases(data.root),
        batch_size=options.batch_size,
    )


def measure(options: argparse.Namespace, cache: Path) -> dict[str, Any]:
    """The seconds of all audits, by audit and by part."""
    context = make_context(options, cache)
    timer, by_audit, names = Timer(context.device), {}, runner.select("all")
    start = time.monotonic()
    with timing(timer):
        for result in runner.run(names, context):
            by_audit["explaining"] = result["explanation_seconds"]
            by_audit[result["audit"]] = result["seconds"]
            print(result["audit"], result["seconds"], flush=True)
    first = time.monotonic() - start
    start = time.monotonic()
    for _ in runner.run(names, context):
        pass
    again = time.monotonic() - start
    by_part = dict(sorted(timer.seconds.items(), key=lambda item: -item[1]))
    by_part["other"] = first - sum(by_part.values())
    return {
        "model": context.model.name,
        "images": len(context.data),
        "seconds": round(first, 1),
        "seconds_from_cache": round(again, 1),
        "cache_megabytes": round(sum(path.stat().st_size for path in cache.rglob("*") if path.is_file()) / 1e6, 1),
        "by_audit": by_audit,
        "by_part": {name: round(seconds, 1) for name, seconds in by_part.items()},
        **machine(context.device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int, default=100, help="images")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--seconds", type=float, help="fail if the first run takes longer")
    parser.add_argument("--cache", type=Path, help="keep the cache in this new folder")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.cache and options.cache.exists():
        parser.error(f"--cache {options.cache} exists: its results would not be computed; give a new folder")
    with tempfile.TemporaryDirectory() as temporary:
        results = measure(options, options.cache or Path(temporary))
    text = json.dumps(results, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    if options.seconds and results["seconds"] > options.seconds:
        raise SystemExit(f"{results['seconds']:.0f} s, more than {options.seconds:.0f} s")


if __name__ == "__main__":
    main()
