"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

MISSING = "–"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], words: Collection[int] = (0,)) -> str:
    """A table whose columns `words` are text and stand left, and whose others are numbers and stand right.

    >>> print(table(("model", "score"), [("a", 1.5)]))
    | model | score |
    | --- | ---: |
    | a | 1.5 |
    <BLANKLINE>
    """
    rule = ["---" if column in words else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in (head, rule, *rows)) + "\n"


def number(value: float | None, digits: int = 1) -> str:
    """A number, or a dash where there is none.

    >>> number(6.25), number(None)
    ('6.2', '–')
    """
    return MISSING if value is None else f"{value:.{digits}f}"
