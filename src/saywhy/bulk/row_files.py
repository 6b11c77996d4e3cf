"""Files of rows: JSON lines, and Parquet.

A row is a dictionary with one value per column. `write` makes one part, `join` makes one file of many parts without
holding more than one of them in memory.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from saywhy.bulk.parquet_shards import pyarrow
from saywhy.errors import UserError, did_you_mean
from saywhy.files import whole_file

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A column of the output: its name, its type, and what it holds.

    A column of JSON is text in Parquet; JSON lines have no binary columns.
    """

    name: str
    kind: str
    meaning: str


class RowFormat(Protocol):
    """How rows are kept in files."""

    def write(self, path: Path, rows: Sequence[Row], columns: Sequence[Column]) -> None:
        """Write a complete file of rows."""

    def join(self, parts: Sequence[Path], path: Path, columns: Sequence[Column]) -> None:
        """Write a complete file of the rows of these files, in their order."""


class JsonLines:
    """One JSON object per line."""

    def write(self, path: Path, rows: Sequence[Row], columns: Sequence[Column]) -> None:
        """Write a complete file of rows."""
        names = [column.name for column in columns if column.kind != "binary"]
        lines = [json.dumps({name: row.get(name) for name in names}, ensure_ascii=False) + "\n" for row in rows]
        with whole_file(path) as part:
            part.write_text("".join(lines), encoding="utf-8", errors="backslashreplace")

    def join(self, parts: Sequence[Path], path: Path, columns: Sequence[Column]) -> None:
        """Write a complete file of the rows of these files, in their order."""
        with whole_file(path) as whole, whole.open("wb") as file:
            for part in parts:
                with part.open("rb") as lines:
                    shutil.copyfileobj(lines, file)


class Parquet:
    """Parquet, one row group per part."""

    def __init__(self) -> None:
        self.arrow, self.parquet = pyarrow("pyarrow"), pyarrow("pyarrow.parquet")

    def write(self, path: Path, rows: Sequence[Row], columns: Sequence[Column]) -> None:
        """Write a complete file of rows."""
        values = {column.name: [_value(row.get(column.name), column.kind) for row in rows] for column in columns}
        table = self.arrow.table(values, schema=self._schema(columns))
        with whole_file(path) as part, part.open("wb") as file:
            self.parquet.write_table(table, file, compression="zstd")

    def join(self, parts: Sequence[Path], path: Path, columns: Sequence[Column]) -> None:
        """Write a complete file of the rows of these files, in their order."""
        writer, schema = self.parquet.ParquetWriter, self._schema(columns)
        with whole_file(path) as whole, whole.open("wb") as file, writer(file, schema, compression="zstd") as rows:
            for part in parts:
                rows.write_table(self.parquet.read_table(part))

    def _schema(self, columns: Sequence[Column]) -> Any:
        return self.arrow.schema([(column.name, self._type(column.kind)) for column in columns])

    def _type(self, kind: str) -> Any:
        arrow = self.arrow
        types = {
            "string": arrow.string(),
            "json": arrow.string(),
            "double": arrow.float64(),
            "bool": arrow.bool_(),
            "binary": arrow.binary(),
            "list of string": arrow.list_(arrow.string()),
            "list of double": arrow.list_(arrow.float64()),
        }
        return types[kind]


FORMATS: Mapping[str, Callable[[], RowFormat]] = {".jsonl": JsonLines, ".parquet": Parquet}


def row_format(suffix: str) -> RowFormat:
    """The format of files with this suffix."""
    if suffix not in FORMATS:
        raise UserError(f"unknown kind of output {suffix!r}: {did_you_mean(suffix, FORMATS)}, or a name without a dot")
    return FORMATS[suffix]()


def _value(value: Any, kind: str) -> Any:
    """A value as Parquet takes it; what UTF-8 cannot encode (from file names) becomes escapes."""
    text = json.dumps(value, ensure_ascii=False) if kind == "json" and value is not None else value
    return text.encode("utf-8", "backslashreplace").decode() if isinstance(text, str) else text
