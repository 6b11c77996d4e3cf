"""Speed of the metrics compared with pycocoevalcap: medians of alternating runs.

    python benchmarks/metrics.py [--data FOLDER] [--images 1000] [--repeats 7] [--json FILE]

One candidate and 5 references per image. BLEU, ROUGE-L and CIDEr-D of both packages get the same tokenised captions,
each in its own form: lists of words for saywhy, lines of words for pycocoevalcap. The tokeniser of pycocoevalcap
starts Java once for all captions.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from saywhy.data.tokenizer import _scan, tokenize
from saywhy.metrics import bleu, cider, rouge_l

HERE = Path(__file__).resolve().parent
Lines = dict[int, list[str]]


def captions_from(data: Path | None, images: int) -> list[list[str]]:
    """Five captions per image: those of Flickr8k, or random ones with a similar distribution of words."""
    if data and (data / "flickr8k" / "captions.txt").exists():
        groups: dict[str, list[str]] = defaultdict(list)
        with (data / "flickr8k" / "captions.txt").open(newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                groups[row["image"]].append(row["caption"])
        return list(groups.values())[-images:]
    rng = random.Random(0)
    words = [f"{a}{b}" for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "el", "is", "or", "un")]
    return [[" ".join(rng.choices(words, k=rng.randint(7, 15))) for _ in range(5)] for _ in range(images)]


def mixed(own: str, other: str) -> str:
    """A candidate about as good as a captioner's: every fourth word comes from the caption of another image."""
    words, foreign = own.split(), other.split()
    return " ".join(foreign[i % len(foreign)] if i % 4 == 3 else word for i, word in enumerate(words))


def median_seconds(packages: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Run the packages alternately, so that other load on the machine affects both."""
    seconds: dict[str, list[float]] = {name: [] for name in packages}
    for _ in range(repeats):
        for name, run in packages.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def comparisons(groups: list[list[str]]) -> dict[str, dict[str, Callable[[], object]]]:
    """For each metric, the same work by saywhy and by pycocoevalcap."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    reference_words = [[tokenize(caption) for caption in group] for group in groups]
    lines = [[" ".join(words) for words in group] for group in reference_words]
    candidates = [mixed(own[0], other[0]) for own, other in zip(lines, lines[1:] + lines[:1], strict=True)]
    candidate_words = [line.split() for line in candidates]
    reference_lines: Lines = dict(enumerate(lines))
    candidate_lines: Lines = {i: [line] for i, line in enumerate(candidates)}
    raw = {i: [{"caption": caption} for caption in group] for i, group in enumerate(groups)}

    def run_saywhy(metric: Callable) -> Callable[[], object]:
        return lambda: metric(candidate_words, reference_words)

    def tokenize_all() -> object:
        _scan.cache_clear()
        return [[tokenize(caption) for caption in group] for group in groups]

    return {
        "BLEU": {
            "saywhy": run_saywhy(bleu),
            "pycocoevalcap": lambda: Bleu(4).compute_score(reference_lines, candidate_lines, verbose=0),
        },
        "ROUGE-L": {
            "saywhy": run_saywhy(rouge_l),
            "pycocoevalcap": lambda: Rouge().compute_score(reference_lines, candidate_lines),
        },
        "CIDEr-D": {
            "saywhy": run_saywhy(cider),
            "pycocoevalcap": lambda: Cider().compute_score(reference_lines, candidate_lines),
        },
        "tokeniser": {"saywhy": tokenize_all, "pycocoevalcap": lambda: PTBTokenizer().tokenize(raw)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAYWHY_DATA") or HERE.parent.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with flickr8k/ in it")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the ratios here")
    options = parser.parse_args()

    groups = captions_from(options.data, options.images)
    results = {}
    print(f"{'':10} {'saywhy':>10} {'pycocoevalcap':>14} {'times as fast':>14}")
    for name, packages in comparisons(groups).items():
        seconds = median_seconds(packages, options.repeats)
        ratio = seconds["pycocoevalcap"] / seconds["saywhy"]
        results[name] = {"ratio": ratio, "seconds": seconds}
        print(f"{name:10} {seconds['saywhy']:9.4f}s {seconds['pycocoevalcap']:13.4f}s {ratio:13.1f}x")
    if options.json:
        summary = {"images": len(groups), "repeats": options.repeats, "results": results}
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
