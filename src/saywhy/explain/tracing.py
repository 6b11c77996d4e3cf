"""Names of torch functions: one operation is known to torch under several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.overrides import TorchFunctionMode

from saywhy.errors import UserError


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
            *("interpolate", "pixel_shuffle", "pixel_unshuffle", "unfold", "fold", "diagonal"),
            *("pad_sequence", "alpha_dropout", "adaptive_max_pool2d", "as_strided", "cumsum", "chunk"),
            *("split", "tensor_split", "unbind", "amax", "amin", "topk", "sort"),
        ),
        rnn.pad_sequence,
        Tensor.T.__get__,  # type: ignore[attr-defined]
        Tensor.mT.__get__,  # type: ignore[attr-defined]
    )
)
"""Functions whose gradient carries relevance by value as it should be carried: linear ones, and those that choose."""

LINEAR_BY_NAME = frozenset({"torchvision.roi_align"})
"""Such functions of a library that is slow to load, and that a model may do without."""


def is_linear(func: Any) -> bool:
    """Whether a function's gradient carries relevance as it should be carried."""
    return func in LINEAR or str(func) in LINEAR_BY_NAME


def is_signal(value: Any) -> bool:
    """Whether relevance can come to it."""
    return isinstance(value, Tensor) and value.requires_grad


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Arguments, however nested, with `change` made to each."""
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(mapped(change, each) for each in value)
    if isinstance(value, dict):
        return {key: mapped(change, each) for key, each in value.items()}
    return change(value)


def signals(*values: Any) -> list[Tensor]:
    """The signals among arguments, however nested."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, tuple | list):
            found += signals(*value)
        elif isinstance(value, dict):
            found += signals(*value.values())
        elif is_signal(value):
            found.append(value)
    return found


def out_of_place(func: Any) -> Any:
    """The function that computes what this one writes into its first argument; None if it writes nothing.

    >>> out_of_place(Tensor.add_) is Tensor.add
    True
    """
    name = getattr(func, "__name__", "")
    if name.startswith("__i") and name.endswith("__"):
        return getattr(Tensor, f"__{name[3:]}", None)
    if not name.endswith("_") or name.endswith("__"):
        return None
    found = (getattr(home, name[:-1], None) for home in (Tensor, torch, F))
    return next((each for each in found if callable(each)), None)


class TracingMode(TorchFunctionMode):
    """Sees every torch function that a model calls; a subclass says in `call` what comes of it.

    Parameters are cut off: nothing is traced to weights. What a function writes in place becomes a new tensor, which
    stands for the old one while the mode is on, so that what a backward pass needs of that is still there. What a
    model gives back may be such an old one: `now` says what it stands for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What `call` makes of the function."""
        args, kwargs = mapped(now, args), mapped(now, kwargs or {})
        if not signals(args, kwargs):
            return self.call(func, args, kwargs)
        first = args[0] if args else kwargs.get("input")
        plain, inplace = out_of_place(func), kwargs.pop("inplace", False)
        out = self.call(plain or func, args, kwargs)
        if plain is not None or inplace:
            self._written += [first, *_write(first, out)]
        elif isinstance(out, Tensor) and isinstance(first, Tensor) and _share_numbers(out, first):
            out.part_of = first  # type: ignore[attr-defined]
        return out

    def __exit__(self, *error: Any) -> None:
        """Forget what was written: a tensor that leads to its own successor would never be freed."""
        super().__exit__(*error)
        while self._written:
            for name in ("became", "overwritten"):
                self._written[-1].__dict__.pop(name, None)
            self._written.pop()

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The function's own result, unless a subclass has another."""
        return func(*args, **kwargs)


def _write(where: Tensor, out: Tensor) -> list[Tensor]:
    """From now on `where` is `out`; what it was a part of has changed, too, and must not be read any more."""
    where.became = out  # type: ignore[attr-defined]
    wholes = []
    while (where := getattr(where, "part_of", None)) is not None:  # type: ignore[assignment]
        where.overwritten = True  # type: ignore[attr-defined]
        wholes.append(where)
    return wholes


def _share_numbers(one: Tensor, other: Tensor) -> bool:
    return one is not other and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def now(value: Any) -> Any:
    """What a value stands for by now; of a parameter, its numbers."""
    while hasattr(value, "became"):
        value = value.became
    if hasattr(value, "overwritten"):
        raise UserError("what a model writes into part of a tensor cannot be traced: this model cannot be explained")
    return value.detach() if isinstance(value, nn.Parameter) else value
