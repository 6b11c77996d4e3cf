"""Mean and standard deviation of the channels of an encoder's maps, from which familiarity is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.encoders.base import Encoder, Features
from saywhy.inference.familiarity_model import FEATURES, Statistics

STRIDES = (8, 16)


def image_statistics(
    captioner: Captioner, pixels: Tensor, boxes: Tensor | None, blocks: Sequence[str]
) -> tuple[Features, Statistics]:
    """The features of images, and the statistics of the maps of these blocks and of the features themselves."""
    features, statistics = encode_with_statistics(captioner, pixels, boxes, blocks)
    return features, {name: values.cpu().numpy() for name, values in statistics.items()}


def encode_with_statistics(
    captioner: Captioner, pixels: Tensor, boxes: Tensor | None, blocks: Sequence[str]
) -> tuple[Features, dict[str, Tensor]]:
    """As `image_statistics`, with tensors."""
    with _recorded_maps(captioner.encoder, blocks) as maps:
        features = captioner.encode(pixels, boxes)
    values = {name: channel_statistics(maps[name].flatten(2).transpose(1, 2)) for name in blocks if name in maps}
    return features, {**values, FEATURES: channel_statistics(features.vectors, features.mask)}


def middle_blocks(captioner: Captioner, pixels: Tensor, boxes: Tensor | None = None) -> tuple[str, ...]:
    """The blocks of the encoder whose maps have stride 8 or 16, the last of each width; none for other networks."""
    encoder = captioner.encoder
    with torch.no_grad(), _recorded_maps(encoder, encoder.blocks()) as maps:
        captioner.encode(pixels, boxes)
    side = pixels.shape[-1]
    last = {values.shape: name for name, values in maps.items() if round(side / values.shape[-1]) in STRIDES}
    return tuple(last.values())


@contextmanager
def _recorded_maps(encoder: Encoder, blocks: Sequence[str]) -> Iterator[dict[str, Tensor]]:
    """The maps (B, C, h, w) of blocks, recorded while the encoder runs."""
    maps: dict[str, Tensor] = {}

    def record(name: str) -> Any:
        def hook(module: object, inputs: object, output: object) -> None:
            if isinstance(output, Tensor) and output.ndim == 4:
                maps[name] = output

        return encoder.body.get_submodule(name).register_forward_hook(hook)

    handles = [record(name) for name in blocks]
    try:
        yield maps
    finally:
        for handle in handles:
            handle.remove()


def channel_statistics(vectors: Tensor, mask: Tensor | None = None) -> Tensor:
    """Mean and standard deviation over positions: (B, L, C) ↦ (B, 2C); `mask` (B, L) is false where none is."""
    vectors = vectors.detach().float()
    weights = torch.ones_like(vectors[..., :1]) if mask is None else mask.unsqueeze(-1).float()  # (B, L, 1)
    count = weights.sum(dim=1).clamp(min=1)
    mean = (vectors * weights).sum(dim=1) / count  # (B, C)
    variance = ((vectors - mean.unsqueeze(1)) ** 2 * weights).sum(dim=1) / count
    return torch.cat([mean, variance.sqrt()], dim=1)
