"""How long audits take, and where the time goes.

    python benchmarks/audits.py --data DIR [--model DIR] [--limit 100] [--device auto] [--seconds 900] [--json FILE]

All audits of test images, from an empty cache, once from the beginning and once more from what was kept. Beside the
seconds of each audit stand those of what it is made of: what was spent inside the model's parts and in numpy.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from saywhy.audits import context as bench_module
from saywhy.audits import evidence, localisation, runner, sanity
from saywhy.cli import auditing
from saywhy.cli.common import Failures
from saywhy.provenance import machine


class Clock:
    """Seconds by what they were spent on; what is nested counts for the inner part alone."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.spent, self.open = device, defaultdict[str, float](float), list[float]()

    def of(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, timed."""

        def timed(*arguments: Any, **named: Any) -> Any:
            began = self._now()
            self.open.append(0.0)
            try:
                return function(*arguments, **named)
            finally:
                took = self._now() - began
                self.spent[name] += took - self.open.pop()
                if self.open:
                    self.open[-1] += took

        return timed

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()


@contextmanager
def clocked(clock: Clock) -> Iterator[None]:
    """Time the parts that audits are made of."""
    AuditContext, DiskCache = bench_module.AuditContext, bench_module.DiskCache
    parts = [
        (AuditContext, "encode", "encoding"),
        (AuditContext, "captions", "captioning"),
        (AuditContext, "probabilities", "teacher forcing"),
    ]
    parts += [
        (DiskCache, "save", "writing"),
        (DiskCache, "load", "reading"),
        (localisation, "shares", "numpy: boxes"),
    ]
    parts += [(module, "explain", "explaining") for module in (evidence, localisation, sanity)]
    patches = [mock.patch.object(where, name, clock.of(label, getattr(where, name))) for where, name, label in parts]
    for patch in patches:
        patch.start()
    try:
        yield
    finally:
        for patch in patches:
            patch.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model")
    parser.add_argument("--limit", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seconds", type=float, help="seconds that the first run may take")
    parser.add_argument("--cache", type=Path, help="a new folder, in which what is found out stays")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.cache and options.cache.exists():
        parser.error(f"--cache {options.cache}: is there already, and would be timed as if it were not")
    with tempfile.TemporaryDirectory() as passing:
        cache = options.cache or Path(passing)
        asked = auditing.Asked(
            options.model, options.data, None, None, "test", options.images, None, None, "epsilon-plus", None, None,
            options.batch, None, options.device,
        )  # fmt: skip
        bench = auditing.bench(runner.AUDITS, asked, cache, Failures())
        bench.fitting = None
        clock, seconds = Clock(bench.device), {}
        began = time.monotonic()
        with clocked(clock):
            for result in runner.run(runner.AUDITS, bench):
                seconds["explaining"] = result["explaining_seconds"]
                seconds[result["audit"]] = result["seconds"]
                print(result["audit"], result["seconds"], flush=True)
        first = time.monotonic() - began
        began = time.monotonic()
        for _ in runner.run(runner.AUDITS, bench):
            pass
        again = time.monotonic() - began
        size = sum(path.stat().st_size for path in cache.rglob("*") if path.is_file())
    parts = dict(sorted(clock.spent.items(), key=lambda each: -each[1]))
    parts["the rest"] = first - sum(parts.values())
    told = {
        "model": bench.model.name,
        "images": len(bench.data),
        "seconds": round(first, 1),
        "again_from_the_cache": round(again, 1),
        "cache_megabytes": round(size / 1e6, 1),
        "by_audit": seconds,
        "by_part": {name: round(value, 1) for name, value in parts.items()},
        **machine(bench.device),
    }
    print(json.dumps(told, indent=2))
    if options.json:
        options.json.write_text(json.dumps(told, indent=2) + "\n")
    if options.seconds and first > options.seconds:
        raise SystemExit(f"{first:.0f} s are more than {options.seconds:.0f}")


if __name__ == "__main__":
    main()
