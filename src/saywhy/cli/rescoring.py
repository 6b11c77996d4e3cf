"""`saywhy evaluate --rescore`: the scores of a results file once more, where Java is at hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from saywhy.cli.evaluating import Said, measured, scores
from saywhy.data.datasets import Dataset
from saywhy.errors import UserError
from saywhy.files import write_text
from saywhy.metrics.score import Scores

NEAR = 0.01  # percent; sums in another order differ by far less, one other caption by more
JAVAS = ("meteor", "spice")


def rescore(path: Path, said: Said, data: Dataset, meteor: bool) -> tuple[Said, Scores]:
    """Score captions and write the scores into the results file of the evaluation they come from.

    Nothing else of the file changes. Captions that do not give the file's own BLEU and CIDEr are refused, and so are
    scores that lack what the file has.
    """
    table = _read(path)
    here = {"data": data.name, "split": data.images[0].split}
    for key, value in here.items():
        if table[key] != value:
            raise UserError(f"{path}: its {key} is {table[key]}, and these captions are scored on {value}")
    said = replace(said, source=table["model"], decoding=table["decoding"])
    result = scores(said, data, meteor)
    _compare(path, table["scores"], measured(result))
    write_text(path, json.dumps({**table, "scores": measured(result)}, indent=2) + "\n")
    return said, result


def _read(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
        texts = [table[key] for key in ("model", "data", "split", "decoding")]
        numbers = [table["scores"]["cider"], *_bleus(table["scores"])]
        if not all(isinstance(each, str) for each in texts) or not all(
            isinstance(each, float | int) for each in numbers
        ):
            raise TypeError
        return table
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: not a results file, as `saywhy evaluate --out` writes them") from None


def _bleus(scored: dict[str, Any]) -> list[float]:
    both = [*scored["bleu"], *scored["bleu_no_penalty"]]
    if len(both) != 8:
        raise ValueError
    return both


def _compare(path: Path, old: dict[str, Any], new: dict[str, Any]) -> None:
    names = ["CIDEr", *(f"BLEU-{n}" for n in range(1, 5)), *(f"BLEU-{n} without penalty" for n in range(1, 5))]
    pairs = zip([old["cider"], *_bleus(old)], [new["cider"], *_bleus(new)], strict=True)
    for name, (was, now) in zip(names, pairs, strict=True):
        if not abs(was - now) <= NEAR:  # so that NaN is refused, too
            raise UserError(
                f"{path}: its {name} is {was:.2f} and that of these captions {now:.2f}: they are not its own"
            )
    for name in JAVAS:
        if old.get(name) is not None and new[name] is None:
            raise UserError(f"{path}: has {name.upper()}, which could not be had now; it is left as it was")
