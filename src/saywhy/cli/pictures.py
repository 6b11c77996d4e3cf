"""Pictures that a command is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from saywhy.errors import UserError


def fit_to_open(given: Iterable[str], skip: Callable[[UserError], None]) -> Iterator[Path]:
    """The pictures whose headers promise well; the others are told of before any model is loaded."""
    from saywhy.data.pictures import find_pictures, picture_header

    for path in given:
        try:
            found = find_pictures([path])
        except UserError as error:
            skip(error)
            continue
        for picture in found:
            try:
                picture_header(picture)
                yield picture
            except UserError as error:
                skip(error)
