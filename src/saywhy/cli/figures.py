"""A folder of figures, one a picture."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from saywhy.cli.places import Places
from saywhy.decoding import Caption
from saywhy.files import whole_file


class Figures:
    """Names each figure after its picture.

    Args:
        folder: where they go.
        pictures: what is captioned; none of these is ever written over.
    """

    def __init__(self, folder: Path, pictures: Iterable[Path]) -> None:
        self.places = Places(folder, pictures, ending=".png")

    def add(self, caption: Caption) -> None:
        """Draw a caption."""
        with whole_file(self.places(caption.image)) as part:
            caption.show().save(part, format="PNG")
