"""Parts: the ranges of the input that are done and written one at a time.

A part is named after its shard and its range of images, so the names of the files that exist say what is done. A file
appears whole or not at all, so no image is ever done twice or left out, wherever a run is killed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from saywhy.bulk.shards import ImageRef, Shard
from saywhy.errors import UserError

NAME = re.compile(r"part-(\d+)-(\d+)-(\d+)-of-(\d+)")
SHARD_BITS = 32  # a shard has fewer than 2³² images


@dataclass(frozen=True, order=True)
class Part:
    """A range of the images of one shard.

    Attributes:
        shard: the number of the shard.
        start, stop: its images.
        count: how many images the shard has.

    >>> Part(3, 0, 1024, 5000).name
    'part-000003-000000000-000001024-of-000005000'
    >>> Part.parse("part-000003-000000000-000001024-of-000005000")
    Part(shard=3, start=0, stop=1024, count=5000)
    """

    shard: int
    start: int
    stop: int
    count: int

    @property
    def name(self) -> str:
        """The name of its file, without a suffix."""
        return f"part-{self.shard:06d}-{self.start:09d}-{self.stop:09d}-of-{self.count:09d}"

    @classmethod
    def parse(cls, name: str) -> Part | None:
        """The part of this name; None if it is not the name of one."""
        match = NAME.fullmatch(name)
        return cls(*map(int, match.groups())) if match else None

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def first_index(self) -> int:
        """A number that no image of another part has; sampling seeds its random numbers with it."""
        return (self.shard << SHARD_BITS) + self.start


@dataclass(frozen=True)
class Work:
    """A part to do, and where its images are."""

    part: Part
    refs: Sequence[ImageRef]


def parts_of(shard: int, count: int, size: int) -> list[Part]:
    """The parts of a shard with this many images."""
    return [Part(shard, start, min(start + size, count), count) for start in range(0, count, size)]


class Plan:
    """All parts of the input, shard by shard.

    Shards are opened when their turn comes. One that cannot be read is reported and left out; run again, the command
    does what is left.

    Args:
        shards: the input.
        size: images per part.
        done: the parts that exist.
        on_broken: called with the error of a shard that cannot be read.
    """

    def __init__(
        self,
        shards: Sequence[Shard],
        size: int,
        done: Collection[Part],
        on_broken: Callable[[UserError], None],
    ) -> None:
        self.shards, self.size, self.done, self.on_broken = shards, size, frozenset(done), on_broken
        self.counts: Mapping[int, int] = {part.shard: part.count for part in done}
        self.parts: list[Part] = []
        self.broken = 0

    def remaining(self) -> Iterator[Work]:
        """The parts that are left to do; afterwards `parts` has all parts, those that were done included."""
        self.parts, self.broken = [], 0
        for number, shard in enumerate(self.shards):
            if number in self.counts and self.done.issuperset(parts_of(number, self.counts[number], self.size)):
                self.parts += parts_of(number, self.counts[number], self.size)
                continue
            try:
                refs = self._opened(number, shard)
            except UserError as error:
                self.broken += 1
                self.on_broken(error)
                continue
            for part in parts_of(number, len(refs), self.size):
                self.parts.append(part)
                if part not in self.done:
                    yield Work(part, refs[part.start : part.stop])

    def _opened(self, number: int, shard: Shard) -> Sequence[ImageRef]:
        refs = shard.refs()
        if (known := self.counts.get(number, len(refs))) != len(refs):
            raise UserError(
                f"{shard.name}: has {len(refs):,} images, and had {known:,} when its first rows were written; bring "
                "back the old file, or choose another --out"
            )
        return refs
