"""A folder of figures, one a picture."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, count
from pathlib import Path

from saywhy.decoding import Caption
from saywhy.files import whole_file


class Figures:
    """Names each figure after its picture; a second `dog.jpg`, from another folder, becomes `dog-2.png`.

    Args:
        folder: where they go.
        pictures: what is captioned; none of these is ever written over.
    """

    def __init__(self, folder: Path, pictures: Iterable[Path]) -> None:
        self.folder = folder
        self.taken = {_key(path) for path in pictures}

    def add(self, caption: Caption) -> None:
        """Draw a caption."""
        with whole_file(self._place(Path(caption.image).stem)) as part:
            caption.show().save(part, format="PNG")

    def _place(self, stem: str) -> Path:
        names = chain([stem], (f"{stem}-{number}" for number in count(2)))
        place = next(path for name in names if _key(path := self.folder / f"{name}.png") not in self.taken)
        self.taken.add(_key(place))
        return place


def _key(path: Path) -> str:
    return str(path.resolve()).casefold()  # some file systems take Dog.png and dog.png for one
