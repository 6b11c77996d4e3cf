"""The page of measured numbers, made from results files and never typed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from saywhy.errors import UserError
from saywhy.reports.attention_tables import attention, gates
from saywhy.reports.markdown import MISSING, table
from saywhy.reports.results_files import Model, Result, models, read_recipes, read_results
from saywhy.reports.score_tables import captioners, encoder_study

HEAD = """# Results

Made by `saywhy results` from the files in `results/`; do not edit. Percent throughout. Captions are freely
decoded, the vocabulary comes from the training captions alone, and everything was chosen on dev; where the test
split was looked at more than once, `results/README.md` says so.

B1–B4 are BLEU-1 to BLEU-4, and with ′ the same without brevity penalty; par. M is millions of parameters, train s
seconds of training, cap/s captions a second.
"""
PUBLISHED = """## Published, for comparison

Not measured here. Show, attend and tell (Xu et al. 2015) on Flickr8k, BLEU without brevity penalty.

| | BLEU-1 | BLEU-2 | BLEU-3 | BLEU-4 | METEOR |
| --- | ---: | ---: | ---: | ---: | ---: |
| soft attention, VGG-19 | 67.0 | 44.8 | 29.9 | 19.5 | 18.93 |
| hard attention, VGG-19 | 67.0 | 45.7 | 31.4 | 21.3 | 20.30 |
"""


def page(folder: Path, recipes: Path | None = None) -> str:
    """All of it, as Markdown. `recipes` is the folder of recipes; left out, it is the one beside, if there is one."""
    scored = [result for _, result in read_results(folder, "*.json")]
    explored = read_results(folder, "explored/*.json")
    if not scored:
        raise UserError(f"{folder}: no results; `saywhy evaluate --out {folder}/NAME.json` writes one")
    beside = folder.resolve().parent / "recipes"
    files = read_recipes(recipes or beside) if recipes or beside.is_dir() else {}
    splits: dict[tuple[str, str], list[Result]] = defaultdict(list)
    for result in scored:
        splits[result["data"], result["split"]].append(result)
    parts = [HEAD]
    for (data, split), results in sorted(splits.items(), key=_test_first):
        parts += [f"## {data} {split}\n", *_split(models(results), files, complete=split != "dev")]
    parts += [PUBLISHED]
    if explored:
        parts.append(_explored(explored))
    return "\n".join(parts)


def _test_first(item: tuple[tuple[str, str], list[Result]]) -> tuple[str, bool, str]:
    (data, split), _ = item
    return data, split == "dev", split


def _split(found: list[Model], files: dict[str, str], complete: bool) -> list[str]:
    """The sections of one split; what has nothing to say is left out."""
    study = [model for model in found if model.in_study]
    others = [model for model in found if not model.in_study]
    parts = [
        captioners(others, files) if others else "",
        encoder_study(study, files, complete) if study else "",
        attention(found),
        gates(found),
    ]
    return [part for part in parts if part]


def _explored(explored: list[tuple[str, Result]]) -> str:
    """What was tried: the best dev scores of each run, and where it was cut off."""
    rows: list[Sequence[object]] = []
    for name, run in sorted(explored, key=lambda each: -each[1]["progress"]["best"]):
        progress, planned = run["progress"], run["recipe"]["training"]["epochs"]
        history = progress["history"]
        last = history[-1]["epoch"]
        done = f"{last} of {planned}" if last < planned else str(planned)
        bleu = max(event["bleu4"] for event in history)
        length = run["recipe"].get("decoding", {}).get("length", MISSING)
        seconds = f"{progress['seconds']:.0f}"
        rows.append((name, run["what"], done, length, f"{progress['best']:.1f}", f"{bleu:.1f}", seconds))
    head = ("run", "what is different", "epochs", "length", "CIDEr", "BLEU-4", "seconds")
    text = (
        "## Tried on dev\n\nBest epoch of each run, one seed each, beam 5; length is the exponent it was decoded with, "
        "and runs with another one do not compare. Several ran on one GPU at the same time, so the seconds compare "
        "with one another only roughly; runs with fewer epochs than planned were cut off when the time was up, so "
        "their scores are not final.\n\n"
    )
    return text + table(head, rows, words=(0, 1))
