"""Tables as plain data, the format of the numbers in them, and their Markdown.

Names of models, files and words come from users and may hold characters that Markdown or HTML read as markup. So
`markdown` escapes every cell and caption, except text of the type `Markdown`, which is markup on purpose.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from saywhy.files import printable
from saywhy.viz.method_styles import METHOD_STYLES

MISSING = "–"
UP, DOWN, NEITHER = 1, -1, 0  # whether higher or lower values of a column are better
ARROWS = {UP: " ↑", DOWN: " ↓", NEITHER: ""}
NARROW = 0.02  # an interval narrower than this is written with three digits
SPECIAL = re.compile(r"[\\`*|]|(?<!\w)_|_(?!\w)|~(?=~)|\](?=[(\[:])")
"""Characters that are markup; not `_` inside a word, nor brackets that cannot be a link."""
BAR = re.compile(r"(?<!\\)\|")  # ends a cell, also within code

Estimate = Mapping[str, Any]
"""value, low and high, each a number or None, and n, the number of words."""


class Markdown(str):
    """Text that is Markdown already."""

    __slots__ = ()


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        head: the title of each column.
        rows: the cells of each row.
        text_columns: the columns that hold text and are aligned left; the others hold numbers and are aligned right.
        caption: a line above the table.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[object]]
    text_columns: Collection[int] = (0,)
    caption: str = ""


def markdown(table: Table) -> str:
    """A table as Markdown.

    >>> print(markdown(Table(("model", "score"), [("a<b>", 1.5)])))
    | model | score |
    | --- | ---: |
    | a&lt;b> | 1.5 |
    <BLANKLINE>
    """
    rule = [Markdown("---" if column in table.text_columns else "---:") for column in range(len(table.head))]
    lines = [f"| {' | '.join(map(_cell, cells))} |" for cells in (table.head, rule, *table.rows)]
    caption = f"{escape_markdown(table.caption)}\n\n" if table.caption else ""
    return caption + "\n".join(lines) + "\n"


def _cell(content: object) -> str:
    return BAR.sub(r"\|", escape_markdown(content))


def escape_markdown(text: object) -> Markdown:
    """Plain text as Markdown on one line that shows the same characters; `Markdown` is returned unchanged.

    >>> print(escape_markdown("<b> *x* | a_b [0.1, 0.2] [x](y)"))
    &lt;b> \\*x\\* \\| a_b [0.1, 0.2] [x\\](y)
    """
    if isinstance(text, Markdown):
        return text
    line = SPECIAL.sub(lambda match: "\\" + match[0], printable(text))
    return Markdown(line.replace("&", "&amp;").replace("<", "&lt;"))


def bold(text: object) -> Markdown:
    """Text in bold."""
    return Markdown(f"**{escape_markdown(text)}**")


def code(text: str) -> Markdown:
    """Text in a code span, where only backticks are markup.

    >>> print(code("beam=3"), code("a`b"))
    `beam=3` `` a`b ``
    """
    line = printable(text)
    ticks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    pad = " " if "`" in line else ""
    return Markdown(f"{ticks}{pad}{line}{pad}{ticks}")


def decimal(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """A number with a true minus, or a dash if it is missing.

    >>> decimal(0.6022), decimal(-0.5, 2), decimal(0.5, sign=True), decimal(-0.0001), decimal(None)
    ('0.602', '−0.50', '+0.500', '0.000', '–')
    """
    if value is None:
        return MISSING
    value = round(value, digits) + 0.0  # no minus before a zero
    return f"{value:{'+' if sign and value else ''}.{digits}f}".replace("-", "−")


def value_of(estimate: Estimate | None) -> float | None:
    """The value of an estimate, without its interval."""
    return estimate["value"] if estimate else None


def estimate_text(estimate: Estimate | None, digits: int = 2, sign: bool = False) -> str:
    """A value and its interval; the interval has `digits` digits, or three if it is narrow.

    >>> estimate_text({"value": 0.602, "low": 0.571, "high": 0.633, "n": 9})
    '0.602 [0.57, 0.63]'
    >>> estimate_text({"value": 0.602, "low": 0.599, "high": 0.605, "n": 9}), estimate_text(None)
    ('0.602 [0.599, 0.605]', '–')
    """
    value = decimal(value_of(estimate), sign=sign)
    if not estimate or value == MISSING or estimate["low"] is None or estimate["high"] is None:
        return value
    digits = 3 if estimate["high"] - estimate["low"] < NARROW else digits
    return f"{value} [{decimal(estimate['low'], digits)}, {decimal(estimate['high'], digits)}]"


def word_count(estimates: Iterable[Estimate | None]) -> str:
    """How many words the estimates are based on, as a range if they differ; missing estimates do not count.

    >>> word_count([{"value": 0.5, "n": 1200}, {"value": None, "n": 0}])
    '1,200'
    >>> word_count([{"value": 1, "n": 3}, {"value": 1, "n": 4}])
    '3–4'
    """
    counts = sorted({estimate["n"] for estimate in estimates if estimate and estimate["value"] is not None})
    if not counts:
        return MISSING
    return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}–{counts[-1]:,}"


def bold_best(values: Sequence[float | None], cells: Sequence[str], better: int) -> list[str]:
    """The cells of a column with the best in bold, and all that equal it to three digits.

    >>> bold_best([0.1, None, 0.3], ["0.1", "–", "0.3"], UP)
    ['0.1', '–', '**0.3**']
    """
    known = [round(better * value, 3) for value in values if value is not None]
    if better == NEITHER or not known:
        return [*cells]
    best = [value is not None and round(better * value, 3) == max(known) for value in values]
    return [bold(cell) if is_best else cell for cell, is_best in zip(cells, best, strict=True)]


def in_order(methods: Iterable[str]) -> list[str]:
    """Methods in the order in which they are shown, unknown ones last.

    >>> in_order(["random", "other", "lrp"])
    ['lrp', 'random', 'other']
    """
    order = {method: position for position, method in enumerate(METHOD_STYLES)}
    return sorted(methods, key=lambda method: (order.get(method, len(order)), method))


def short_estimate(estimate: Estimate | None) -> str:
    """A value and its interval, for a terminal.

    >>> short_estimate({"value": 0.6022, "low": 0.57, "high": 0.634, "n": 9}), short_estimate(None)
    ('0.602 (0.57–0.63)', '–')
    """
    if not estimate or estimate["value"] is None:
        return MISSING
    return f"{estimate['value']:.3f} ({estimate['low']:.2f}–{estimate['high']:.2f})"


def method_table(
    methods: Mapping[str, Mapping[str, Estimate | None]],
    columns: Mapping[str, tuple[str, int]],
    caption: str = "",
    count: str = "words",
) -> Table:
    """One row per method and one column per estimate, then the number of words.

    `columns` maps the key of an estimate to the title of its column, and to whether higher values are better.
    """
    order = in_order(methods)
    cells = []
    for key, (_, better) in columns.items():
        estimates = [methods[method].get(key) for method in order]
        cells.append(bold_best([*map(value_of, estimates)], [*map(estimate_text, estimates)], better))
    counts = [word_count(methods[method].get(key) for key in columns) for method in order]
    head = ("method", *(title + ARROWS[better] for title, better in columns.values()), count)
    names = [METHOD_STYLES[method].name for method in order]
    return Table(head, [*zip(names, *cells, counts, strict=True)], caption=caption)


def value_table(
    title: str,
    rows: Mapping[str, Mapping[str, Estimate]],
    columns: Mapping[str, Sequence[object]] | None = None,
    caption: str = "",
) -> Table:
    """One row per name and one column per method: values without intervals. `columns` come before the methods."""
    order = in_order({method for row in rows.values() for method in row})
    columns = columns or {}
    head = (title, *columns, *(METHOD_STYLES[method].name for method in order))
    first_cells = zip(*columns.values(), strict=True) if columns else [()] * len(rows)
    cells = [
        (name, *first, *(decimal(value_of(row.get(method))) for method in order))
        for (name, row), first in zip(rows.items(), first_cells, strict=True)
    ]
    return Table(head, cells, caption=caption)
