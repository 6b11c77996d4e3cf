"""What commands share: messages on stderr, images that are given, paths that are written."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING

from saywhy.errors import UserError
from saywhy.files import whole_file

if TYPE_CHECKING:
    from saywhy.decoding import Caption


def print_error(what: object) -> None:
    """Print one line that begins with the program's name, whatever is in the text."""
    print("saywhy:", " ".join(str(what).splitlines()), file=sys.stderr)


class Failures:
    """Complains of each fault, and counts them: a command goes on with what is left, and its exit code tells."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, fault: object) -> None:
        """Complain of one."""
        self.count += 1
        print_error(fault)

    @property
    def exit_code(self) -> int:
        """2 if there were any."""
        return 2 if self.count else 0


def readable_images(given: Iterable[str], skip: Callable[[UserError], None]) -> Iterator[Path]:
    """The images whose headers promise well; the others are told of before any model is loaded."""
    from saywhy.data.images import find_images, image_header

    for path in given:
        try:
            found = find_images([path])
        except UserError as error:
            skip(error)
            continue
        for image in found:
            try:
                image_header(image)
                yield image
            except UserError as error:
                skip(error)


class OutputPaths:
    """Names what is made of an image after it; a second `dog.jpg`, from another folder, becomes `dog-2`.

    Args:
        folder: where all of it goes.
        images: what it is made of; none of these is ever written over.
        ending: of the names.
        inside: the files in each place, where places are folders.
    """

    def __init__(self, folder: Path, images: Iterable[Path], ending: str = "", inside: Sequence[str] = ()) -> None:
        self.folder, self.ending, self.inside = folder, ending, inside
        self.taken = {_key(path) for path in images}

    def __call__(self, image: str) -> Path:
        """The place of this image, which no other gets."""
        stem = Path(image).stem
        stem = stem if stem.strip(".") else "image"  # "...jpg" would lead out of the folder
        names = chain([stem], (f"{stem}-{number}" for number in count(2)))
        place = next(path for name in names if self._is_free(path := self.folder / f"{name}{self.ending}"))
        self.taken.add(_key(place))
        return place

    def _is_free(self, path: Path) -> bool:
        written = {_key(each) for each in (path, *(path / name for name in self.inside))}
        return not (self.taken & written or (self.inside and path.is_file()))


def _key(path: Path) -> str:
    return str(path.resolve()).casefold()  # some file systems take Dog.png and dog.png for one


class Figures:
    """Names each figure after its image.

    Args:
        folder: where they go.
        images: what is captioned; none of these is ever written over.
    """

    def __init__(self, folder: Path, images: Iterable[Path]) -> None:
        self.places = OutputPaths(folder, images, ending=".png")

    def add(self, caption: Caption) -> None:
        """Draw a caption."""
        with whole_file(self.places(caption.source)) as part:
            caption.show().save(part, format="PNG")


def check_writable(option: str, path: Path | None, *, folder: bool = False) -> None:
    """Raise a `UserError` if no file (or folder) can be written at `path`; nothing is made yet."""
    if path is None:
        return
    if path.exists() and path.is_dir() != folder:
        there, wanted = ("a folder", "a file") if path.is_dir() else ("a file", "a folder")
        raise UserError(f"{option} {path}: is {there}, and should be {wanted}; choose another name")
    place = path if folder else path.parent
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        why = "permission denied" if place.is_dir() else "not a folder"
        raise UserError(f"{option} {path}: cannot be written ({place}: {why}); choose another place")
