"""The vectors a decoder may look at."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Annotations:
    """L vectors a picture, and where in the picture they stand.

    Attributes:
        vectors: (B, L, D).
        grid: rows and columns when the L vectors are a grid in reading order, L = rows · columns.
    """

    vectors: Tensor
    grid: tuple[int, int]

    def __len__(self) -> int:
        return len(self.vectors)

    def select(self, rows: Tensor) -> Annotations:
        """The annotations of these rows of the batch; a row may come more than once."""
        return Annotations(take_rows(self.vectors, rows), self.grid)


def take_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Rows of a batch, (R, …); rows of a batch of one are that one seen R times, which copies nothing.

    The beams of a single picture so share its annotations, for which there would else be a copy a beam and word.
    """
    if len(values) == 1 or values.stride(0) == 0:
        return values[:1].expand(len(rows), *values.shape[1:])
    return values.index_select(0, rows)
