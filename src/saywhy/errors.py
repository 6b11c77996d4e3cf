"""What goes wrong by a user's hand, said in one line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake the user can mend: what is wrong, with what, and what to do.

    The command line prints its one line and exits with code 2; a program may catch it.
    """


class UnreadableImage(UserError):
    """An image that cannot be read; data sets name it, skip it and count it."""


def closest(word: str, known: Iterable[str]) -> str:
    """Name what is known, the nearest first: the tail of an "unknown …" message.

    >>> closest("beem", ["beam", "greedy"])
    'did you mean "beam"? Known: beam, greedy'
    """
    known = sorted(known)
    near = difflib.get_close_matches(word, known, n=1)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    return f"{hint}Known: {', '.join(known)}"
