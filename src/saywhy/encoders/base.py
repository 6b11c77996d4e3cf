"""An encoder: an image ↦ the feature vectors a decoder may look at.

`Show, Attend and Tell` (Xu et al. 2015, section 3.1.1): the features a = {a_1, …, a_L}, a_i ∈ R^D, are
taken from a convolutional layer, not from a fully connected one, so that each a_i stands for a part of the
image.

Shapes: pixels (B, 3, H, W) ↦ body's map (B, D, rows, columns) ↦ features (B, L, D), L = rows · columns
in reading order.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from saywhy.encoders.features import Features
from saywhy.encoders.region_pooling import cut_regions
from saywhy.encoders.settings import EncoderSettings, InputConvention
from saywhy.errors import UserError

__all__ = ["Encoder", "EncoderSettings", "InputConvention", "block_names"]

BatchNorm = nn.modules.batchnorm._BatchNorm


class Encoder(nn.Module):
    """A network cut before its pooling, with the pixel convention its weights were trained on.

    It comes frozen; `finetune_from` says what is to be trained. Batch normalisation keeps its running
    statistics also under `.train()`: captioning batches are small, and two processes then compute what one
    computes. (`settings.train_batch_norm` lets it train.)

    Attributes:
        settings: what it was built from.
        size: the side in pixels of its usual square input; other sizes work too.
        width: D.
        stride: pixels from one feature to the next.
        convention: how pixels become the body's input.
        body: the network, (B, 3, H, W) normalised ↦ (B, D, rows, columns).
    """

    mean: Tensor
    std: Tensor

    def __init__(self, settings: EncoderSettings, body: nn.Module, width: int, stride: int) -> None:
        super().__init__()
        assert settings.convention is not None
        assert settings.size is not None
        self.settings = settings
        self.size, self.width, self.stride = settings.size, width, stride
        self.convention: InputConvention = settings.convention
        self.body = body
        for name in ("mean", "std"):
            values = torch.tensor(getattr(self.convention, name)).view(3, 1, 1)
            self.register_buffer(name, values, persistent=False)  # the settings keep them, not the weights
        self._blocks = block_names(body)
        self.finetune_from(None)

    def forward(self, pixels: Tensor, boxes: Tensor | None = None) -> Features:
        """Annotate images: on the network's grid or, with boxes, in regions cut out of it.

        Args:
            pixels: (B, 3, H, W), RGB from 0 to 255, uint8 or float.
            boxes: (B, R, 4) left, top, right, bottom as shares of the pixels' width and height.
        """
        return self.encode_normalised(self.normalise(pixels), boxes)

    def encode_normalised(self, x: Tensor, boxes: Tensor | None = None) -> Features:
        """As `forward`, of normalised pixels: what relevance can be followed through, up to its beginning."""
        features = self.feature_map(x)  # (B, D, rows, columns)
        rows, columns = features.shape[-2:]
        vectors = features.flatten(2).transpose(1, 2).contiguous()  # (B, L, D)
        grid = Features(vectors, (rows, columns))
        return grid if boxes is None else cut_regions(grid, boxes)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Turn 0–255 RGB into the body's input; linear, so relevance may be read in either."""
        if pixels.ndim != 4 or pixels.shape[1] != 3:
            raise ValueError(f"images must be (B, 3, H, W), not {tuple(pixels.shape)}")
        # channels last: convolutions run faster so on CPUs, and the features need no copy
        x = pixels.to(self.mean.dtype).contiguous(memory_format=torch.channels_last)
        if self.convention.channels == "bgr":
            x = x.flip(1)
        return (x - self.mean) / self.std

    def feature_map(self, x: Tensor) -> Tensor:
        """Trainer the body on normalised pixels: (B, 3, H, W) ↦ (B, D, rows, columns)."""
        return self.body(x)

    def blocks(self) -> list[str]:
        """The names of its blocks from input to output: the places fine-tuning may start at."""
        return list(self._blocks)

    def finetune_from(self, block: str | None) -> None:
        """Train from this block on, and freeze what is before.

        Args:
            block: one of `blocks()`, or the beginning of some ("layer4" for "layer4.0" and on); "all" for
                everything; None for nothing.
        """
        start = self._position(block)
        for name, parameter in self.body.named_parameters():
            parameter.requires_grad_(self.block_of(name) >= start)
        self._first_trained = start
        self.train(self.training)

    def train(self, mode: bool = True) -> Encoder:
        """Put the trained blocks into this mode; frozen ones and batch statistics stay in evaluation."""
        super().train(mode)
        for name, module in self.body.named_modules():
            frozen = self.block_of(name) < self._first_trained
            if frozen or (isinstance(module, BatchNorm) and not self.settings.train_batch_norm):
                module.training = False
        return self

    def _position(self, block: str | None) -> int:
        if block is None:
            return len(self._blocks)
        if block == "all":
            return 0
        for position, name in enumerate(self._blocks):
            if name == block or name.startswith(f"{block}."):
                return position
        names = ", ".join(self._blocks)
        raise UserError(f'{self.settings.name} has no block {block!r}: give "all" or one of {names}')

    def block_of(self, name: str) -> int:
        """The position of the block a part belongs to; what belongs to none counts as the first."""
        for position, block in enumerate(self._blocks):
            if name == block or name.startswith(f"{block}."):
                return position
        return 0


def block_names(body: nn.Module) -> list[str]:
    """Name the parts of a network that hold parameters, from input to output.

    A container (`nn.Sequential`, `nn.ModuleList`) is opened once: a ResNet has "conv1", "bn1", "layer1.0", …

    >>> pair = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    >>> block_names(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), pair))
    ['0', '2.0', '2.1']
    """
    names: list[str] = []
    for name, child in body.named_children():
        if isinstance(child, nn.Sequential | nn.ModuleList):
            names += [f"{name}.{inner}" for inner, part in child.named_children() if _has_parameters(part)]
        elif _has_parameters(child):
            names.append(name)
    return names


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
