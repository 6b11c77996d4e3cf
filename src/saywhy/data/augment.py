"""Augmentation: random crops, flips and colours, computed for a whole batch on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from saywhy.data.regions import crop_boxes
from saywhy.errors import UserError


@dataclass(frozen=True)
class Augmentation:
    """Random changes of training images.

    Attributes:
        scale: smallest and largest share of the canvas' area that a crop keeps.
        stretch: largest aspect ratio of a crop, from 1 for squares.
        flip: probability of a horizontal flip. Images whose captions contain left or right are never flipped.
        colour: brightness, contrast and saturation are multiplied by 1 ± colour.
        size: side of the crops; None for the encoder's input size. A crop shows its objects larger than the complete
            image does, so training on smaller crops loses little and is faster (Touvron et al. 2019,
            https://arxiv.org/abs/1906.06423).
    """

    scale: tuple[float, float] = (0.6, 1.0)
    stretch: float = 1.2
    flip: float = 0.5
    colour: float = 0.0
    size: int | None = None

    def __post_init__(self) -> None:
        smallest, largest = self.scale
        in_range = {
            "scale": 0 < smallest <= largest <= 1,
            "stretch": 1 <= self.stretch <= 4,
            "flip": 0 <= self.flip <= 1,
            "colour": 0 <= self.colour < 1,
            "size": self.size is None or 32 <= self.size <= 4096,
        }
        for name, valid in in_range.items():
            if not valid:
                raise UserError(f"augmentation.{name} = {getattr(self, name)} is out of range")

    def __call__(self, canvases: Tensor, size: int, may_flip: Tensor) -> Tensor:
        """Crops (B, 3, size, size) of canvases (B, 3, S, S); `may_flip` (B,) says which may be flipped."""
        return self.with_boxes(canvases, size, may_flip, None)[0]

    def with_boxes(
        self, canvases: Tensor, size: int, may_flip: Tensor, boxes: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Crops, and boxes (B, R, 4) in shares of the canvas as shares of the crop.

        The first box of each image is the full canvas and becomes the full crop. Boxes of which the crop shows little
        become zero.
        """
        pixels, transforms = canvases.float(), self._transforms(may_flip)
        grid = F.affine_grid(transforms, [len(pixels), 3, size, size], align_corners=False)
        pixels = F.grid_sample(pixels, grid.to(pixels), padding_mode="reflection", align_corners=False)
        cropped = None if boxes is None else crop_boxes(boxes, _crops(transforms).to(boxes))
        return self._recolour(pixels) if self.colour else pixels, cropped

    def _transforms(self, may_flip: Tensor) -> Tensor:
        """Affine maps (B, 2, 3) from the coordinates of the crop to those of the canvas."""
        n, device = len(may_flip), may_flip.device
        area = torch.empty(n, device=device).uniform_(*self.scale)
        shape = torch.empty(n, device=device).uniform_(-1, 1).mul_(0.5).exp2() ** _log2(self.stretch)
        width, height = (area.sqrt() * shape).clamp(max=1), (area.sqrt() / shape).clamp(max=1)
        x, y = (torch.empty(n, device=device).uniform_(-1, 1) * (1 - side) for side in (width, height))
        flipped = (torch.rand(n, device=device) < self.flip) & may_flip
        zero = torch.zeros_like(x)
        rows = [torch.where(flipped, -width, width), zero, x, zero, height, y]
        return torch.stack(rows, dim=1).view(n, 2, 3)

    def _recolour(self, pixels: Tensor) -> Tensor:
        """Brightness, contrast and saturation times random factors in 1 ± colour, three per image."""
        factors = 1 + self.colour * (2 * torch.rand(3, len(pixels), 1, 1, 1, device=pixels.device) - 1)
        brightness, contrast, saturation = factors
        pixels = pixels * brightness
        mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
        pixels = mean + (pixels - mean) * contrast
        grey = pixels.mean(dim=1, keepdim=True)
        return (grey + (pixels - grey) * saturation).clamp(0, 255)


def _crops(transforms: Tensor) -> Tensor:
    """Left, top, right, bottom (B, 4) of each crop as shares of the canvas; right < left for a flipped one."""
    half, centre = transforms[:, (0, 1), (0, 1)], transforms[:, :, 2]  # (B, 2) of x and y, in −1 … 1
    return (torch.cat([centre - half, centre + half], dim=1) + 1) / 2


def _log2(value: float) -> float:
    return float(torch.tensor(value).log2())
