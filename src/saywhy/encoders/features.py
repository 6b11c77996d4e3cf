"""The vectors a decoder may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saywhy.data.regions import has_area


@dataclass(frozen=True)
class Features:
    """L vectors an image, and where in the image they stand: on a grid, or in boxes.

    Attributes:
        vectors: (B, L, D).
        grid: rows and columns when the L vectors are a grid in reading order, L = rows · columns.
        boxes: (B, L, 4) when they are regions: left, top, right, bottom as shares of what the encoder saw.
        mask: (B, L), true where there is a vector, as images may have fewer regions than L; None for everywhere.
    """

    vectors: Tensor
    grid: tuple[int, int] | None = None
    boxes: Tensor | None = None
    mask: Tensor | None = None

    @classmethod
    def of_regions(cls, vectors: Tensor, boxes: Tensor) -> Features:
        """Vectors of boxes; a box without an area says that there is no such region."""
        return cls(vectors, None, boxes, has_area(boxes))

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice) -> Features:
        """The features of these rows of the batch, seen and not copied."""
        boxes, mask = (None if part is None else part[rows] for part in (self.boxes, self.mask))
        return Features(self.vectors[rows], self.grid, boxes, mask)

    @classmethod
    def joined(cls, parts: Sequence[Features]) -> Features:
        """The features of several batches as those of one."""
        if len(parts) == 1:
            return parts[0]

        def together(of: Sequence[Tensor | None]) -> Tensor | None:
            there = [each for each in of if each is not None]
            return torch.cat(there) if there else None

        vectors = torch.cat([each.vectors for each in parts])
        return cls(vectors, parts[0].grid, *(together([getattr(p, name) for p in parts]) for name in ("boxes", "mask")))

    def mean(self) -> Tensor:
        """The mean vector, (B, D)."""
        if self.mask is None:
            return self.vectors.mean(dim=1)
        there = self.mask.unsqueeze(-1).to(self.vectors.dtype)  # (B, L, 1)
        return (self.vectors * there).sum(dim=1) / there.sum(dim=1).clamp(min=1)

    def attend(self, energies: Tensor) -> Tensor:
        """α = softmax(energies) over the places there are, for energies (B, …, L)."""
        return self.hide(energies).softmax(dim=-1)

    def hide(self, energies: Tensor) -> Tensor:
        """Energies (B, …, L) with −∞ where there is no vector."""
        if self.mask is None:
            return energies
        mask = self.mask.view(len(self.mask), *[1] * (energies.ndim - 2), -1)  # (B, 1, …, L)
        return energies.masked_fill(~mask, -torch.inf)

    def select(self, rows: Tensor) -> Features:
        """The features of these rows of the batch; a row may come more than once."""
        boxes, mask = (None if part is None else take_rows(part, rows) for part in (self.boxes, self.mask))
        return Features(take_rows(self.vectors, rows), self.grid, boxes, mask)

    def without(self, rows: Tensor, instead: Tensor) -> Features:
        """The same, where those of `rows` (B,) true are the one vector `instead` (D) and nowhere else to look."""
        here = rows[:, None]  # (B, 1)
        mask = torch.ones_like(self.vectors[..., 0], dtype=torch.bool) if self.mask is None else self.mask
        first = torch.arange(mask.shape[1], device=mask.device) == 0  # (L)
        vectors = torch.where(here[..., None], instead.to(self.vectors), self.vectors)
        return replace(self, vectors=vectors, mask=torch.where(here, first, mask))


def take_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Rows of a batch, (R, …); rows of a batch of one are that one seen R times, which copies nothing.

    The beams of a single image so share its features, for which there would else be a copy a beam and word.
    """
    if len(values) == 1 or values.stride(0) == 0:
        return values[:1].expand(len(rows), *values.shape[1:])
    return values.index_select(0, rows)
