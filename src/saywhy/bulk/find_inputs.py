"""From what the user names to shards: folders, globs, image files, Parquet files, tar files."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from saywhy.bulk.parquet_shards import ParquetShard
from saywhy.bulk.shards import ImageFiles, Shard
from saywhy.bulk.tar_shards import TarShard
from saywhy.data.images import has_image_suffix
from saywhy.errors import UserError

PARQUET, TAR = (".parquet", ".pq"), (".tar",)
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")


def find_shards(inputs: Iterable[str], column: str = "") -> list[Shard]:
    """The shards of folders (searched recursively, sorted by name), globs and files; image files are the first.

    Args:
        inputs: as the user gave them.
        column: the column of images of Parquet files; empty to find it.
    """
    paths = [path for argument in inputs for path in _paths(argument)]
    images = [path for path in paths if not path.lower().endswith((*PARQUET, *TAR))]
    shards: list[Shard] = [ImageFiles(images)] if images else []
    for path in paths:
        if path.lower().endswith(PARQUET):
            shards.append(ParquetShard(path, column))
        elif path.lower().endswith(TAR):
            shards.append(TarShard(path))
    return shards


def _paths(argument: str) -> Iterator[str]:
    """The files that an argument stands for."""
    if os.path.isdir(argument):
        yield from _in_folder(argument)
    elif os.path.exists(argument):
        yield _supported(argument)
    elif glob.has_magic(argument):
        yield from _matches(argument)
    else:
        raise UserError(f"{argument}: no such file or folder; check the spelling")


def _matches(pattern: str) -> Iterator[str]:
    paths = [path for match in sorted(glob.glob(pattern, recursive=True)) for path in _readable(match)]
    if not paths:
        problem = "no image, Parquet file or tar file matches this pattern"
        raise UserError(f"{pattern}: {problem}; check it, and quote it for the shell")
    yield from paths


def _readable(match: str) -> Iterator[str]:
    if os.path.isdir(match):
        yield from _walk(match, (*PARQUET, *TAR), images=True)
    elif has_image_suffix(match) or match.lower().endswith((*PARQUET, *TAR, *COMPRESSED)):
        yield _supported(match)


def _in_folder(folder: str) -> Iterator[str]:
    """The images of a folder; if it has none, its shards."""
    empty = True
    for suffixes, images in (((), True), ((*PARQUET, *TAR), False)):
        for path in _walk(folder, suffixes, images) if empty else ():
            empty = False
            yield path
    if empty:
        raise UserError(f"{folder}: no images, Parquet files or tar files in this folder")


def _walk(folder: str, suffixes: tuple[str, ...], images: bool) -> Iterator[str]:
    """Files by suffix, recursively, one folder at a time in memory; hidden ones are skipped."""
    try:
        with os.scandir(folder) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
    except OSError as error:
        raise UserError(f"{folder}: cannot be searched ({error.strerror}); check its permissions") from None
    for name, is_folder in found:
        path = os.path.join(folder, name)
        if name.startswith("."):
            continue
        if is_folder:
            yield from _walk(path, suffixes, images)
        elif name.lower().endswith(suffixes) or (images and has_image_suffix(name)):
            yield path


def _supported(path: str) -> str:
    if path.lower().endswith(COMPRESSED):
        raise UserError(f"{path}: a compressed tar file, whose members cannot be read one by one; decompress it first")
    return str(Path(path))
