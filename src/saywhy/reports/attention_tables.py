"""Where captioners look, and what their gates let in: tables of the "attentions" of results files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from saywhy.reports.markdown import MISSING, number, table
from saywhy.reports.results_files import Model, spread

ENDS = ("lowest", "highest")
FEW = 5
ATTENTION = (
    "Over all words of the freely decoded captions, heads averaged. Entropy is in nats; its share of log L is 1 where "
    "all L places are looked at alike. Change is the total variation between the α of a word and of the next, 0 to 1.\n"
)
WORDS = (
    "β is the share of what is known from the words alone, the sentinel's: low where the model looks, high where it "
    "recalls.\n"
)
IMAGE = "β lets the image in: low where it is hardly used. The five words at either end, with their mean β.\n"


def attention(found: Sequence[Model]) -> str:
    """A row a model that has attentions; nothing if none has."""
    head = ("model", "places", "entropy", "share of log L", "change", "largest α")
    rows = [
        (model.name, _places(model), *(_spread(model, name) for name in ("entropy", "share", "change", "largest")))
        for model in found
        if _glances(model)
    ]
    return f"### Attention\n\n{ATTENTION}\n{table(head, rows)}" if rows else ""


def gates(found: Sequence[Model]) -> str:
    """The words with the lowest and the highest mean β, at length where β admits the words; nothing if none has β."""
    gated = [model for model in found if any(each.get("gate") for each in _glances(model))]
    at_length = [model for model in gated if _first(model)["gate_admits"] == "words"]
    others = [model for model in gated if model not in at_length]
    parts = [_at_length(model) for model in at_length] + ([_briefly(others)] if others else [])
    if not parts:
        return ""
    gate = _first(gated[0])["gate"]
    said = f"Mean β of words that were said at least {gate['least']} times, of one seed where there are several.\n"
    return "\n".join(["### What the gate says\n", said, *parts])


def _glances(model: Model) -> list[dict[str, Any]]:
    return [run["attentions"] for run in model.runs if run.get("attentions")]


def _first(model: Model) -> dict[str, Any]:
    return next(each for each in _glances(model) if each.get("gate"))


def _places(model: Model) -> str:
    """L; with a decimal where images have different numbers of regions."""
    found = [each["places"] for each in _glances(model)]
    whole = all(value is not None and value == round(value) for value in found)
    return number(found[0], 0) if whole and len(set(found)) == 1 else spread(found)


def _spread(model: Model, name: str) -> str:
    return spread([each[name] for each in _glances(model)], digits=2)


def _at_length(model: Model) -> str:
    gate = _first(model)["gate"]
    lowest, highest = ([*map(_cells, gate[end])] for end in ENDS)
    length = max(len(lowest), len(highest))
    padded = [[*rows, *[("", "", "")] * (length - len(rows))] for rows in (lowest, highest)]
    rows = [(*low, *high) for low, high in zip(*padded, strict=True)]
    body = table(("lowest", "β", "said", "highest", "β", "said"), rows, words=(0, 3))
    common = [f"{each['word']} {number(each['beta'], 2)}" for each in gate.get("commonest", [])]
    after = f"\nThe words said most often: {', '.join(common)}.\n" if common else ""
    return f"**{model.name}**, mean β {number(gate['mean'], 2)}. {WORDS}\n{body}{after}"


def _cells(word: dict[str, Any]) -> tuple[str, str, str]:
    return word["word"], number(word["beta"], 2), str(word["count"])


def _briefly(found: Sequence[Model]) -> str:
    rows = []
    for model in found:
        gate = _first(model)["gate"]
        ends = [", ".join(f"{each['word']} {each['beta']:.2f}" for each in gate[end][:FEW]) for end in ENDS]
        rows.append((model.name, *(each or MISSING for each in ends), number(gate["mean"], 2)))
    return IMAGE + "\n" + table(("model", "lowest", "highest", "mean β"), rows, words=(0, 1, 2))
