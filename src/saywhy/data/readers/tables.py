"""Captions in tables, CSV or JSON lines: one row a caption, columns found by name."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhy.data.readers.common import read_text
from saywhy.data.splits import split_name
from saywhy.errors import UserError

COLUMNS = {"image": ("image", "file_name"), "caption": ("caption", "text"), "split": ("split",)}
"""What is wanted, and the column names that are taken for it."""

# A caption that runs on into the next row's image: a quotation mark that was opened and not closed.
_RUN_ON = re.compile(r"\n[^\n,]+\.\w{2,5},")


@dataclass(frozen=True)
class Row:
    """One row: an image, what is said of it, and its split where the table has such a column."""

    image: str
    captions: tuple[str, ...]
    split: str | None


def read_table(path: Path) -> list[Row]:
    """Read `captions.csv`, `captions.jsonl` or the like; a `UserError` names the line that is wrong."""
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
        try:
            fields = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: line {number}: malformed JSON ({error.msg})") from None
        if not isinstance(fields, dict):
            raise UserError(f'{path}: line {number}: wanted an object such as {{"image": …, "caption": …}}')
        _require_columns(path, list(fields), number)
        yield number, fields


def _require_columns(path: Path, found: list[str], line: int = 1) -> None:
    for wanted in ("image", "caption"):
        if not set(COLUMNS[wanted]) & set(found):
            names = " or ".join(COLUMNS[wanted])
            columns = ", ".join(found) or "none"
            raise UserError(f"{path}: line {line}: no column {names}; columns found: {columns}")


def _row(path: Path, line: int, fields: dict[str, Any]) -> Row:
    image, caption, split = (_pick(fields, wanted) for wanted in COLUMNS)
    captions = caption if isinstance(caption, list) else [caption]
    if not isinstance(image, str) or not image.strip() or not all(isinstance(one, str) for one in captions):
        raise UserError(f"{path}: line {line}: image must name a file and caption be text")
    try:
        named = None if split is None else split_name(str(split))
    except UserError as error:
        raise UserError(f"{path}: line {line}: {error}") from None
    return Row(image.strip().replace("\\", "/"), tuple(captions), named)


def _pick(fields: dict[str, Any], wanted: str) -> Any:
    return next((fields[name] for name in COLUMNS[wanted] if name in fields), None)
