"""What goes to stderr, a line each."""

from __future__ import annotations

import sys


def complain(what: object) -> None:
    """Print one line that begins with the program's name, whatever is in the text."""
    print("saywhy:", " ".join(str(what).splitlines()), file=sys.stderr)


class Faults:
    """Complains of each fault, and counts them: a command goes on with what is left, and its exit code tells."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, fault: object) -> None:
        """Complain of one."""
        self.count += 1
        complain(fault)

    @property
    def exit_code(self) -> int:
        """2 if there were any."""
        return 2 if self.count else 0
