"""The tables of audits, in Markdown: one function an audit, of one model's file."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhy.errors import UserError
from saywhy.explain.composites import DEFAULT
from saywhy.reports.markdown import MISSING, table
from saywhy.viz.colormap import LOOKS

Estimate = Mapping[str, Any]
"""value, low and high, each a number or None, and n."""

NAMES = {
    **{method: look.name for method, look in LOOKS.items()},
    "gradient": "Gradient",
    "gradient-size": "Unsigned gradient",
    "last": "Last three words",
    "random": "Random",
    "uniform": "Uniform",
}
ORDER = (
    *("lrp", "gradcam", "guided-gradcam", "guided-backprop", "gradient-input", "gradient", "gradient-size"),
    *("attention", "last", "random", "uniform"),
)
STATISTICS = ("quantile 5 %", "quantile 50 %", "max", "mean")
PUBLISHED = {
    "LRP": ("0.6022", "0.5821", "0.5168", "0.5798"),
    "Grad-CAM": ("0.5936", "0.5730", "0.5580", "0.5857"),
    "Guided Grad-CAM": ("0.4392", "0.5358", "0.5743", "0.4319"),
    "Guided backprop": ("0.4621", "0.5168", "0.5575", "0.4648"),
    "Attention": ("0.5598", "0.5136", "0.5169", "0.5308"),
}
"""Table II of Sun et al. 2021."""

UP, DOWN, NEITHER = 1, -1, 0  # which values of a column are the better ones
ARROWS = {UP: " ↑", DOWN: " ↓", NEITHER: ""}
NARROW = 0.02  # an interval narrower than this needs a third digit
_WRONG = (KeyError, TypeError, ValueError, AttributeError, IndexError)


@dataclass(frozen=True)
class Audit:
    """One file: what an audit found of one model."""

    path: Path
    body: dict[str, Any]

    @property
    def name(self) -> str:
        """Which audit it is."""
        return self.body["audit"]

    @property
    def model(self) -> str:
        """The model's name, with the rules of LRP and the split where these are not the usual ones."""
        rules, split = self.body.get("composite", DEFAULT), self.body.get("split", "test")
        told = [] if rules == DEFAULT else [f"{rules} rules"]
        return ", ".join([self.body["model"], *told, *([] if split == "test" else [split])])

    @property
    def not_applicable(self) -> str | None:
        """Why there are no numbers, where there are none."""
        return self.body.get("not_applicable")

    @contextlib.contextmanager
    def blamed(self) -> Iterator[None]:
        """What is missing from the file, or not what it should be, is said in one line that names the file."""
        try:
            yield
        except _WRONG as error:
            what = f"{type(error).__name__}: {error}"
            raise UserError(f"{self.path}: a damaged audit ({what}); run `saywhy audit` again") from error


def tables(audit: Audit) -> str:
    """All tables of a model's audit, with a line of what each is of."""
    return "\n".join(TABLES[audit.name](audit.body))


def checks(audits: Sequence[Audit]) -> str:
    """What was claimed and whether it holds, a claim a row and a model a column; nothing where nothing was claimed."""
    found: dict[str, dict[str, str]] = {}
    for audit in audits:
        with audit.blamed():
            for each in audit.body.get("checks") or ():
                told = f"{holds(each['holds'])} {estimate(each['difference'], digits=3, sign=True)}"
                found.setdefault(_named(each["claim"]), {})[audit.model] = told
    models = [audit.model for audit in audits]
    rows = [(claim, *(of.get(model, MISSING) for model in models)) for claim, of in found.items()]
    return table(("claim", *models), rows, words=range(len(models) + 1)) if rows else ""


def _named(claim: str) -> str:
    """A claim with methods called by their names, those apart whose keys are words.

    >>> _named("lrp lies inside more than attention")
    'LRP lies inside more than attention'
    """
    keys = sorted({*LOOKS, "gradient-size"} - {"attention"}, key=len, reverse=True)
    told = re.sub(rf"\b({'|'.join(keys)})\b", lambda key: NAMES[key[0]], claim)
    return told[:1].upper() + told[1:]


def holds(answer: bool | None) -> str:
    """A tick, a cross, or a dash where it could not be told.

    >>> holds(True), holds(False), holds(None)
    ('✓', '✗', '–')
    """
    return MISSING if answer is None else "✓" if answer else "✗"


def ordered(methods: Iterable[str]) -> list[str]:
    """Methods in the order they always have, those without a place last.

    >>> ordered(["random", "other", "lrp"])
    ['lrp', 'random', 'other']
    """
    return sorted(methods, key=lambda each: (ORDER.index(each) if each in ORDER else len(ORDER), each))


def name_of(method: str) -> str:
    """What people call a method."""
    return NAMES.get(method, method)


def value_of(found: Estimate | None) -> float | None:
    """The number itself."""
    return found["value"] if found else None


def decimal(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """A number with a true minus, or a dash where there is none.

    >>> decimal(0.6022), decimal(-0.5, 2), decimal(0.5, sign=True), decimal(-0.0001), decimal(None)
    ('0.602', '−0.50', '+0.500', '0.000', '–')
    """
    if value is None:
        return MISSING
    value = round(value, digits) + 0.0  # no minus before a zero
    return f"{value:{'+' if sign and value else ''}.{digits}f}".replace("-", "−")


def estimate(found: Estimate | None, digits: int = 2, sign: bool = False) -> str:
    """A number and its interval, which has `digits`, or three where two would hide how narrow it is.

    >>> estimate({"value": 0.602, "low": 0.571, "high": 0.633, "n": 9})
    '0.602 [0.57, 0.63]'
    >>> estimate({"value": 0.602, "low": 0.599, "high": 0.605, "n": 9}), estimate(None)
    ('0.602 [0.599, 0.605]', '–')
    """
    value = decimal(value_of(found), sign=sign)
    if not found or value == MISSING or found["low"] is None or found["high"] is None:
        return value
    digits = 3 if found["high"] - found["low"] < NARROW else digits
    return f"{value} [{decimal(found['low'], digits)}, {decimal(found['high'], digits)}]"


def words(found: Iterable[Estimate | None]) -> str:
    """Of how many words these numbers are, as a range where they differ; numbers there are none of do not count.

    >>> words([{"value": 0.5, "n": 1200}, {"value": None, "n": 0}]), words([{"value": 1, "n": 3}, {"value": 1, "n": 4}])
    ('1,200', '3–4')
    """
    counts = sorted({each["n"] for each in found if each and each["value"] is not None})
    if not counts:
        return MISSING
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}"


def bold_best(column: Sequence[float | None], cells: Sequence[str], better: int) -> list[str]:
    """The cells of a column, the best in bold: all those that look alike, and none where neither end is better.

    >>> bold_best([0.1, None, 0.3], ["0.1", "–", "0.3"], UP)
    ['0.1', '–', '**0.3**']
    """
    known = [round(better * value, 3) for value in column if value is not None]
    if better == NEITHER or not known:
        return [*cells]
    best = [value is not None and round(better * value, 3) == max(known) for value in column]
    return [f"**{cell}**" if is_best else cell for cell, is_best in zip(cells, best, strict=True)]


def _by_method(
    methods: Mapping[str, Mapping[str, Estimate | None]], columns: Mapping[str, tuple[str, int]], n: str = "words"
) -> str:
    """A row a method, a column a number. `columns`: its key ↦ its heading and which of its values are better."""
    order = ordered(methods)
    made = []
    for key, (_, better) in columns.items():
        found = [methods[each].get(key) for each in order]
        made.append(bold_best([*map(value_of, found)], [*map(estimate, found)], better))
    counts = [words(methods[each].get(key) for key in columns) for each in order]
    head = ("method", *(title + ARROWS[better] for title, better in columns.values()), n)
    return table(head, zip(map(name_of, order), *made, counts, strict=True))


def _values(
    corner: str, rows: Mapping[str, Mapping[str, Estimate]], more: Mapping[str, Sequence[object]] | None = None
) -> str:
    """A row a name, a column a method: numbers without intervals. `more`: further columns before them."""
    order = ordered({method for row in rows.values() for method in row})
    more = more or {}
    cells = [[decimal(value_of(row.get(method))) for method in order] for row in rows.values()]
    before = zip(*more.values(), strict=True) if more else [()] * len(rows)
    made = [(name, *first, *row) for name, first, row in zip(rows, before, cells, strict=True)]
    return table((corner, *more, *map(name_of, order)), made)


def _image_ablation(body: dict[str, Any]) -> Iterator[str]:
    side = body["patch"]
    yield f"{body['words']:,} object words; the {body['patches']} patches of {side} × {side} pixels masked.\n"
    yield _by_method(
        body["methods"], {"vanished": ("vanished", UP), "drop": ("mean drop of p", UP), "dropped": ("dropped", UP)}
    )
    curves = body.get("curves")
    if curves:
        yield f"Areas under the curves of {curves['words']:,} object words, one an image.\n"
        deletion, insertion = curves["deletion"], curves["insertion"]
        areas = {
            each: {"deletion": deletion.get(each, {}).get("area"), "insertion": insertion.get(each, {}).get("area")}
            for each in {**deletion, **insertion}
        }
        yield _by_method(areas, {"deletion": ("deletion", DOWN), "insertion": ("insertion", UP)})


def _word_ablation(body: dict[str, Any]) -> Iterator[str]:
    for key, title in (("object", "Object words"), ("stop", "Stop words")):
        part = body[key]
        yield f"{title}, {part['words']:,} of them.\n"
        yield _by_method(part["methods"], {"drop": ("mean drop of p", UP), "dropped": ("dropped", UP)})


def _localisation(body: dict[str, Any]) -> Iterator[str]:
    yield f"{body['words']:,} words with boxes.\n"
    columns = {
        "positive": ("positive inside", UP),
        "negative": ("negative inside", NEITHER),
        "pointing": ("highest inside", UP),
        "pointing_negative": ("lowest inside", NEITHER),
    }
    yield _by_method(body["methods"], columns)
    for key, title in (("by_kind", "kind"), ("by_size", "box")):
        if parts := body.get(key):
            more = {
                "words": [f"{part['words']:,}" for part in parts.values()],
                "area": [decimal(value_of(part["area"])) for part in parts.values()],
            }
            yield f"Positive relevance inside, by {'kind of thing' if key == 'by_kind' else 'size of the box'}.\n"
            yield _values(title, {name: part["methods"] for name, part in parts.items()}, more)
    if heads := body.get("heads"):
        yield f"Of the {heads['heads']} heads one by one, {heads['words']:,} words: positive relevance inside.\n"
        columns = {"best": ("best head", UP), "mean": ("mean of heads", UP), "all": ("all together", UP)}
        yield _by_method(heads["methods"], columns)
    if skipped := body.get("skipped"):
        yield f"Words left out: {', '.join(f'{why} {count:,}' for why, count in skipped.items())}.\n"


def _hallucination(body: dict[str, Any]) -> Iterator[str]:
    for key, title in (("frequent", "The most frequent object words"), ("every", "Every object word")):
        part = body[key]
        listed = f" ({', '.join(part['list'])})" if part.get("list") else ""
        yield f"{title}{listed}: {part['words']:,} said, {part['made_up']:,} of them made up.\n"
        yield _by_method(part["statistics"], {each: (each, UP) for each in STATISTICS})
        others = [(name, estimate(found), words([found])) for name, found in part["others"].items()]
        yield table(("not a map", "AUC ↑", "words"), others)
    if counts := most_said(body):
        each = [f"{row['word']} {row['made_up']:,} of {row['said']:,}" for row in counts]
        yield f"Made up, of how often it was said: {', '.join(each)}.\n"


def most_said(body: dict[str, Any], most: int = 20) -> list[dict[str, Any]]:
    """How often words were said and made up, of the most frequent ones."""
    return sorted(body.get("by_word") or (), key=lambda row: (-row["said"], row["word"]))[:most]


def published() -> str:
    """What the LRP paper found of hallucination."""
    columns = [bold_best([*map(float, column)], column, UP) for column in zip(*PUBLISHED.values(), strict=True)]
    text = (
        "## Published, for comparison\n\nNot measured here: Table II of Sun et al. 2021, Ada-LSTM on Flickr30K, the 20 "
        "most frequent object words, 1,027 true and 715 made up. There 1 − β has an AUC of 0.6005.\n\n"
    )
    return text + table(("method", *STATISTICS), zip(PUBLISHED, *columns, strict=True))


def _risk(body: dict[str, Any]) -> Iterator[str]:
    fitted, crossed = body["fitted_on"], body["cross_validated"] or {}
    head = ("images of", "words", "made up", "AUC ↑", "ECE ↓")
    counts = [[f"{part['words']:,}", f"{part['made_up']:,}"] for part in (fitted, body)]
    yield f"Fitted on {fitted['images']:,} images of {fitted['split']}, where it is cross-validated.\n"
    yield table(
        head,
        [
            (body["split"], *counts[1], estimate(body["auc"]), decimal(body["ece"])),
            (
                f"{fitted['split']}, cross-validated",
                *counts[0],
                decimal(crossed.get("auc")),
                decimal(crossed.get("ece")),
            ),
        ],
    )
    yield "The facts it is made of, the heaviest first.\n"
    weights, alone = body["weights"], body["alone"]
    facts = sorted(weights, key=lambda fact: (-abs(weights[fact] or 0), fact))
    cells = [estimate(alone.get(fact)) for fact in facts]
    bold = bold_best([value_of(alone.get(fact)) for fact in facts], cells, UP)
    signed = [decimal(weights[fact], 2, sign=True) for fact in facts]
    yield table(("fact", "weight", "AUC alone ↑"), zip(facts, signed, bold, strict=True))
    yield "Predicted and true, by how high the risk was said to be.\n"
    bins = [(decimal(said), decimal(true), f"{count:,}") for said, true, count in body["calibration"]]
    yield table(("mean predicted", "share made up", "words"), bins, words=())


def _sanity(body: dict[str, Any]) -> Iterator[str]:
    altered = body["altered"]
    yield f"{altered['words']:,} words of {altered['images']:,} images. Randomised down to:\n"
    yield _values("down to", {stage["down_to"]: stage["methods"] for stage in body["randomised"]})
    columns = {"constant_shift": ("shifted", UP), "moved": ("moved", UP), "two_words": ("two words", DOWN)}
    parts = {key: body.get(key) or {} for key in columns}
    every = {method for part in parts.values() for method in part}
    yield "The trained model's own maps.\n"
    yield _by_method({each: {key: part.get(each) for key, part in parts.items()} for each in every}, columns, "n")


TABLES: dict[str, Callable[[dict[str, Any]], Iterator[str]]] = {
    "image-ablation": _image_ablation,
    "word-ablation": _word_ablation,
    "localisation": _localisation,
    "hallucination": _hallucination,
    "risk": _risk,
    "sanity": _sanity,
}
"""Audits in the order of their pages, and what makes the tables of each."""


def made(audits: Iterable[Audit]) -> str:
    """How each model's numbers came about."""
    rows = []
    for audit in audits:
        with audit.blamed():
            body = audit.body
            said = body["caption_words"]
            threads = f", {body['threads']} threads" if body.get("threads") and body["device"].endswith("CPU") else ""
            rows.append(
                (
                    *(body["model"], f"{body['captioner']} over {body['encoder']}", f"{body['data']} {body['split']}"),
                    *(f"{body['images']:,}", f"{said:,}", f"`{body['decoding']}`"),
                    *(body["composite"], f"{body['device']}{threads}", body.get("commit") or MISSING),
                )
            )
    head = ("model", "what it is", "data", "images", "words", "decoding", "LRP", "device", "commit")
    return table(head, rows, words=(0, 1, 2, 5, 6, 7, 8))
