"""A line beside every score that lists the settings it depends on, as sacrebleu has for translation (Post, 2018).

Tokeniser, split, beam width and length penalty change a captioning score as much as the model does: two scores can
be compared only if their signatures agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from saywhy.errors import UserError, did_you_mean
from saywhy.provenance import saywhy_version


@dataclass(frozen=True)
class Signature:
    """The settings that a score depends on; those that are None are left out of the text.

    >>> str(Signature(tok="ptb", refs=5, n=1000, split="test", decode="beam5", length=0.7, saywhy="0.1.0"))
    'tok:ptb|refs:5|n:1000|split:test|decode:beam5|length:0.7|saywhy:0.1.0'
    """

    tok: str | None = None  # tokeniser; "given" for captions that were given as words
    refs: int | str | None = None  # references per image, or "1-5" if their number varies
    n: int | None = None  # number of images
    split: str | None = None
    decode: str | None = None  # decoding settings: greedy, beam5, ...
    length: float | str | None = None  # length penalty
    case: str | None = None
    meteor: str | None = None
    spice: str | None = None
    java: str | None = None
    saywhy: str = field(default_factory=saywhy_version)

    def __post_init__(self) -> None:
        for name, value in self._parts():
            if "|" in str(value):
                raise UserError(f"signature: {name} cannot be {value!r}, because | separates its parts")

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
        raise UserError(f"signature: unknown part {unknown[0]!r}: {did_you_mean(unknown[0], known)}")
    return str(Signature(**parts))  # type: ignore[arg-type]
