"""A user's own folder: images and one table of captions, CSV or JSON lines, one caption per row.

Columns: `image` (or `file_name`), `caption` (or `text`), and optionally `split` (train, dev, test). An image with
several captions has several rows. Image names are relative to the folder, or to `Images/` or `images/` in it.
Without a split column, `train.txt`, `dev.txt` and `test.txt` may list the images; without these a stable hash of
each image's name sends 80 % to train, 10 % to dev and 10 % to test.
"""

from __future__ import annotations

from pathlib import Path

from saywhy.data.datasets import SPLITS, Dataset, readers, stable_split
from saywhy.data.readers.common import TABLE_NAMES, Row, find_image_folder, group_by_image, read_split_lists, read_table
from saywhy.errors import UserError

_SUFFIXES = (".csv", ".jsonl")


@readers.register("folder")
class Folder:
    """A user's own images."""

    layout = "a folder with captions.csv or captions.jsonl (columns image, caption) beside the images"

    def recognises(self, root: Path, captions: Path | None = None) -> bool:
        """By a table of captions."""
        if captions is not None:
            return captions.suffix.lower() in (*_SUFFIXES, ".txt")
        return bool(_tables(root))

    def read(self, root: Path, captions: Path | None = None, image_folder: Path | None = None) -> Dataset:
        """Read the table that was named, or the only one in the folder."""
        table = captions or _only_table(root, self.layout)
        rows = read_table(table)
        names = list(dict.fromkeys(row.image for row in rows))
        folder = find_image_folder(root, image_folder, ("", "Images", "images"), names)
        splits, notes = _splits(root, rows, names)
        return group_by_image(
            root,
            [(row.image, caption) for row in rows for caption in row.captions],
            split=lambda name: splits.get(name, ""),
            path=lambda name: folder / name,
            notes=notes,
        )


def _tables(root: Path) -> list[Path]:
    """The table with the most usual name, or else all tables in the folder."""
    for name in TABLE_NAMES:
        if (root / name).is_file():
            return [root / name]
    return sorted(path for path in root.iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file())


def _only_table(root: Path, layout: str) -> Path:
    tables = _tables(root)
    if len(tables) == 1:
        return tables[0]
    if tables:
        names = ", ".join(path.name for path in tables)
        raise UserError(f"{root}: several tables ({names}); name the one with the captions")
    raise UserError(f"{root}: no table of captions; expected {layout}")


def _splits(root: Path, rows: list[Row], names: list[str]) -> tuple[dict[str, str], list[str]]:
    """Name → split, and notes."""
    if any(row.split is not None for row in rows):
        return _split_column(root, rows), []
    lists = {split: root / f"{split}.txt" for split in SPLITS if (root / f"{split}.txt").is_file()}
    if lists:
        return read_split_lists(lists, names)
    note = "split 80/10/10 by a stable hash of the names: no split column, no train.txt, dev.txt, test.txt"
    return {name: stable_split(name) for name in names}, [note]


def _split_column(root: Path, rows: list[Row]) -> dict[str, str]:
    splits: dict[str, str] = {}
    for row in rows:
        split = row.split or ""
        if splits.setdefault(row.image, split) != split:
            raise UserError(
                f"{root}: {row.image} is in two splits, {splits[row.image] or 'none'} and {split or 'none'}; "
                "give all its rows the same split"
            )
    return splits
