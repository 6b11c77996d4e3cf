"""The Inception-v3 of 2015 that the Fréchet inception distance uses (Heusel et al. 2017).

It differs from torchvision's network in its pooling branches: averages do not count the padding, and the last block
takes a maximum. Batch norm has no scale (γ = 1), and the input is (x − 128) / 128.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.models import Inception3
from torchvision.models.inception import (
    BasicConv2d,
    InceptionA,
    InceptionAux,
    InceptionB,
    InceptionC,
    InceptionD,
    InceptionE,
)


def average(x: Tensor) -> Tensor:
    """A 3×3 mean over the pixels inside the image."""
    return F.avg_pool2d(x, kernel_size=3, stride=1, padding=1, count_include_pad=False)


class FidInceptionA(InceptionA):
    """Branches 1×1, 5×5, twice 3×3, and pooling."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) ↦ (B, C', h, w)."""
        branch5x5 = self.branch5x5_2(self.branch5x5_1(x))
        branch3x3 = self.branch3x3dbl_3(self.branch3x3dbl_2(self.branch3x3dbl_1(x)))
        return torch.cat((self.branch1x1(x), branch5x5, branch3x3, self.branch_pool(average(x))), dim=1)


class FidInceptionC(InceptionC):
    """Branches 1×1, 7×7, twice 7×7 (each as 1×7 and 7×1), and pooling."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) ↦ (B, C', h, w)."""
        branch7x7 = self.branch7x7_3(self.branch7x7_2(self.branch7x7_1(x)))
        double = self.branch7x7dbl_3(self.branch7x7dbl_2(self.branch7x7dbl_1(x)))
        double = self.branch7x7dbl_5(self.branch7x7dbl_4(double))
        return torch.cat((self.branch1x1(x), branch7x7, double, self.branch_pool(average(x))), dim=1)


class FidInceptionE(InceptionE):
    """Branches 1×1, 3×3, twice 3×3 (the last ones split into 1×3 beside 3×1), and pooling."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, h, w) ↦ (B, C', h, w)."""
        one = self.branch3x3_1(x)
        two = self.branch3x3dbl_2(self.branch3x3dbl_1(x))
        parts = (
            self.branch1x1(x),
            *(self.branch3x3_2a(one), self.branch3x3_2b(one)),
            *(self.branch3x3dbl_3a(two), self.branch3x3dbl_3b(two)),
            self.branch_pool(self.pool(x)),
        )
        return torch.cat(parts, dim=1)

    def pool(self, x: Tensor) -> Tensor:
        """The pooling of the pooling branch."""
        return average(x)


class FidInceptionLast(FidInceptionE):
    """The last block, whose pooling branch takes the maximum."""

    def pool(self, x: Tensor) -> Tensor:
        """A 3×3 maximum."""
        return F.max_pool2d(x, kernel_size=3, stride=1, padding=1)


def inception_fid() -> nn.Module:
    """Build the network with torchvision's module names."""
    blocks = [BasicConv2d, FidInceptionA, InceptionB, FidInceptionC, InceptionD, FidInceptionE, InceptionAux]
    net = Inception3(aux_logits=False, inception_blocks=blocks, init_weights=False)
    net.Mixed_7c = FidInceptionLast(2048)
    return net
