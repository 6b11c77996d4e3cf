"""Shared by the readers: tables of captions (CSV or JSON lines), split lists, image folders, grouping by image."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from saywhy.data.datasets import SPLITS, CaptionedImage, Dataset, split_name
from saywhy.errors import UserError
from saywhy.files import is_unicode, parse_json, read_text

NamedCaption = tuple[str, str]
"""An image's name and one of its captions."""

COLUMNS = {"image": ("image", "file_name"), "caption": ("caption", "text"), "split": ("split",)}
"""The fields of a table row, and the column names that are accepted for each."""

TABLE_NAMES = ("captions.csv", "captions.jsonl", "metadata.csv", "metadata.jsonl", "captions.txt")
"""Usual names of a table of captions, the most usual first."""

# A caption that contains the next row's image name: a quotation mark was opened and not closed.
_RUN_ON = re.compile(r"\n[^\n,]+\.\w{2,5},")


@dataclass(frozen=True)
class Row:
    """One table row: an image, its captions, and its split where the table has such a column."""

    image: str
    captions: tuple[str, ...]
    split: str | None


def group_by_image(
    root: Path,
    captions: Iterable[NamedCaption],
    *,
    split: Callable[[str], str],
    path: Callable[[str], Path],
    notes: Iterable[str] = (),
) -> Dataset:
    """A data set from captions, its images in the order of first mention; blank captions are dropped and counted."""
    by_image: dict[str, list[str]] = {}
    for name, caption in captions:
        if "\0" in name:
            raise UserError(f"{root}: {name!r} is not the name of a file; correct the captions file")
        if not is_unicode(caption):
            raise UserError(f"{root}: a caption of {name} has half of a surrogate pair (such as \\ud800); correct it")
        by_image.setdefault(name, []).append(" ".join(caption.split()))
    nonblank = {name: tuple(filter(None, texts)) for name, texts in by_image.items()}
    images = tuple(CaptionedImage(name, path(name), texts, split(name)) for name, texts in nonblank.items() if texts)
    if not images:
        raise UserError(f"{root}: this data set has no caption; check its captions file")
    return Dataset(root.resolve().name, root, images, (*notes, *_irregularities(by_image, nonblank)))


def _irregularities(captions: Mapping[str, Sequence[str]], nonblank: Mapping[str, Sequence[str]]) -> list[str]:
    counts = {
        "blank captions dropped": sum(len(captions[name]) - len(nonblank[name]) for name in captions),
        "captions that repeat another of the same image (kept)": sum(
            len(texts) - len(set(texts)) for texts in nonblank.values()
        ),
        "images dropped because all their captions are blank": sum(not texts for texts in nonblank.values()),
    }
    return [f"{problem}: {count}" for problem, count in counts.items() if count]


def find_image_folder(root: Path, image_folder: Path | None, usual: Iterable[str], names: Iterable[str | Path]) -> Path:
    """The folder that holds the images: `image_folder`, or the usual one with most of the first 20 images."""
    if image_folder is not None:
        return image_folder
    sample = list(islice(names, 20))
    folders = [folder for folder in (root / name for name in usual) if folder.is_dir()]
    return max(folders, key=lambda folder: sum((folder / name).is_file() for name in sample), default=root)


def read_split_lists(lists: Mapping[str, Path], names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Read one file per split with one image name per line; returns name → split, and notes.

    An image on two lists is a `UserError`.
    """
    known = set(names)
    splits: dict[str, str] = {}
    notes = []
    for split in (name for name in SPLITS if name in lists):
        listed = {line.strip() for line in read_text(lists[split]).splitlines()} - {""}
        if unknown := listed - known:
            notes.append(f"{lists[split].name}: {len(unknown)} of {len(listed)} names have no captions")
        if repeated := sorted(listed & splits.keys()):
            raise UserError(
                f"{lists[split]}: {len(repeated)} of its images are also in another split, such as {repeated[0]} in "
                f"{splits[repeated[0]]}; list each image in one split"
            )
        splits.update(dict.fromkeys(listed, split))
    return splits, notes


def read_beginning(path: Path, characters: int = 65536) -> str:
    """The beginning of a file, to recognise its layout by; "" if it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return file.read(characters)
    except OSError:
        return ""


def unexpected_contents(path: Path, error: Exception, expected: str) -> UserError:
    """The error for a JSON file that is well formed and has other contents than expected."""
    detail = f"no {error}" if isinstance(error, KeyError) else str(error)
    return UserError(f"{path}: unexpected contents ({detail}); expected {expected}")


def read_table(path: Path) -> list[Row]:
    """Read a table of captions, one row per caption: JSON lines by its suffix, else CSV with a header."""
    parse = _json_rows if path.suffix.lower() in {".jsonl", ".ndjson"} else _csv_rows
    return [_row(path, line, fields) for line, fields in parse(path)]


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), skipinitialspace=False)
    try:
        header = [name.strip().lower() for name in next(reader, [])]
        _require_columns(path, header)
        for cells in reader:
            if cells:
                yield reader.line_num, _fields(path, reader.line_num, header, cells)
    except csv.Error as error:
        raise UserError(f"{path}: line {reader.line_num}: malformed CSV ({error})") from None


def _fields(path: Path, line: int, header: list[str], cells: list[str]) -> dict[str, Any]:
    extra = len(cells) - len(header)
    if extra > 0 and header[-1] in COLUMNS["caption"]:
        # Commas in an unquoted last column can only belong to the caption.
        cells = [*cells[: len(header) - 1], ",".join(cells[len(header) - 1 :])]
    elif extra:
        raise UserError(
            f"{path}: line {line}: {len(cells)} columns, but the header has {len(header)}; "
            "put captions with commas in quotation marks"
        )
    if any(_RUN_ON.search(cell) for cell in cells):
        raise UserError(f"{path}: line {line}: a quotation mark opened before this line is never closed")
    return dict(zip(header, cells, strict=True))


def _json_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        fields = parse_json(line, f"{path}: line {number}")
        if not isinstance(fields, dict):
            raise UserError(f'{path}: line {number}: not an object such as {{"image": …, "caption": …}}')
        _require_columns(path, list(fields), number)
        yield number, fields


def _require_columns(path: Path, columns: list[str], line: int = 1) -> None:
    for field in ("image", "caption"):
        if not set(COLUMNS[field]) & set(columns):
            names = " or ".join(COLUMNS[field])
            raise UserError(f"{path}: line {line}: no column {names}; its columns are: {', '.join(columns) or 'none'}")


def _row(path: Path, line: int, fields: dict[str, Any]) -> Row:
    image, caption, split = (_pick(fields, field) for field in COLUMNS)
    captions = caption if isinstance(caption, list) else [caption]
    if not isinstance(image, str) or not image.strip() or not all(isinstance(text, str) for text in captions):
        raise UserError(f"{path}: line {line}: image must be a file name and caption must be text")
    try:
        split = None if split is None else split_name(str(split))
    except UserError as error:
        raise UserError(f"{path}: line {line}: {error}") from None
    return Row(image.strip().replace("\\", "/"), tuple(captions), split)


def _pick(fields: dict[str, Any], field: str) -> Any:
    return next((fields[name] for name in COLUMNS[field] if name in fields), None)
