"""Parquet files with a column of images, in one of three forms.

- a struct with a field `bytes`, and perhaps `path`, as Hugging Face datasets write images;
- the bytes of image files;
- paths of image files, relative to the Parquet file.

Rows are decoded in small batches as they are needed: a page of the file has to fit into memory, a row group does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhy.bulk.shards import require_ordinary_file
from saywhy.data.images import EncodedImage
from saywhy.errors import UnreadableImage, UserError

NAMES = ("image", "img", "picture", "photo", "jpg", "jpeg", "png", "webp", "bytes", "image_bytes")
PATH_NAMES = (*NAMES[:4], "path", "image_path", "file_name", "filename", "file", "file_path")
ROWS = 16  # decoded together


def pyarrow(module: str) -> Any:
    """A module of pyarrow; a `UserError` where it is not installed."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        raise UserError('Parquet files need pyarrow: pip install "saywhy[parquet]"') from None


@dataclass(frozen=True)
class ParquetRef:
    """The image of a row of a Parquet file."""

    shard: str
    column: str
    row: int
    key: None = None

    @property
    def image(self) -> str:
        """The number of the row, from 0."""
        return str(self.row)

    def read(self) -> Path | EncodedImage:
        """The image of the row, or the path that the row holds."""
        global _open_rows
        if _open_rows is None or not _open_rows.can_reach(self):
            _open_rows = _Rows(self)
        value = _open_rows.value(self.row)
        try:
            return _source(self, value.as_py())
        except UnicodeDecodeError:
            raise UnreadableImage(f"{self.shard}, row {self.row}: its path is not UTF-8 text; correct it") from None


@dataclass(frozen=True)
class ParquetShard:
    """A Parquet file with a column of images.

    Attributes:
        name: its path.
        column: the name of the column; empty to find it by its name and type.
    """

    name: str
    column: str = ""

    def names(self) -> Sequence[str]:
        """Its path."""
        return [self.name]

    def refs(self) -> Sequence[ParquetRef]:
        """One for each row; a `UserError` if the file cannot be read or has no column of images."""
        with _opened(self.name) as file:
            column = image_column(self.name, file.schema_arrow, self.column)
            return _Refs(self.name, column, file.metadata.num_rows)


class _Refs(Sequence[ParquetRef]):
    def __init__(self, shard: str, column: str, rows: int) -> None:
        self.shard, self.column, self.rows = shard, column, range(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        rows = self.rows[index]
        if isinstance(rows, int):
            return ParquetRef(self.shard, self.column, rows)
        return [ParquetRef(self.shard, self.column, row) for row in rows]


def image_column(path: str, schema: Any, name: str = "") -> str:
    """The column of images of this Arrow schema: the named one, or the one whose name and type say so."""
    types = {field.name: field.type for field in schema}
    if name:
        if name in types and (_holds_images(types[name]) or _holds_paths(types[name])):
            return name
        raise UserError(f"{path}: no column {name!r} of images or paths; its columns are {_listed(types)}")
    images = [column for column, kind in types.items() if _holds_images(kind)]
    known = [column for column in NAMES if column in images]
    paths = [column for column in PATH_NAMES if column in types and _holds_paths(types[column])]
    if known or len(images) == 1 or (paths and not images):
        return [*known, *images, *paths][0]
    problem = f"several columns may be the images ({', '.join(images)})" if images else "no column of images"
    raise UserError(f"{path}: {problem}; name one with --column (columns: {_listed(types)})")


def _listed(types: dict[str, Any]) -> str:
    return ", ".join(f"{name} {str(kind)[:40]}" for name, kind in types.items()) or "none"


def _holds_images(kind: Any) -> bool:
    types = pyarrow("pyarrow.types")
    if types.is_struct(kind):
        return any(field.name == "bytes" and _holds_images(field.type) for field in kind)
    return types.is_binary(kind) or types.is_large_binary(kind)


def _holds_paths(kind: Any) -> bool:
    types = pyarrow("pyarrow.types")
    return types.is_string(kind) or types.is_large_string(kind)


def _source(ref: ParquetRef, value: Any) -> Path | EncodedImage:
    name = f"{ref.shard}, row {ref.row}"
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes):
        return EncodedImage(name, value)
    if not value:
        raise UnreadableImage(f"{name}: no image (null); leave the row out or fill it")
    if not isinstance(value, str):
        raise UnreadableImage(f"{name}: neither the bytes of an image nor a path; leave the row out or correct it")
    return Path(ref.shard).parent / value


class _Rows:
    """The rows of one column, read forwards in small batches from the row group of the first one that is needed."""

    def __init__(self, first: ParquetRef) -> None:
        self.shard, self.column = first.shard, first.column
        self.file = _opened(first.shard)
        group, self.start = self._row_group(first.row)
        groups = range(group, self.file.metadata.num_row_groups)
        self.batches: Iterator[Any] = self.file.iter_batches(
            batch_size=ROWS, row_groups=list(groups), columns=[self.column], use_threads=False
        )
        self.values: Any = ()

    def _row_group(self, row: int) -> tuple[int, int]:
        """The row group that holds a row, and the row at which it starts."""
        start = 0
        for group in range(self.file.metadata.num_row_groups):
            rows = self.file.metadata.row_group(group).num_rows
            if row < start + rows:
                return group, start
            start += rows
        raise UserError(f"{self.shard}: has {start} rows, fewer than when it was listed; run again with the same file")

    def can_reach(self, ref: ParquetRef) -> bool:
        """Whether the row is in this column, and not before the rows that are in memory."""
        return (self.shard, self.column) == (ref.shard, ref.column) and ref.row >= self.start

    def value(self, row: int) -> Any:
        """The value of a row, as Arrow has it, that `can_reach` allows."""
        while row >= self.start + len(self.values):
            self.start += len(self.values)
            self.values = self._next()
        return self.values[row - self.start]

    def _next(self) -> Any:
        try:
            return next(self.batches).column(0)
        except StopIteration:
            raise UserError(f"{self.shard}: ends early; copy or download it again, and run again to continue") from None
        except (OSError, ValueError) as error:  # pyarrow's errors are both
            raise _damaged(self.shard, error) from None


_open_rows: _Rows | None = None
"""The rows that this process has read last; the next batch continues there."""


def _opened(path: str) -> Any:
    parquet = pyarrow("pyarrow.parquet")
    try:
        require_ordinary_file(path)
        return parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise _damaged(path, error) from None


def _damaged(path: str, error: Exception) -> UserError:
    return UserError(f"{path}: not a readable Parquet file ({error}); copy or download it again")
