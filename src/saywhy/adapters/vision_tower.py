"""The vision part of a model of transformers as an `Encoder`, and its image processor as a `Preprocessing`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor, nn

from saywhy.data.preprocess import Crop, Preprocessing
from saywhy.encoders.base import Encoder, Features
from saywhy.encoders.registry import EncoderSettings, InputConvention
from saywhy.errors import UserError

BLOCK = re.compile(r"(.*?\.\d+)\.|(.+?)\.\w+$")
"""The layer of a list that a parameter belongs to ("encoder.layer.0"), or its module."""


class VisionTower(Encoder):
    """A network whose output is vectors already: normalised pixels (B, 3, S, S) ↦ (B, L, D).

    Args:
        settings: its name, size and convention.
        body: the network.
        width: D.
        grid: rows and columns of the vectors that stand for a place.
        unplaced: how many vectors before them do not.
    """

    def __init__(
        self, settings: EncoderSettings, body: nn.Module, width: int, grid: tuple[int, int], unplaced: int
    ) -> None:
        assert settings.size is not None
        super().__init__(settings, body, width, settings.size // grid[0])
        self.grid, self.unplaced = grid, unplaced
        self._blocks = list(dict.fromkeys(_block(name) for name, _ in body.named_parameters()))
        self.finetune_from(None)

    def encode_normalised(self, x: Tensor, boxes: Tensor | None = None) -> Features:
        """The vectors of normalised pixels; with boxes, vectors pooled from those on the grid."""
        vectors = self.body(x)  # (B, L, D)
        if boxes is None:
            return Features(vectors, self.grid, unplaced=self.unplaced)
        return Features(vectors[:, self.unplaced :], self.grid).in_boxes(boxes)


def _block(name: str) -> str:
    match = BLOCK.match(name)
    return name if match is None else match[1] or match[2]


@dataclass(frozen=True)
class ProcessorGeometry(Preprocessing):
    """The geometry of an image processor of transformers, which resizes with a filter of its own.

    It first resizes to whole pixels, then crops: the crop in the image is that of `Preprocessing` up to rounding.

    Attributes:
        resample: the number of Pillow's filter.
    """

    resample: int = Image.Resampling.BILINEAR

    def _resize(self, image: Image.Image, crop: Crop, side: int) -> np.ndarray:
        short = round(self.margin * side) if self.fit == "crop" else side
        sizes = [short if self.fit == "squash" else short * n // min(image.size) for n in image.size]
        left, top = ((size - side) // 2 for size in sizes)
        resized = image.resize((sizes[0], sizes[1]), Image.Resampling(self.resample))
        square = resized.crop((left, top, left + side, top + side))
        return np.asarray(square).transpose(2, 0, 1).copy()  # (3, side, side)


def preprocessing_of(processor: Any, size: int) -> ProcessorGeometry:
    """The geometry of an image processor, for a network whose input has this side."""
    resample = getattr(processor, "resample", None)
    resample = int(Image.Resampling.BILINEAR if resample is None else resample)
    shape = dict(getattr(processor, "size", None) or {})
    crops = bool(getattr(processor, "do_center_crop", False))
    if crops or "shortest_edge" in shape:
        margin = float(shape.get("shortest_edge") or shape.get("height") or size) / size
        return ProcessorGeometry(size, "crop", max(1.0, margin), resample)
    return ProcessorGeometry(size, "squash", 1.0, resample)


def convention_of(processor: Any) -> InputConvention:
    """How an image processor normalises pixels."""
    scale = getattr(processor, "rescale_factor", None) if getattr(processor, "do_rescale", True) else 1.0
    mean, std = [0.0] * 3, [1.0] * 3
    if getattr(processor, "do_normalize", True):
        mean, std = list(processor.image_mean), list(processor.image_std)
    if len(mean) != 3 or len(std) != 3:
        raise UserError("its image processor is not one of RGB images")
    scale = scale or 1 / 255
    return InputConvention(*(tuple(value / scale for value in values) for values in (mean, std)))  # type: ignore[arg-type]
