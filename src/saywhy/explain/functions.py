"""Names of torch functions: one operation is known to torch under several."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn


def variants(*names: str) -> tuple[Any, ...]:
    """The functions of these names in torch, its tensors and `torch.nn.functional`.

    >>> len(variants("relu"))
    3
    """
    homes = (torch, Tensor, F, torch._C._nn)
    return tuple({getattr(home, name) for name in names for home in homes if hasattr(home, name)})


LINEAR = frozenset(
    (
        *variants(
            *("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "transpose", "permute", "swapaxes"),
            *("movedim", "t", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "repeat", "tile"),
            *("repeat_interleave", "contiguous", "to", "float", "double", "type_as", "clone", "select", "narrow"),
            *("index_select", "gather", "roll", "flip", "rot90", "mean", "sum", "__getitem__", "neg", "__neg__"),
            *("dropout", "dropout_", "feature_dropout", "avg_pool2d", "adaptive_avg_pool2d", "max_pool2d"),
            *("interpolate", "pixel_shuffle", "pixel_unshuffle", "unfold", "fold", "masked_fill", "diagonal"),
            *("pad_sequence", "alpha_dropout", "adaptive_max_pool2d", "as_strided", "cumsum", "identity"),
        ),
        rnn.pad_sequence,
        Tensor.T.__get__,  # type: ignore[attr-defined]
        Tensor.mT.__get__,  # type: ignore[attr-defined]
    )
)
"""Functions whose gradient carries relevance by value as it should be carried: linear ones, and those that choose."""


def is_signal(value: Any) -> bool:
    """Whether relevance can come to it."""
    return isinstance(value, Tensor) and value.requires_grad


def constant(value: Any) -> Any:
    """The same with parameters cut off: relevance does not go to weights."""
    if isinstance(value, nn.Parameter):
        return value.detach()
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(constant(each) for each in value)
    if isinstance(value, dict):
        return {key: constant(each) for key, each in value.items()}
    return value


def carries(value: Any) -> bool:
    """Whether there is a signal among arguments, however nested."""
    if isinstance(value, tuple | list):
        return any(carries(each) for each in value)
    if isinstance(value, dict):
        return any(carries(each) for each in value.values())
    return is_signal(value)
