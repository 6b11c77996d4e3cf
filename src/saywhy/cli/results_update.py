"""New scores in a results file of `saywhy evaluate --out`, if they are those of the captions that it is about."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from saywhy.errors import UserError

TOLERANCE = 0.01  # percent; summing in another order differs by far less, one other caption by more


def read_results(path: Path, data: str, split: str) -> dict[str, Any]:
    """A results file of this split; a `UserError` if it is another file, or of other data."""
    from saywhy.files import read_json

    results: dict[str, Any] = read_json(path)
    if not _is_results(results):
        raise UserError(f"{path}: not a results file, as `saywhy evaluate --out` writes them")
    for key, value in {"data": data, "split": split}.items():
        if results[key] != value:
            raise UserError(f"{path}: its {key} is {results[key]}, and these captions are scored on {value}")
    return results


def update_results(path: Path, results: dict[str, Any], scores: dict[str, Any], others: dict[str, Any]) -> None:
    """Write new scores into the file; nothing else in it changes.

    Captions that do not give the file's own BLEU and CIDEr are refused, and so are scores that lack a metric it has.
    """
    from saywhy.files import write_text

    _compare(path, results["scores"], scores)
    write_text(path, json.dumps({**results, "scores": scores, **others}, indent=2) + "\n")


def _is_results(results: Any) -> bool:
    try:
        texts = [results[key] for key in ("model", "data", "split", "decoding")]
        numbers = _ngram_scores(results["scores"]).values()
    except (KeyError, TypeError, ValueError):
        return False
    return all(isinstance(text, str) for text in texts) and all(isinstance(value, float | int) for value in numbers)


def _ngram_scores(scores: dict[str, Any]) -> dict[str, float]:
    """The scores that every evaluation has, by name."""
    names = ["CIDEr", *(f"BLEU-{n}" for n in range(1, 5)), *(f"BLEU-{n} without penalty" for n in range(1, 5))]
    return dict(zip(names, [scores["cider"], *scores["bleu"], *scores["bleu_no_penalty"]], strict=True))


def _compare(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    """Raise a `UserError` where the new scores show that the captions are not those of the results file."""
    for (name, before), after in zip(_ngram_scores(old).items(), _ngram_scores(new).values(), strict=True):
        if not abs(before - after) <= TOLERANCE:  # so that NaN is refused, too
            raise UserError(
                f"{path}: its {name} is {before:.2f}, and that of these captions {after:.2f}: "
                "they are not the captions of this file"
            )
    for metric, advice in {"meteor": "leave --no-meteor out", "spice": "add --spice"}.items():
        if old.get(metric) is not None and new[metric] is None:
            name = metric.upper()
            raise UserError(f"{path}: has {name}, which was not computed now ({advice}); the file is unchanged")
