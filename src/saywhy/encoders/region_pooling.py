"""Vectors of regions, pooled from the feature map of an encoder.

RoI-align (He et al. 2017, https://arxiv.org/abs/1703.06870, section 3): the vector of a box is the mean of the map at
points spread evenly over the box, about one per cell, each interpolated between its four neighbours. A box that is
exactly one cell has the vector of that cell; the box of the whole image has the mean of the map.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saywhy.encoders.registry import import_extra


def pool_boxes(vectors: Tensor, grid: tuple[int, int], boxes: Tensor) -> Tensor:
    """Vectors (B, R, D) of boxes (B, R, 4) from vectors (B, L, D) on a grid.

    Args:
        vectors: of the cells of the grid in reading order.
        grid: rows and columns.
        boxes: left, top, right, bottom as shares of the width and height.
    """
    roi_align = import_extra("torchvision.ops", "torchvision").roi_align
    rows, columns = grid
    boxes = boxes.float()
    feature_map = vectors.float().transpose(1, 2).unflatten(2, grid)  # (B, D, rows, columns)
    in_cells = boxes * torch.tensor([columns, rows, columns, rows], device=boxes.device)
    pooled = roi_align(feature_map.contiguous(), list(in_cells), output_size=1, aligned=True)  # (B · R, D, 1, 1)
    return pooled.view(*boxes.shape[:2], -1)
