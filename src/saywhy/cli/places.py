"""Where that goes which is made of each picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, count
from pathlib import Path


class Places:
    """Names what is made of a picture after it; a second `dog.jpg`, from another folder, becomes `dog-2`.

    Args:
        folder: where all of it goes.
        pictures: what it is made of; none of these is ever written over.
        ending: of the names.
        inside: the files in each place, where places are folders.
    """

    def __init__(self, folder: Path, pictures: Iterable[Path], ending: str = "", inside: Sequence[str] = ()) -> None:
        self.folder, self.ending, self.inside = folder, ending, inside
        self.taken = {_key(path) for path in pictures}

    def __call__(self, picture: str) -> Path:
        """The place of this picture, which no other gets."""
        stem = Path(picture).stem
        stem = stem if stem.strip(".") else "picture"  # "...jpg" would lead out of the folder
        names = chain([stem], (f"{stem}-{number}" for number in count(2)))
        place = next(path for name in names if self._is_free(path := self.folder / f"{name}{self.ending}"))
        self.taken.add(_key(place))
        return place

    def _is_free(self, path: Path) -> bool:
        written = {_key(each) for each in (path, *(path / name for name in self.inside))}
        return not (self.taken & written or (self.inside and path.is_file()))


def _key(path: Path) -> str:
    return str(path.resolve()).casefold()  # some file systems take Dog.png and dog.png for one
