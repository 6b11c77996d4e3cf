"""Write docs/performance.md from the results of the benchmarks, or print the table of ratios.

    python benchmarks/report.py [--results FOLDER] [--out FILE]

Without --out it prints the table. A result that is not there is left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
HEAD = """# Performance

How fast saywhy is compared with other projects and with the limits of the machine, and how its cost grows. `make bench`
measures it; `make performance` writes this page from `benchmarks/results/`. A bar is this project's own target.

A ratio is the other project's time divided by saywhy's, on the same work in one run. Both have one thread, and the
times are processor time, which depends less on other programs than time by the clock. Only the CPU was measured for
this page; `benchmarks/README.md` names what was measured on a GPU.
"""


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(head) - 1)]
    lines = (" | ".join(str(cell) for cell in row) for row in (head, rule, *rows))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def peers(lines: Sequence[dict[str, Any]]) -> str:
    """Compared with other projects."""
    rows = [
        (f"{line['work']}: saywhy's {line['engine']}", line["peer"], f"{line['ratio']:.1f}", _bar(line))
        for line in lines
    ]
    return table(("work", "compared with", "times as fast", "bar"), rows)


def _bar(line: dict[str, Any]) -> str:
    if line["bar"] is None:
        return ""
    return f"{line['bar']:g} {'reached' if line['ratio'] >= line['bar'] else 'not reached'}"


def export(result: dict[str, Any]) -> str:
    """ONNX exports."""
    engines, batch = result["engines"], result["batch"]
    rows = [
        (
            name,
            row["mb"],
            f"{row['cider']:.2f}",
            f"{row['same_captions']:,} of {result['images']:,}",
            f"{row['times_as_fast_batch_1']:.1f}",
            f"{row[f'times_as_fast_batch_{batch}']:.1f}",
        )
        for name, row in engines.items()
    ]
    head = ("engine", "MB", "CIDEr-D", "captions as torch", "batch 1", f"batch {batch}")
    return table(head, rows)


def limits(result: dict[str, Any]) -> str:
    """Floors, and the distance to them."""
    rates = result["rates"]
    text = (
        f"Measured with one thread: {rates['operations'] / 1e9:.0f} GFLOP/s (a product of large matrices), "
        f"{rates['bytes'] / 1e9:.1f} GB/s (a copy in memory), {rates['pixels'] / 1e6:.0f} megapixels/s "
        "(decoding a JPEG).\n\n"
    )
    rows = []
    for job in result["jobs"]:
        parts = ", ".join(f"{name} {1000 * seconds:.1f}" for name, seconds in job["parts"].items())
        row = (job["name"], f"{1000 * job['seconds']:.1f}", f"{1000 * job['floor']:.1f}", parts, job["times_the_floor"])
        rows.append(row)
    return text + table(("job", "ms", "floor, ms", "of which", "times the floor"), rows)


def start(result: dict[str, Any]) -> str:
    """One caption from the shell."""
    rows = [(name, row["processor"], row["clock"]) for name, row in result["engines"].items()]
    return table(("engine", "seconds of the processor", "seconds by the clock"), rows)


def growth(result: dict[str, Any]) -> str:
    """Exponents of the curves."""
    rows = []
    for name, points in result["curves"].items():
        exponents = result["exponents"][name]
        seconds = ", ".join(f"{point['size']:,}: {point['seconds']:.2f} s" for point in points)
        memory = f"{points[-1]['mb']:,.0f}"
        rows.append((name, seconds, exponents["seconds"], memory))
    return table(("size", "time", "exponent of the last step", "MB at the largest"), rows)


SECTIONS = (
    (
        "peers",
        "Compared with other projects",
        "The projects are [sgrvinod](https://github.com/sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning), "
        "[ruotianluo](https://github.com/ruotianluo/ImageCaptioning.pytorch), pycocoevalcap, and the LRP paper's code "
        "(LRP-IC). Their own code runs on the same network with random weights: a ResNet-50 at 256 pixels, decoders of "
        "512 units, 3,500 words, captions of 12 words, beam 3, from the image file. pycocoevalcap scores captions of "
        "Flickr8k. LRP is that of an Ada-LSTM over a VGG-16 at 224 pixels: *torch* has the rules of LRP-IC, *torch, "
        "by-stride* saywhy's own.",
        lambda result: peers(result["lines"]),
    ),
    (
        "export",
        "ONNX exports",
        "The shipped model on the test images of Flickr8k. Speed is images per second divided by that of torch, from "
        "the image file, interleaved, by the clock. In *int8 decoder* the encoder stays in single precision; in *int8* "
        "it is quantised by 200 training images.",
        export,
    ),
    (
        "start",
        "One caption from the shell",
        "`saywhy caption astronaut.jpg`, from the start of the process to its end. The bar is 2.5 seconds, by the "
        "clock.",
        start,
    ),
    (
        "limits",
        "Limits of the machine",
        "The floor is the time that the counted operations would take at the rate of a large matrix product, or the "
        "weights at the rate of a copy; no program reaches it. Engine: torch, with the shipped model.",
        limits,
    ),
    (
        "growth",
        "How cost grows",
        "Soft attention with random weights over random features, 16 images, 10 words, a vocabulary of 3,000, 64 "
        "features and a beam of 3, where one of these changes; BLEU and CIDEr-D of captions with five references. An "
        "exponent of 1 is a straight line.\n\n![Time and memory against size](growth.svg)",
        growth,
    ),
)


def read(folder: Path, name: str) -> dict[str, Any] | None:
    """A results file; None where there is none."""
    path = folder / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def page(folder: Path, notes: Path) -> str:
    """The page."""
    parts = [HEAD]
    for name, title, about, render in SECTIONS:
        result = read(folder, name)
        if result is not None:
            made = result["machine"]
            versions = ", ".join(f"{key} {value}" for key, value in made["versions"].items())
            parts.append(f"## {title}\n\n{about}\n\n{render(result)}\n*{made['device']}, {versions}.*\n")
    if notes.is_file():
        parts.append(notes.read_text(encoding="utf-8"))
    return "\n".join(parts)


def summary(folder: Path) -> str:
    """The table of ratios with their bars, as plain text."""
    result = read(folder, "peers") or {"lines": []}
    lines = [f"{'work':34} {'saywhy':16} {'beside':14} {'ratio':>7}  bar"]
    for line in result["lines"]:
        lines.append(
            f"{line['work']:34} {line['engine']:16} {line['peer']:14} {line['ratio']:7.1f}  {_bar(line)}".rstrip()
        )
    for job in (read(folder, "limits") or {"jobs": []})["jobs"]:
        lines.append(f"{job['name']:34} {'torch':16} {'its floor':14} {1 / job['times_the_floor']:7.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.out:
        options.out.write_text(
            page(options.results, Path(__file__).with_name("performance_notes.md")), encoding="utf-8"
        )
    else:
        print(summary(options.results))


if __name__ == "__main__":
    main()
