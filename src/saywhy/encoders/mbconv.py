"""The network of EfficientNet-Lite, in plain layers.

Tan and Le (2019), table 1, as TensorFlow's "lite" variants have it: no squeeze-and-excitation, ReLU6 for
swish, stem and head of fixed width. A stage is a row of inverted residual blocks (Sandler et al. 2018): 1×1
expansion, depthwise k×k, 1×1 projection, each with batch norm (ε = 1e-3). Parts have timm's names, so
timm's files fit too; timm itself, which takes seconds to load, is not needed.

Padding is TensorFlow's "same": a stride of 2 pads one more at the end than at the beginning where the sum
is odd. Batch norm with fixed statistics is folded into its convolution as the network runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

BatchNorm2d = partial(nn.BatchNorm2d, eps=1e-3)


@dataclass(frozen=True)
class Stage:
    """A row of table 1: how often, which kernel, which stride, how wide inside, how wide outside."""

    repeats: int
    kernel: int
    stride: int
    expansion: int
    channels: int


STAGES = (
    Stage(1, 3, 1, 1, 16),
    Stage(2, 3, 2, 6, 24),
    Stage(2, 5, 2, 6, 40),
    Stage(3, 3, 2, 6, 80),
    Stage(3, 5, 1, 6, 112),
    Stage(4, 5, 2, 6, 192),
    Stage(1, 3, 1, 6, 320),
)


class Convolution(nn.Conv2d):
    """A convolution without bias, padded as TensorFlow does it; symmetric padding is the layer's own."""

    def __init__(
        self, before: int, after: int, kernel: int = 1, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        padding = (kernel - 1) * dilation // 2 if stride == 1 else 0
        super().__init__(before, after, kernel, stride, padding, dilation, groups, bias=False)
        self.reach = (kernel - 1) * dilation + 1

    def padded(self, x: Tensor) -> Tensor:
        """(B, C, h, w) ↦ (B, C, h + p, w + q), so that the result is ⌈size / stride⌉ large."""
        if self.stride[0] == 1:
            return x
        down, across = (self._amount(size) for size in x.shape[-2:])
        return F.pad(x, (across // 2, across - across // 2, down // 2, down - down // 2))

    def _amount(self, size: int) -> int:
        stride = self.stride[0]
        return max((math.ceil(size / stride) - 1) * stride + self.reach - size, 0)

    def normalised(self, x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        """norm(conv(x)); with fixed statistics the two are one convolution."""
        x = self.padded(x)
        if norm.training:
            return norm(self(x))
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        weight, bias = self.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)


class Separable(nn.Module):
    """The first block: depthwise k×k, then 1×1; there is nothing to expand."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.conv_dw = Convolution(before, before, kernel, stride, dilation, groups=before)
        self.bn1, self.act1 = BatchNorm2d(before), nn.ReLU6()
        self.conv_pw = Convolution(before, after)
        self.bn2 = BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, h, w) ↦ (B, after, h / stride, w / stride)."""
        x = self.act1(self.conv_dw.normalised(x, self.bn1))
        return self.conv_pw.normalised(x, self.bn2)


class InvertedResidual(nn.Module):
    """Expand, convolve each channel by itself, project; what came in is added where the shapes allow."""

    def __init__(self, before: int, after: int, kernel: int, stride: int, dilation: int, expansion: int) -> None:
        super().__init__()
        inside = before * expansion
        self.conv_pw = Convolution(before, inside)
        self.bn1, self.act1 = BatchNorm2d(inside), nn.ReLU6()
        self.conv_dw = Convolution(inside, inside, kernel, stride, dilation, groups=inside)
        self.bn2, self.act2 = BatchNorm2d(inside), nn.ReLU6()
        self.conv_pwl = Convolution(inside, after)
        self.bn3 = BatchNorm2d(after)
        self.residual = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        """(B, before, h, w) ↦ (B, after, h / stride, w / stride)."""
        inside = self.act1(self.conv_pw.normalised(x, self.bn1))
        inside = self.act2(self.conv_dw.normalised(inside, self.bn2))
        out = self.conv_pwl.normalised(inside, self.bn3)
        return x + out if self.residual else out


class EfficientNetLite(nn.Module):
    """The network up to its 1280-channel map.

    Args:
        width: multiplies the channels of the stages.
        depth: multiplies the repeats of all stages but the first and the last.
        output_stride: strides beyond it become dilations, which keep later kernels on the positions they had.
    """

    def __init__(self, width: float, depth: float, output_stride: int = 32) -> None:
        super().__init__()
        self.conv_stem = Convolution(3, 32, 3, stride=2)
        self.bn1, self.act1 = BatchNorm2d(32), nn.ReLU6()
        self.blocks = _stages(width, depth, output_stride)
        self.conv_head = Convolution(round_channels(STAGES[-1].channels * width), 1280)
        self.bn2, self.act2 = BatchNorm2d(1280), nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3, h, w) normalised ↦ (B, 1280, h / 32, w / 32)."""
        x = self.blocks(self.act1(self.conv_stem.normalised(x, self.bn1)))
        return self.act2(self.conv_head.normalised(x, self.bn2))


def round_channels(channels: float) -> int:
    """The nearest multiple of 8, but never a tenth less than asked for.

    >>> [round_channels(1.1 * c) for c in (16, 24, 40)]
    [16, 24, 48]
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _stages(width: float, depth: float, output_stride: int) -> nn.Sequential:
    stages, before, so_far, dilation = [], 32, 2, 1
    for stage in STAGES:
        fixed = stage in (STAGES[0], STAGES[-1])
        repeats = stage.repeats if fixed else math.ceil(stage.repeats * depth)
        after = round_channels(stage.channels * width)
        stride = stage.stride if so_far * stage.stride <= output_stride else 1
        first = _block(stage, before, after, stride, dilation)
        dilation *= stage.stride // stride  # a stride given up widens what comes after it
        rest = [_block(stage, after, after, 1, dilation) for _ in range(repeats - 1)]
        stages.append(nn.Sequential(first, *rest))
        before, so_far = after, so_far * stride
    return nn.Sequential(*stages)


def _block(stage: Stage, before: int, after: int, stride: int, dilation: int) -> nn.Module:
    if stage.expansion == 1:
        return Separable(before, after, stage.kernel, stride, dilation)
    return InvertedResidual(before, after, stage.kernel, stride, dilation, stage.expansion)
