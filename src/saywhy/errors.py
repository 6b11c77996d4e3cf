"""Errors that a user can fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake that the user can fix: one line with what is wrong, where, and what to do.

    The command line prints the line and exits with code 2; a program can catch the exception.
    """


class UnreadableImage(UserError):
    """An image that cannot be read. Commands over many images report it and continue without it."""


class ImageTooLarge(UnreadableImage):
    """An image with more bytes or pixels than are read."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an "unknown name" message: the most similar known name, then all of them.

    >>> did_you_mean("beem", ["beam", "greedy"])
    'did you mean "beam"? Known: beam, greedy'
    >>> did_you_mean("haiku", ["coco"])
    'known: coco'
    """
    known = sorted(known)
    similar = difflib.get_close_matches(name, known, n=1)
    names = ", ".join(known)
    return f'did you mean "{similar[0]}"? Known: {names}' if similar else f"known: {names}"
