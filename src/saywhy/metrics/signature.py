"""A line beside every score that says how it came about, as sacrebleu does for translation (Post, 2018).

Tokeniser, split, beam and length rule move a captioning score as much as the model does: two scores can be
compared only if their signatures agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from saywhy.errors import UserError
from saywhy.provenance import saywhy_version


@dataclass(frozen=True)
class Signature:
    """What a score depends on; what is not known is left out of the text.

    >>> str(Signature(tok="ptb", refs=5, n=1000, split="test", decode="beam5", length=0.7, saywhy="0.1.0"))
    'tok:ptb|refs:5|n:1000|split:test|decode:beam5|length:0.7|saywhy:0.1.0'
    """

    tok: str | None = None  # the tokeniser; "given" for captions that came as words
    refs: int | str | None = None  # references an image, or "1-5" where it varies
    n: int | None = None  # images
    split: str | None = None
    decode: str | None = None  # greedy, beam5, ...
    length: float | str | None = None  # the length rule of the search
    case: str | None = None
    meteor: str | None = None
    spice: str | None = None
    java: str | None = None
    saywhy: str = field(default_factory=saywhy_version)

    def __post_init__(self) -> None:
        for name, value in self._parts():
            if "|" in str(value):
                raise UserError(f"a signature's parts are divided by |, so {name} cannot be {value!r}")

    def __str__(self) -> str:
        return "|".join(f"{name}:{value}" for name, value in self._parts())

    def _parts(self) -> list[tuple[str, object]]:
        pairs = [(part.name, getattr(self, part.name)) for part in fields(self)]
        return [(name, value) for name, value in pairs if value is not None]


def signature(**parts: object) -> str:
    """The text of a `Signature`.

    >>> signature(tok="ptb", refs="1-5", n=20, saywhy="0.1.0")
    'tok:ptb|refs:1-5|n:20|saywhy:0.1.0'
    """
    known = [part.name for part in fields(Signature)]
    if unknown := sorted(set(parts) - set(known)):
        raise UserError(f"a signature has no part {unknown[0]!r}; known: {', '.join(known)}")
    return str(Signature(**parts))  # type: ignore[arg-type]
