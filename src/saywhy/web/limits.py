"""What the server accepts and keeps, so that its memory stays bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
        upload_bytes: of one request.
        pixels: of one image.
        large_pixels: images above it are decoded one at a time.
        requests: that are answered or wait at the same time; further ones get the status 503.
        stalled_seconds: without a byte, after which an upload is given up, with the status 408.
        batch: captions that are decoded together.
        image_bytes: of the uploads that are kept, so that an image need not be sent again.
        features: of images that are kept, so that an image is encoded once.
        explanations: that are kept.
        open_passes: explanations that keep the forward pass of their model, while they are computed.
        beam: the widest beam.
    """

    upload_bytes: int = 20_000_000
    pixels: int = 50_000_000
    large_pixels: int = 16_000_000
    requests: int = 64
    stalled_seconds: float = 20
    batch: int = 8
    image_bytes: int = 128_000_000
    features: int = 64
    explanations: int = 8
    open_passes: int = 2
    beam: int = 20


class RecentlyUsed(Generic[V]):
    """A dictionary of at most `limit` entries, or of entries whose sizes add up to at most `limit`.

    The entries that were used longest ago are dropped; the newest one is always kept.

    >>> kept = RecentlyUsed[int](2)
    >>> for number in (1, 2, 3):
    ...     kept.put(number, number)
    >>> kept.get(1), kept.get(3), len(kept)
    (None, 3, 2)
    """

    def __init__(self, limit: int, size: Callable[[V], int] = lambda value: 1) -> None:
        self.limit, self.size = limit, size
        self._entries: OrderedDict[Hashable, V] = OrderedDict()
        self._total, self._lock = 0, Lock()

    def get(self, key: Hashable) -> V | None:
        """The value, which then counts as used; None if it is not kept."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
            return self._entries.get(key)

    def put(self, key: Hashable, value: V) -> None:
        """Keep a value."""
        with self._lock:
            if key in self._entries:
                self._total -= self.size(self._entries.pop(key))
            self._entries[key] = value
            self._total += self.size(value)
            while self._total > self.limit and len(self._entries) > 1:
                self._total -= self.size(self._entries.popitem(last=False)[1])

    def __len__(self) -> int:
        return len(self._entries)
