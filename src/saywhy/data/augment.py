"""Training crops, flips and colours, cut from canvases on the device for a whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from saywhy.data.regions import within
from saywhy.errors import UserError


@dataclass(frozen=True)
class Augmentation:
    """How training images vary.

    Attributes:
        scale: smallest and largest share of the canvas' area that a crop keeps.
        stretch: how far a crop's shape may leave the square, 1 for not at all.
        flip: chance of a mirror image. Images whose captions say left or right are never mirrored.
        colour: how far brightness, contrast and saturation vary, 0 for not at all.
    """

    scale: tuple[float, float] = (0.6, 1.0)
    stretch: float = 1.2
    flip: float = 0.5
    colour: float = 0.0

    def __post_init__(self) -> None:
        least, most = self.scale
        right = {
            "scale": 0 < least <= most <= 1,
            "stretch": 1 <= self.stretch <= 4,
            "flip": 0 <= self.flip <= 1,
            "colour": 0 <= self.colour < 1,
        }
        for name, is_right in right.items():
            if not is_right:
                raise UserError(f"augmentation.{name} = {getattr(self, name)} is out of range")

    def __call__(self, canvases: Tensor, size: int, mirror: Tensor) -> Tensor:
        """Crops (B, 3, size, size) of canvases (B, 3, S, S); `mirror` (B,) says which may be flipped."""
        return self.with_boxes(canvases, size, mirror, None)[0]

    def with_boxes(
        self, canvases: Tensor, size: int, mirror: Tensor, boxes: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """As a call does, with boxes (B, R, 4) that move with the pixels: shares of the canvas, then of the crop.

        The first box of each image is the whole canvas, and becomes the whole crop. Those of which the crop shows
        little vanish.
        """
        pixels, transforms = canvases.float(), self._transforms(mirror)
        grid = F.affine_grid(transforms, [len(pixels), 3, size, size], align_corners=False)
        pixels = F.grid_sample(pixels, grid.to(pixels), padding_mode="reflection", align_corners=False)
        moved = None if boxes is None else within(boxes, _shown(transforms).to(boxes))
        return self._recolour(pixels) if self.colour else pixels, moved

    def _transforms(self, mirror: Tensor) -> Tensor:
        """Affine maps (B, 2, 3) from the crop's coordinates to the canvas'."""
        n, device = len(mirror), mirror.device
        area = torch.empty(n, device=device).uniform_(*self.scale)
        shape = torch.empty(n, device=device).uniform_(-1, 1).mul_(0.5).exp2() ** _log2(self.stretch)
        width, height = (area.sqrt() * shape).clamp(max=1), (area.sqrt() / shape).clamp(max=1)
        x, y = (torch.empty(n, device=device).uniform_(-1, 1) * (1 - side) for side in (width, height))
        flipped = (torch.rand(n, device=device) < self.flip) & mirror
        zero = torch.zeros_like(x)
        rows = [torch.where(flipped, -width, width), zero, x, zero, height, y]
        return torch.stack(rows, dim=1).view(n, 2, 3)

    def _recolour(self, pixels: Tensor) -> Tensor:
        """Brightness, contrast and saturation by factors in 1 ± colour, one draw an image each."""
        factors = 1 + self.colour * (2 * torch.rand(3, len(pixels), 1, 1, 1, device=pixels.device) - 1)
        brightness, contrast, saturation = factors
        pixels = pixels * brightness
        mean = pixels.mean(dim=(1, 2, 3), keepdim=True)
        pixels = mean + (pixels - mean) * contrast
        grey = pixels.mean(dim=1, keepdim=True)
        return (grey + (pixels - grey) * saturation).clamp(0, 255)


def _shown(transforms: Tensor) -> Tensor:
    """The part of the canvas that each crop shows, (B, 4): left, top, right, bottom as shares, mirrored or not."""
    half, middle = transforms[:, (0, 1), (0, 1)], transforms[:, :, 2]  # (B, 2) of x and y, in −1 … 1
    return (torch.cat([middle - half, middle + half], dim=1) + 1) / 2


def _log2(value: float) -> float:
    return float(torch.tensor(value).log2())
