"""An encoder: an image ↦ the feature vectors that a decoder attends to.

`Show, Attend and Tell` (Xu et al. 2015, section 3.1.1): the features a = {a_1, …, a_L}, a_i ∈ R^D, come from a
convolutional layer, not from a fully connected one, so that each a_i belongs to a part of the image.

Shapes: pixels (B, 3, H, W) ↦ feature map (B, D, rows, columns) ↦ features (B, L, D), L = rows · columns in reading
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from saywhy.data.regions import has_area
from saywhy.encoders.region_pooling import pool_boxes
from saywhy.encoders.registry import EncoderSettings, InputConvention, encoders, families
from saywhy.encoders.weights import load_into, read_weights
from saywhy.errors import UserError

BatchNorm = nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class Features:
    """L vectors per image, and where in the image they are: on a grid, or in boxes.

    Attributes:
        vectors: (B, L, D).
        grid: rows and columns if the L vectors are a grid in reading order, L = rows · columns.
        boxes: (B, L, 4) if they are regions: left, top, right, bottom as shares of the encoder's input.
        mask: (B, L), true where a vector exists, as images may have fewer regions than L; None if all exist.
        unplaced: how many of the L vectors, the first ones, stand for no place, such as a class token; a grid has
            L − unplaced cells.
    """

    vectors: Tensor
    grid: tuple[int, int] | None = None
    boxes: Tensor | None = None
    mask: Tensor | None = None
    unplaced: int = 0

    @classmethod
    def of_regions(cls, vectors: Tensor, boxes: Tensor) -> Features:
        """Vectors of boxes; a box without area is padding."""
        return cls(vectors, None, boxes, has_area(boxes))

    @classmethod
    def joined(cls, parts: Sequence[Features]) -> Features:
        """The features of several batches as one batch."""
        if len(parts) == 1:
            return parts[0]
        boxes = [part.boxes for part in parts if part.boxes is not None]
        masks = [part.mask for part in parts if part.mask is not None]
        return cls(
            torch.cat([part.vectors for part in parts]),
            parts[0].grid,
            torch.cat(boxes) if boxes else None,
            torch.cat(masks) if masks else None,
            parts[0].unplaced,
        )

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, rows: slice) -> Features:
        """The features of these rows of the batch, as views."""
        boxes, mask = (None if part is None else part[rows] for part in (self.boxes, self.mask))
        return Features(self.vectors[rows], self.grid, boxes, mask, self.unplaced)

    def select(self, rows: Tensor) -> Features:
        """The features of these rows of the batch; a row may occur more than once."""
        boxes, mask = (None if part is None else take_rows(part, rows) for part in (self.boxes, self.mask))
        return Features(take_rows(self.vectors, rows), self.grid, boxes, mask, self.unplaced)

    def in_boxes(self, boxes: Tensor) -> Features:
        """Features of boxes (B, R, 4), pooled from these, which are on a grid; a box without area is padding."""
        if self.grid is None:
            raise ValueError("regions are pooled from features on a grid")
        return Features.of_regions(pool_boxes(self.vectors, self.grid, boxes), boxes.float())

    def mean(self) -> Tensor:
        """The mean vector, (B, D)."""
        if self.mask is None:
            return self.vectors.mean(dim=1)
        weights = self.mask.unsqueeze(-1).to(self.vectors.dtype)  # (B, L, 1)
        return (self.vectors * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)

    def attend(self, energies: Tensor) -> Tensor:
        """α = softmax(energies) over the existing vectors, for energies (B, …, L)."""
        return self.hide(energies).softmax(dim=-1)

    def hide(self, energies: Tensor) -> Tensor:
        """Energies (B, …, L) with −∞ where the mask is false."""
        if self.mask is None:
            return energies
        mask = self.mask.view(len(self.mask), *[1] * (energies.ndim - 2), -1)  # (B, 1, …, L)
        return energies.masked_fill(~mask, -torch.inf)

    def without(self, rows: Tensor, substitute: Tensor) -> Features:
        """These features, where rows (B,) that are true have the one vector `substitute` (D) and no other."""
        replaced = rows[:, None]  # (B, 1)
        mask = torch.ones_like(self.vectors[..., 0], dtype=torch.bool) if self.mask is None else self.mask
        first = torch.arange(mask.shape[1], device=mask.device) == 0  # (L)
        vectors = torch.where(replaced[..., None], substitute.to(self.vectors), self.vectors)
        return replace(self, vectors=vectors, mask=torch.where(replaced, first, mask))


def take_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Rows of a batch, (R, …); rows of a batch of one are a view of it, R times.

    So the beams of a single image share its features instead of copying them for each beam and word.
    """
    if len(values) == 1 or values.stride(0) == 0:
        return values[:1].expand(len(rows), *values.shape[1:])
    return values.index_select(0, rows)


class Encoder(nn.Module):
    """A network cut before its pooling, with the pixel normalisation its weights were trained with.

    It is built frozen; `finetune_from` selects the blocks to train. Batch normalisation keeps its running statistics
    also under `.train()`, because batches of captioning are small and results must not depend on the number of
    processes. (`settings.train_batch_norm` changes this.)

    Attributes:
        settings: what it was built from.
        size: side in pixels of its default square input; other sizes work too.
        width: D.
        stride: pixels between neighbouring features.
        convention: how pixels become the input of the body.
        body: the network, normalised (B, 3, H, W) ↦ (B, D, rows, columns).
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
            self.register_buffer(name, values, persistent=False)  # saved with the settings, not with the weights
        self._blocks = block_names(body)
        self.finetune_from(None)

    def forward(self, pixels: Tensor, boxes: Tensor | None = None) -> Features:
        """The features of images: on the network's grid or, with boxes, of regions.

        Args:
            pixels: (B, 3, H, W), RGB from 0 to 255, uint8 or float.
            boxes: (B, R, 4) left, top, right, bottom as shares of the pixels' width and height.
        """
        return self.encode_normalised(self.normalise(pixels), boxes)

    def encode_normalised(self, x: Tensor, boxes: Tensor | None = None) -> Features:
        """As `forward`, for normalised pixels: relevance is propagated back to these."""
        feature_map = self.feature_map(x)  # (B, D, rows, columns)
        rows, columns = feature_map.shape[-2:]
        vectors = feature_map.flatten(2).transpose(1, 2).contiguous()  # (B, L, D)
        features = Features(vectors, (rows, columns))
        return features if boxes is None else features.in_boxes(boxes)

    def normalise(self, pixels: Tensor) -> Tensor:
        """Turn 0–255 RGB into the body's input; linear, so relevance may be read in either."""
        if pixels.ndim != 4 or pixels.shape[1] != 3:
            raise ValueError(f"images must be (B, 3, H, W), not {tuple(pixels.shape)}")
        # channels last: convolutions are faster on CPUs, and the features need no copy
        x = pixels.to(self.mean.dtype).contiguous(memory_format=torch.channels_last)
        if self.convention.channels == "bgr":
            x = x.flip(1)
        return (x - self.mean) / self.std

    def feature_map(self, x: Tensor) -> Tensor:
        """Run the body on normalised pixels: (B, 3, H, W) ↦ (B, D, rows, columns)."""
        return self.body(x)

    def blocks(self) -> list[str]:
        """The names of its blocks from input to output: fine-tuning may start at any of them."""
        return list(self._blocks)

    def finetune_from(self, block: str | None) -> None:
        """Train this block and all after it; freeze the blocks before it.

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
        """Set the mode of the trained blocks; frozen blocks and batch statistics stay in evaluation mode."""
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
        """The position of the block that contains a module or parameter; 0 if no block contains it."""
        for position, block in enumerate(self._blocks):
            if name == block or name.startswith(f"{block}."):
                return position
        return 0


def block_names(body: nn.Module) -> list[str]:
    """The names of the parts of a network that have parameters, from input to output.

    Containers (`nn.Sequential`, `nn.ModuleList`) are opened one level: a ResNet has "conv1", "bn1", "layer1.0", …

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


def build(name: str, weights: str | Path | None = "imagenet", **settings: Any) -> Encoder:
    """Build an encoder.

    Args:
        name: one of `encoders.registered()`, or "timm:NAME" for a network of timm.
        weights: "imagenet" for its published weights, None or "none" for random weights, or a file.
        settings: the other fields of `EncoderSettings`; `**dataclasses.asdict(encoder.settings)`, which includes
            the name, builds the same network.
    """
    weights = None if weights == "none" else weights
    encoder = build_from_settings(EncoderSettings.from_dict({"name": name, **settings}), weights)
    if weights is None:
        calibrate_batch_norm(encoder)
    return encoder


def build_from_settings(settings: EncoderSettings, weights: str | Path | None = None) -> Encoder:
    """Build an encoder from its settings; random weights (None) are for a caller that loads weights next."""
    prefix, colon, _ = settings.name.partition(":")
    if colon:
        return families[prefix](settings, weights)
    spec = encoders[settings.name]
    settings = replace(settings, size=settings.size or spec.size, convention=settings.convention or spec.convention)
    body = spec.make(settings)
    if weights == "imagenet":
        load_into(body, spec.translate(spec.fetch(spec.name), body), f"the weights of {spec.name}")
    elif weights is not None:
        load_into(body, spec.translate(read_weights(weights), body), weights)
    return Encoder(settings, body, spec.width, settings.output_stride or spec.stride)


@torch.no_grad()
def calibrate_batch_norm(encoder: Encoder) -> None:
    """Run noise through a random network once, so that its batch statistics fit its weights.

    Otherwise the activations of a deep random network grow with each sum (1e12 at the end of a DenseNet-201) or
    vanish.
    """
    layers = [module for module in encoder.modules() if isinstance(module, BatchNorm)]
    saved = [(layer.training, layer.momentum) for layer in layers]
    for layer in layers:
        layer.training, layer.momentum = True, 1.0  # the statistics of this one batch
    if layers:
        encoder(torch.rand(2, 3, encoder.size, encoder.size) * 255)
    for layer, (training, momentum) in zip(layers, saved, strict=True):
        layer.training, layer.momentum = training, momentum


def initialise(body: nn.Module) -> nn.Module:
    """Draw random convolutions that keep the variance through ReLUs (He et al. 2015); reset batch norms."""
    for module in body.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            module.reset_parameters()
    return body
