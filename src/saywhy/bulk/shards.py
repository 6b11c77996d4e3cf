"""Where many images come from: image files, tar shards, Parquet files.

A *shard* is one numbered unit of the input: a tar file, a Parquet file, or all image files together. An `ImageRef`
says where one image is, in a few bytes, so that any process can read it later.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from saywhy.data.images import EncodedImage
from saywhy.errors import UserError

Source = Path | EncodedImage
"""What `inference.batches` reads an image from."""


class ImageRef(Protocol):
    """Where one image is."""

    @property
    def image(self) -> str:
        """Its name within the shard: a path, the name of a tar member, the number of a row."""

    @property
    def key(self) -> str | None:
        """The key of its webdataset sample; None where there is none."""

    @property
    def shard(self) -> str | None:
        """The file that holds it; None for an image file."""

    def read(self) -> Source:
        """The image, still encoded. `UnreadableImage` if it is broken, `UserError` if its shard is."""


class Shard(Protocol):
    """One unit of the input."""

    @property
    def name(self) -> str:
        """The path of the shard; for image files, what the user gave."""

    def names(self) -> Sequence[str]:
        """What identifies the shard when a run is resumed."""

    def refs(self) -> Sequence[ImageRef]:
        """Its images, in order. `UserError` if the shard cannot be read."""


@dataclass(frozen=True)
class FileRef:
    """An image file."""

    image: str
    key: None = None
    shard: None = None

    def read(self) -> Path:
        """The path; a `UserError` if the whole folder is gone, so that its images are not recorded as broken."""
        path = Path(self.image)
        if not path.exists() and not path.parent.is_dir():
            raise UserError(f"{path.parent}: this folder of images has vanished; bring it back and run again")
        return path


class ImageFiles:
    """All image files of the input, as one shard."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths
        self.name = os.path.dirname(paths[0]) if paths else ""

    def names(self) -> Sequence[str]:
        """The paths."""
        return self.paths

    def refs(self) -> Sequence[FileRef]:
        """One for each path, made when it is needed."""
        return _FileRefs(self.paths)


class _FileRefs(Sequence[FileRef]):
    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        found = self.paths[index]
        return FileRef(found) if isinstance(found, str) else [FileRef(path) for path in found]


def require_ordinary_file(path: str) -> None:
    """Raise a `UserError` for a pipe or a device, which cannot be read at any position."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise UserError(f"{path}: not an ordinary file; copy its contents into one")


def digest_of(shards: Sequence[Shard]) -> str:
    """A digest of the names of all inputs, in their order."""
    digest = hashlib.blake2b(digest_size=16)
    for shard in shards:
        for name in shard.names():
            digest.update(os.fsencode(name) + b"\0")
    return digest.hexdigest()
