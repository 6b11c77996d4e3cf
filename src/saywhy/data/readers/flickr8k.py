"""Flickr8k (Hodosh, Young and Hockenmaier 2013), as its authors and as others hand it out.

Captions are in `captions.txt` (CSV with the header `image,caption`) or in the authors' `Flickr8k.token.txt`
(`name.jpg#0<TAB>caption`), images in `Images/` or `Flicker8k_Dataset/` [sic], the official splits in
`Flickr_8k.{train,dev,test}Images.txt`; the text files may be in `Flickr8k_text/`.
"""

from __future__ import annotations

from pathlib import Path

from saywhy.data.datasets import Dataset, readers
from saywhy.data.images import IMAGE_SUFFIXES
from saywhy.data.readers.common import Spoken, find_image_folder, gather, listed_splits, read_text
from saywhy.data.readers.tables import read_table
from saywhy.data.splits import SPLITS
from saywhy.errors import UserError

_TEXT_FOLDERS = ("", "Flickr8k_text")
_IMAGE_FOLDERS = ("Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "images", "")


@readers.register("flickr8k")
class Flickr8k:
    """The official splits; 91 of the 8,091 images are in none."""

    layout = "captions.txt or Flickr8k.token.txt with Flickr_8k.trainImages.txt"

    def recognises(self, root: Path, captions: Path | None = None) -> bool:
        """Look for the split files and, unless it was named, the captions."""
        there = captions or _captions(root)
        return there is not None and there.suffix == ".txt" and bool(_split_files(root))

    def read(self, root: Path, captions: Path | None = None, image_folder: Path | None = None) -> Dataset:
        """Read captions in the order of the file, #0 to #4."""
        captions = captions or _captions(root)
        lists = _split_files(root)
        if captions is None or not lists:
            raise UserError(f"{root}: not Flickr8k; wanted {self.layout}")
        spoken, notes = _spoken(captions)
        names = list(dict.fromkeys(name for name, _ in spoken))
        folder = find_image_folder(root, image_folder, _IMAGE_FOLDERS, names)
        splits, more = listed_splits(lists, names)
        return gather(
            root,
            spoken,
            split=lambda name: splits.get(name, ""),
            place=lambda name: folder / name,
            notes=[*notes, *more],
        )


def _text_file(root: Path, *names: str) -> Path | None:
    paths = [root / folder / name for folder in _TEXT_FOLDERS for name in names]
    return next(filter(Path.is_file, paths), None)


def _captions(root: Path) -> Path | None:
    return _text_file(root, "captions.txt", "Flickr8k.token.txt")


def _split_files(root: Path) -> dict[str, Path]:
    paths = {split: _text_file(root, f"Flickr_8k.{split}Images.txt") for split in SPLITS}
    return {split: path for split, path in paths.items() if path}


def _spoken(captions: Path) -> tuple[list[Spoken], list[str]]:
    if "token" not in captions.name:
        return [(row.image, caption) for row in read_table(captions) for caption in row.captions], []
    lines = read_text(captions).splitlines()
    spoken = [_token(captions, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    # The authors' file has one name that ends in ".jpg.1"; no such image was ever handed out.
    kept = [(name, caption) for name, caption in spoken if Path(name).suffix.lower() in IMAGE_SUFFIXES]
    left = len(spoken) - len(kept)
    return kept, [f"{captions.name}: captions left out, their name being no image's: {left}"] if left else []


def _token(path: Path, number: int, line: str) -> Spoken:
    tag, tab, caption = line.partition("\t")
    name, hash_sign, _ = tag.rpartition("#")
    if not tab or not hash_sign:
        raise UserError(f"{path}: line {number}: wanted name.jpg#0, a tab and the caption")
    return name, caption
