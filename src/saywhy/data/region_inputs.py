"""Regions on their way to a batch: one size for all images, and shares of what the encoder sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saywhy.data.images import upright_size
from saywhy.data.preprocess import Preprocessing
from saywhy.data.region_files import BESIDE, read_regions
from saywhy.data.region_tables import RegionTable
from saywhy.data.regions import WHOLE, RegionSettings, has_area, led_by_the_whole, padded, within
from saywhy.errors import UnreadableImage, UserError

Where = str | Path | RegionTable | None
"""Where regions are: a path, or what was read from it."""


@dataclass(frozen=True)
class GivenRegions:
    """Regions as a model wants them, and the table they are in."""

    settings: RegionSettings
    table: RegionTable

    @property
    def are_features(self) -> bool:
        """Whether vectors come with the boxes, so that no image is looked at."""
        return self.settings.kind == "features"

    def describe(self) -> dict[str, Any]:
        """What results depend on: what was looked at, and where it came from."""
        return {**asdict(self.settings), **self.table.identity()}

    def boxes(self, name: str, size: tuple[int, int] | None = None, frame: Preprocessing | None = None) -> np.ndarray:
        """Boxes of an image, (most, 4), as shares of the part of it that `frame` keeps, or of all of it.

        `size` is the image's width and height, of which "crop" needs to know the shape.
        """
        found, most = self.table.find(name, vectors=False).boxes, self.settings.most
        if self.are_features:
            return padded(found, most)
        boxes = led_by_the_whole(found)
        if len(boxes) == 1 < len(found):
            raise UserError(f'{self.table.path}: features without boxes, which regions.kind = "boxes" needs')
        if frame is not None and frame.fit == "crop" and size is not None:
            part = torch.tensor(frame.region(*size)) / torch.tensor([*size, *size])
            boxes = within(torch.from_numpy(boxes), part.float()).numpy()
            boxes = boxes[has_area(boxes)]  # those outside make room for others
        return padded(boxes, most)

    def vectors(self, name: str, width: int | None = None) -> np.ndarray:
        """Vectors of an image, (most, D)."""
        found = self.table.find(name).vectors
        if found is None:
            raise UserError(f'{self.table.path}: boxes without features, which regions.kind = "features" needs')
        if width is not None and found.shape[1] != width:
            raise UserError(
                f"{self.table.path}: features of {name} have {found.shape[1]} numbers a region, not {width}"
            )
        return padded(found, self.settings.most)


class RegionBoxes:
    """Boxes of a data set's images, by number; what a batch takes beside its inputs."""

    def __init__(
        self, given: GivenRegions, names: Sequence[str], paths: Sequence[Path], frame: Preprocessing | None
    ) -> None:
        given.table.require(names)
        self.given, self.names, self.paths, self.frame = given, names, paths, frame

    def rows(self, images: Sequence[int]) -> np.ndarray:
        """Boxes (P, most, 4); of a broken image, whose pixels are grey, one: the whole."""
        return np.stack([self._row(image) for image in images])

    def _row(self, image: int) -> np.ndarray:
        sized = self.frame is not None and self.frame.fit == "crop"
        try:
            size = upright_size(self.paths[image]) if sized else None
        except UnreadableImage:
            return padded(np.array([WHOLE]), self.given.settings.most)
        return self.given.boxes(self.names[image], size, self.frame)


class RegionVectors:
    """Vectors of a data set's images, by number; what a batch takes in place of pixels."""

    def __init__(self, given: GivenRegions, names: Sequence[str], width: int | None = None) -> None:
        given.table.require(names)
        self.given, self.names = given, names
        self.width = width or given.vectors(names[0]).shape[1]

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, images: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """Vectors (P, most, D); no image is opened, so none is broken."""
        every = [self.given.vectors(self.names[image], self.width) for image in images]
        return np.stack(every), [""] * len(images)


def find_regions(
    settings: RegionSettings | None, where: Where, whose: str, beside: Path | None = None
) -> GivenRegions | None:
    """The regions a model or a recipe wants, from `where` or from the boxes `beside` the data; None for a grid.

    `whose` names the model or the recipe in a complaint.
    """
    if settings is None:
        if where is not None:
            raise UserError(f"{whose} looks at a grid, not at regions: leave --regions out")
        return None
    if where is None and settings.kind == "boxes" and beside is not None and (beside / BESIDE).is_file():
        where = beside / BESIDE
    if where is None:
        what = "boxes" if settings.kind == "boxes" else "regions with their features"
        there = f" (there is no {beside / BESIDE})" if beside is not None and settings.kind == "boxes" else ""
        raise UserError(f"{whose} looks at given {what} of each image{there}: say where they are with --regions PATH")
    return GivenRegions(settings, where if isinstance(where, RegionTable) else read_regions(where))
