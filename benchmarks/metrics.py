"""How fast the metrics are, against pycocoevalcap: one run, turn by turn, the median of several.

    python benchmarks/metrics.py [--data FOLDER] [--repeats 7] [--json FILE]

1,000 candidates with 5 references each. BLEU, ROUGE-L and CIDEr-D get the same tokenised captions on both
sides, each in its own form: lists of words here, lines of words there. The tokeniser's rival starts Java once
for all captions.
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

from saywhy.data.tokenizer import _cut, tokenize
from saywhy.metrics import bleu, cider, rouge_l

HERE = Path(__file__).resolve().parent
Lines = dict[int, list[str]]


def captions_from(data: Path | None, images: int) -> list[list[str]]:
    """Five captions each of many images: Flickr8k's, or made-up ones with a similar spread of words."""
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
    """A candidate about as right as a captioner's: every fourth word comes from another image's caption."""
    words, foreign = own.split(), other.split()
    return " ".join(foreign[i % len(foreign)] if i % 4 == 3 else word for i, word in enumerate(words))


def median_seconds(sides: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Trainer the sides in turn, so that whatever else the machine does hits both."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            start = time.perf_counter()
            side()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def contests(groups: list[list[str]]) -> dict[str, dict[str, Callable[[], object]]]:
    """Each contest: the same work on our side and on theirs."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    reference_words = [[tokenize(caption) for caption in group] for group in groups]
    lines = [[" ".join(words) for words in group] for group in reference_words]
    candidates = [mixed(own[0], other[0]) for own, other in zip(lines, lines[1:] + lines[:1], strict=True)]
    candidate_words = [line.split() for line in candidates]
    gts: Lines = dict(enumerate(lines))
    res: Lines = {i: [line] for i, line in enumerate(candidates)}
    raw = {i: [{"caption": caption} for caption in group] for i, group in enumerate(groups)}

    def ours(metric: Callable) -> Callable[[], object]:
        return lambda: metric(candidate_words, reference_words)

    def cut_all() -> object:
        _cut.cache_clear()
        return [[tokenize(caption) for caption in group] for group in groups]

    return {
        "BLEU": {"saywhy": ours(bleu), "pycocoevalcap": lambda: Bleu(4).compute_score(gts, res, verbose=0)},
        "ROUGE-L": {"saywhy": ours(rouge_l), "pycocoevalcap": lambda: Rouge().compute_score(gts, res)},
        "CIDEr-D": {"saywhy": ours(cider), "pycocoevalcap": lambda: Cider().compute_score(gts, res)},
        "tokeniser": {"saywhy": cut_all, "pycocoevalcap": lambda: PTBTokenizer().tokenize(raw)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAYWHY_DATA") or HERE.parent.parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=Path(default), help="folder with flickr8k/ in it")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the ratios here")
    options = parser.parse_args()

    groups = captions_from(options.data, options.images)
    results = {}
    print(f"{'':10} {'saywhy':>10} {'pycocoevalcap':>14} {'times as fast':>14}")
    for name, sides in contests(groups).items():
        seconds = median_seconds(sides, options.repeats)
        ratio = seconds["pycocoevalcap"] / seconds["saywhy"]
        results[name] = {"ratio": ratio, "seconds": seconds}
        print(f"{name:10} {seconds['saywhy']:9.4f}s {seconds['pycocoevalcap']:13.4f}s {ratio:13.1f}x")
    if options.json:
        summary = {"images": len(groups), "repeats": options.repeats, "results": results}
        options.json.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
