"""One caption from the shell: a process from its start to its end, by torch and by ONNX Runtime.

    python benchmarks/start.py [--rounds 5] [--json FILE]

The processes run in turn. Seconds by the clock depend on what else the machine does; those of the processor hardly do.
The ONNX export is made, or found in the cache, before the first measurement.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

from saywhy.onnx_engine.export_cache import load_exported
from saywhy.provenance import machine

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "images" / "astronaut.jpg"
ENGINES = ("torch", "onnx")


def run(engine: str) -> dict[str, float]:
    """Seconds by the clock and of the processor."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "saywhy", "caption", str(EXAMPLE), "--engine", engine]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return {"clock": time.perf_counter() - start, "processor": usage.ru_utime + usage.ru_stime}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load_exported(None, print)
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in ENGINES}
    for _ in range(options.rounds):
        for engine in ENGINES:
            runs[engine].append(run(engine))
    engines = {
        engine: {name: round(statistics.median(found[name] for found in rows), 2) for name in rows[0]}
        for engine, rows in runs.items()
    }
    for engine, row in engines.items():
        print(f"{engine:6}", row)
    if options.json:
        summary = {"machine": machine(torch.device("cpu")), "rounds": options.rounds, "engines": engines}
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
