"""Regions cut out of the grid of any encoder.

RoI-align (He et al. 2017, https://arxiv.org/abs/1703.06870, section 3): a box's vector is the mean of the grid at
points spread evenly over the box, about one a cell, each read between its four neighbours. So a box that is one cell
has that cell's vector, and the whole image has the mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from saywhy.encoders.features import Features


def cut_regions(features: Features, boxes: Tensor) -> Features:
    """The regions of boxes (B, R, 4) out of features on a grid; a box without an area is no region."""
    from torchvision.ops import roi_align  # slow to load, and a grid needs none of it

    assert features.grid is not None, "regions are cut out of a grid"
    rows, columns = features.grid
    boxes = boxes.float()
    grid = features.vectors.float().transpose(1, 2).unflatten(2, (rows, columns))  # (B, D, rows, columns)
    places = boxes * torch.tensor([columns, rows, columns, rows], device=boxes.device)  # in cells
    vectors = roi_align(grid.contiguous(), list(places), output_size=1, aligned=True)  # (B · R, D, 1, 1)
    return Features.of_regions(vectors.view(*boxes.shape[:2], -1), boxes)
