"""Key-value caches of transformers as one tensor with the batch first, which beam search can reorder."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def packed(cache: Any) -> Tensor:
    """The keys and values of a cache of transformers as one tensor, (B, layers, 2, heads, t, d)."""
    return torch.stack([torch.stack([layer.keys, layer.values], dim=1) for layer in cache.layers], dim=1)


def unpacked(values: Tensor) -> Any:
    """A cache of transformers with these keys and values; an empty one for (B, 0)."""
    from transformers import DynamicCache

    cache = DynamicCache()
    if values.ndim > 2:
        for number, (keys, layer_values) in enumerate(layer.unbind(1) for layer in values.unbind(1)):
            cache.update(keys, layer_values, number)
    return cache
