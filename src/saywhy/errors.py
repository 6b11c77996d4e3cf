"""Errors that a user can fix, and text that is safe to print."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

# C0 and C1 control characters, DEL, line and paragraph separators, bidirectional overrides and isolates
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class UserError(Exception):
    """A mistake that the user can fix: one line with what is wrong, where, and what to do.

    The command line prints the line and exits with code 2; a program can catch the exception.
    """


class UnreadableImage(UserError):
    """An image that cannot be read. Commands over many images report it and continue without it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an "unknown name" message: the most similar known name, then all of them.

    >>> did_you_mean("beem", ["beam", "greedy"])
    'did you mean "beam"? Known: beam, greedy'
    """
    known = sorted(known)
    similar = difflib.get_close_matches(name, known, n=1)
    hint = f'did you mean "{similar[0]}"? ' if similar else ""
    return f"{hint}Known: {', '.join(known)}"


def printable(text: object) -> str:
    r"""Text from a file name or a vocabulary, with control characters as visible escapes: safe for a terminal.

    Escape sequences cannot change the terminal, a line break cannot start a line of its own, and bidirectional
    overrides cannot reorder what is shown.

    >>> print(printable("photo\n\x1b[31m.jpg"))
    photo\n\x1b[31m.jpg
    """
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], str(text))
