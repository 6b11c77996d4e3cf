"""The page of measured numbers, made from results files and never typed."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from saywhy.errors import UserError

Result = dict[str, Any]

HEAD = """# Results

Made by `saywhy results` from the files in `results/`; do not edit. Percent throughout. Captions are freely
decoded, the vocabulary comes from the training captions alone, everything was chosen on dev, and the test split
was looked at once.
"""
PUBLISHED = """## Published, for comparison

Not measured here. Show, attend and tell (Xu et al. 2015) on Flickr8k, BLEU without brevity penalty.

| | BLEU-1 | BLEU-2 | BLEU-3 | BLEU-4 | METEOR |
| --- | --- | --- | --- | --- | --- |
| soft attention, VGG-19 | 67.0 | 44.8 | 29.9 | 19.5 | 18.93 |
| hard attention, VGG-19 | 67.0 | 45.7 | 31.4 | 21.3 | 20.30 |
"""
METRICS = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr")


def page(folder: Path) -> str:
    """All of it, as Markdown."""
    scored = [result for _, result in _read(folder, "*.json")]
    explored = [(path.stem, result) for path, result in _read(folder, "explored/*.json")]
    if not scored:
        raise UserError(f"{folder}: no results; `saywhy evaluate --out {folder}/NAME.json` writes one")
    parts = [HEAD]
    for split in sorted({f"{result['data']} {result['split']}" for result in scored}):
        these = [result for result in scored if f"{result['data']} {result['split']}" == split]
        parts += [_means(split, these), _runs(these)]
    parts += [PUBLISHED]
    if explored:
        parts.append(_explored(explored))
    return "\n".join(parts)


def _read(folder: Path, pattern: str) -> list[tuple[Path, Result]]:
    try:
        return [(path, json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob(pattern))]
    except ValueError as error:
        raise UserError(f"{folder}: a results file is not JSON ({error})") from None


def _row(*cells: object) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _table(head: tuple[str, ...], rows: list[str]) -> str:
    return "\n".join([_row(*head), _row(*("---" for _ in head)), *rows]) + "\n"


def _values(result: Result, bleu: str = "bleu") -> list[float | None]:
    scores = result["scores"]
    return [*scores[bleu], scores["meteor"], scores["rouge_l"], scores["cider"]]


def _means(split: str, results: list[Result]) -> str:
    """Mean and standard deviation over seeds, a model a row, with and without brevity penalty."""
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[result["model"]].append(result)
    rows = []
    for name, runs in groups.items():
        for label, bleu in ((name, "bleu"), ("… BLEU without penalty", "bleu_no_penalty")):
            columns = list(zip(*(_values(run, bleu) for run in runs), strict=True))
            cells = [_spread(column) for column in columns]
            rows.append(_row(label, len(runs), *(cells if bleu == "bleu" else [*cells[:4], "", "", ""])))
    title = f"## {split}: mean ± standard deviation over seeds\n\n"
    return title + _table(("model", "seeds", *METRICS), rows)


def _spread(values: tuple[float | None, ...]) -> str:
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "–"
    return f"{mean(known):.1f} ± {stdev(known):.1f}" if len(known) > 1 else f"{known[0]:.1f}"


def _runs(results: list[Result]) -> str:
    """Every run by itself, with what it cost."""
    rows = []
    for result in results:
        training = result.get("training", {})
        seed = training.get("recipe", {}).get("seed", "–")
        numbers = ["–" if value is None else f"{value:.2f}" for value in _values(result)]
        seconds = training.get("progress", {}).get("seconds")
        cost = f"{seconds:.0f} s on {training['device']}" if seconds else "–"
        parameters = f"{training['parameters'] / 1e6:.1f} M" if "parameters" in training else "–"
        rows.append(_row(result["model"], seed, *numbers, parameters, cost))
    signatures = sorted({result["scores"]["signature"] for result in results})
    signed = "".join(f"\nSignature: `{each}`\n" for each in signatures)
    taught = sorted({", ".join(result.get("training", {}).get("teachers", [])) for result in results} - {""})
    signed += "".join(
        f"\nTaught by {each}; where seeds share their teachers, the spread is over the student's seed alone.\n"
        for each in taught
    )
    return "### Run by run\n\n" + _table(("model", "seed", *METRICS, "parameters", "training"), rows) + signed


def _explored(explored: list[tuple[str, Result]]) -> str:
    """What was tried: the best dev scores of each run, and where it was cut off."""
    rows = []
    for name, run in sorted(explored, key=lambda each: -each[1]["progress"]["best"]):
        progress, planned = run["progress"], run["recipe"]["training"]["epochs"]
        history = progress["history"]
        done = f"{len(history)} of {planned}" if len(history) < planned else str(planned)
        bleu = max(event["bleu4"] for event in history)
        seconds = f"{progress['seconds']:.0f}"
        rows.append(_row(name, run["what"], done, f"{progress['best']:.1f}", f"{bleu:.1f}", seconds))
    head = ("run", "what is different", "epochs", "CIDEr", "BLEU-4", "seconds")
    text = (
        "## Tried on dev\n\nBest epoch of each run, one seed each, beam 5, length exponent 0.7. Several ran on one GPU "
        "at the same time, so the seconds compare with one another only roughly; runs with fewer epochs than planned "
        "were cut off when the time was up, so their scores are not final.\n\n"
    )
    return text + _table(head, rows)
