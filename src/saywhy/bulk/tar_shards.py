"""Tar shards in the layout of webdataset: the files of one sample have the same name up to its first dot.

Only the headers are read to list a shard; the images are read later, by their offset.
"""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from saywhy.bulk.shards import require_ordinary_file
from saywhy.data.images import EncodedImage, has_image_suffix
from saywhy.errors import UserError

ADVICE = "copy or download it again, and run the same command to continue"


@dataclass(frozen=True)
class TarRef:
    """An image in a tar file: the name of its member, and where its bytes are."""

    shard: str
    image: str
    offset: int
    size: int

    @property
    def key(self) -> str:
        """The member's name up to the first dot of its last part.

        >>> TarRef("a.tar", "train.v1/dog.left.jpg", 512, 10).key
        'train.v1/dog'
        """
        path = PurePosixPath(self.image)
        return str(path.with_name(path.name.split(".")[0] or path.name))

    def read(self) -> EncodedImage:
        """The bytes of the image."""
        try:
            with open(self.shard, "rb") as file:
                file.seek(self.offset)
                contents = file.read(self.size)
        except OSError as error:
            raise UserError(f"{self.shard}: cannot be read ({error.strerror}); {ADVICE}") from None
        if len(contents) < self.size:
            raise _truncated(self.shard)
        return EncodedImage(f"{self.shard}/{self.image}", contents)


@dataclass(frozen=True)
class TarShard:
    """A tar file of images."""

    name: str

    def names(self) -> Sequence[str]:
        """Its path."""
        return [self.name]

    def refs(self) -> Sequence[TarRef]:
        """The images in it; a `UserError` if it is not a complete, uncompressed tar file."""
        try:
            require_ordinary_file(self.name)
            with tarfile.open(self.name, "r:") as archive:
                refs = [
                    TarRef(self.name, member.name, member.offset_data, member.size)
                    for member in archive
                    if member.isreg() and has_image_suffix(member.name)
                ]
                end = archive.offset
        except tarfile.ReadError as error:
            if "unexpected end" in str(error) or "truncated" in str(error):
                raise _truncated(self.name) from None
            raise UserError(f"{self.name}: not an uncompressed tar file ({error}); extract or convert it") from None
        except (OSError, ValueError, tarfile.TarError) as error:  # ValueError: a size beyond 64 bits
            raise UserError(f"{self.name}: cannot be read ({error}); {ADVICE}") from None
        if not _has_end_marker(self.name, end):
            raise _truncated(self.name)
        return refs


def _has_end_marker(path: str, offset: int) -> bool:
    """Whether a block of zeros follows the last member, as in every complete archive."""
    with Path(path).open("rb") as file:
        file.seek(offset)
        return not any(file.read(tarfile.BLOCKSIZE) or b"missing")


def _truncated(path: str) -> UserError:
    return UserError(f"{path}: truncated tar file, the end is missing; {ADVICE}")
