"""What goes to stderr, a line each."""

from __future__ import annotations

import sys


def complain(what: object) -> None:
    """Print one line that begins with the program's name, whatever is in the text."""
    print("saywhy:", " ".join(str(what).splitlines()), file=sys.stderr)
