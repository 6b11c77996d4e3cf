"""The main numbers of an audit, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from saywhy.reports.audit_tables import NAMES
from saywhy.reports.markdown import MISSING

Body = Mapping[str, Any]
Rows = tuple[Sequence[str], Sequence[Sequence[str]]]


def summary(result: Body) -> Rows:
    """Head and rows of the table an audit is told in."""
    return _SUMMARIES[result["audit"]](result)


def _short(estimate: Body | None) -> str:
    """An estimate with its interval.

    >>> _short({"value": 0.6022, "low": 0.57, "high": 0.634, "n": 9})
    '0.602 (0.57–0.63)'
    """
    if estimate is None or estimate["value"] is None:
        return MISSING
    return f"{estimate['value']:.3f} ({estimate['low']:.2f}–{estimate['high']:.2f})"


def _image_ablation(told: Body) -> Rows:
    curves = told["curves"]
    head = (f"{told['words']:,} words", "vanished", "drop of p", "deletion area ↓", "insertion area ↑")
    rows = []
    for method, each in told["methods"].items():
        areas = [curves[which][method]["area"] for which in ("deletion", "insertion")]
        rows.append((NAMES[method], *map(_short, (each["vanished"], each["drop"], *areas))))
    return head, rows


def _word_ablation(told: Body) -> Rows:
    kinds = [told["object"], told["stop"]]
    names = [f"{each['words']:,} {name} words" for each, name in zip(kinds, ("object", "stop"), strict=True)]
    head = ("drop of p, share that drops", names[0], "", names[1], "")
    rows = [
        (NAMES[method], *(_short(each["methods"][method][what]) for each in kinds for what in ("drop", "dropped")))
        for method in kinds[0]["methods"]
    ]
    return head, rows


def _localisation(told: Body) -> Rows:
    head = (f"{told['words']:,} words", "for it, inside", "against it, inside", "highest inside")
    rows = [
        (NAMES[method], *(_short(each[what]) for what in ("positive", "negative", "pointing")))
        for method, each in told["methods"].items()
    ]
    for method, each in (told["heads"] or {"methods": {}})["methods"].items():
        rows.append((f"{NAMES[method]}, best head", _short(each["best"]), "", ""))
    return head, rows


def _hallucination(told: Body) -> Rows:
    of = told["frequent"] if told["frequent"]["words"] else told["every"]
    statistics = next(iter(of["statistics"].values()))
    head = (f"AUC, {of['words']:,} words, {of['made_up']:,} made up", *statistics)
    rows: list[Sequence[str]] = [(NAMES[m], *map(_short, each.values())) for m, each in of["statistics"].items()]
    return head, rows + [(name, _short(each), *[""] * (len(statistics) - 1)) for name, each in of["others"].items()]


def _risk(told: Body) -> Rows:
    fitted = told["fitted_on"]
    return ("", "AUC", "calibration error", "words", "made up", "fitted on"), [
        (
            "risk",
            _short(told["auc"]),
            f"{told['ece']:.3f}",
            f"{told['words']:,}",
            f"{told['made_up']:,}",
            " ".join(str(fitted[name]) for name in ("data", "split") if name in fitted) or MISSING,
        )
    ]


def _sanity(told: Body) -> Rows:
    levels = told["randomised"]
    head = ("rank correlation", *(each["down_to"] for each in levels), "constant shift", "moved", "two words")
    tables = [*(each["methods"] for each in levels), told["constant_shift"], told["moved"], told["two_words"]]
    return head, [(NAMES[m], *(_value(table[m]) for table in tables)) for m in levels[0]["methods"]]


def _value(estimate: Body) -> str:
    return MISSING if estimate["value"] is None else f"{estimate['value']:.2f}"


_SUMMARIES = {
    "image-ablation": _image_ablation,
    "word-ablation": _word_ablation,
    "localisation": _localisation,
    "hallucination": _hallucination,
    "risk": _risk,
    "sanity": _sanity,
}
