"""Flickr8k (Hodosh, Young and Hockenmaier 2013), as its authors and as others distribute it.

Captions are in `captions.txt` (CSV with the header `image,caption`) or in the authors' `Flickr8k.token.txt`
(`name.jpg#0<TAB>caption`), images in `Images/` or `Flicker8k_Dataset/` [sic], the official splits in
`Flickr_8k.{train,dev,test}Images.txt`; the text files may be in `Flickr8k_text/`.
"""

from __future__ import annotations

from pathlib import Path

from saywhy.data.datasets import SPLITS, Dataset, readers
from saywhy.data.images import IMAGE_SUFFIXES
from saywhy.data.readers.common import NamedCaption, find_image_folder, group_by_image, read_split_lists, read_table
from saywhy.errors import UserError
from saywhy.files import read_text

_TEXT_FOLDERS = ("", "Flickr8k_text")
_IMAGE_FOLDERS = ("Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "images", "")


@readers.register("flickr8k")
class Flickr8k:
    """The official splits; 91 of the 8,091 images are in none."""

    layout = "captions.txt or Flickr8k.token.txt with Flickr_8k.trainImages.txt"

    def recognises(self, root: Path, captions: Path | None = None) -> bool:
        """By the split files and a captions file."""
        path = captions or _captions_file(root)
        return path is not None and path.suffix == ".txt" and bool(_split_files(root))

    def read(self, root: Path, captions: Path | None = None, image_folder: Path | None = None) -> Dataset:
        """Read captions in the order of the file, #0 to #4."""
        captions = captions or _captions_file(root)
        lists = _split_files(root)
        if captions is None or not lists:
            raise UserError(f"{root}: not Flickr8k; expected {self.layout}")
        pairs, notes = _read_captions(captions)
        names = list(dict.fromkeys(name for name, _ in pairs))
        folder = find_image_folder(root, image_folder, _IMAGE_FOLDERS, names)
        splits, split_notes = read_split_lists(lists, names)
        return group_by_image(
            root,
            pairs,
            split=lambda name: splits.get(name, ""),
            path=lambda name: folder / name,
            notes=[*notes, *split_notes],
        )


def _text_file(root: Path, *names: str) -> Path | None:
    paths = [root / folder / name for folder in _TEXT_FOLDERS for name in names]
    return next(filter(Path.is_file, paths), None)


def _captions_file(root: Path) -> Path | None:
    return _text_file(root, "captions.txt", "Flickr8k.token.txt")


def _split_files(root: Path) -> dict[str, Path]:
    paths = {split: _text_file(root, f"Flickr_8k.{split}Images.txt") for split in SPLITS}
    return {split: path for split, path in paths.items() if path}


def _read_captions(path: Path) -> tuple[list[NamedCaption], list[str]]:
    """Captions with their images' names, and notes."""
    if "token" not in path.name:
        return [(row.image, caption) for row in read_table(path) for caption in row.captions], []
    lines = read_text(path).splitlines()
    pairs = [_token_line(path, number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    # The authors' file has one name that ends in ".jpg.1"; no such image was ever distributed.
    valid = [(name, caption) for name, caption in pairs if Path(name).suffix.lower() in IMAGE_SUFFIXES]
    dropped = len(pairs) - len(valid)
    return valid, [f"{path.name}: captions dropped because their name is not an image's: {dropped}"] if dropped else []


def _token_line(path: Path, number: int, line: str) -> NamedCaption:
    tag, tab, caption = line.partition("\t")
    name, hash_sign, _ = tag.rpartition("#")
    if not tab or not hash_sign:
        raise UserError(f"{path}: line {number}: expected name.jpg#0, a tab and the caption")
    return name, caption
