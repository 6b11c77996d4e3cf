"""Modes that intercept every torch function a model calls, and the names by which torch knows those functions.

A `TracingMode` works on functions, not modules: a ReLU is intercepted whether it is a module, a function, in place, or
one module used many times. Nothing is registered on the model, so nothing needs to be removed after an error.

`GradientMode` and `GuidedMode` are the modes of gradient methods; the mode of LRP is `lrp.LRPMode`. Guided
backpropagation (Springenberg et al. 2015, https://arxiv.org/abs/1412.6806) also sets negative gradients to zero on the
way back through a ReLU. As in the LRP paper, only the encoder's ReLUs are guided. Attention and gates are
differentiated like everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F
from torch.nn.utils import rnn
from torch.overrides import TorchFunctionMode

from saywhy.errors import UserError


def variants(*names: str) -> tuple[Any, ...]:
    """The functions with these names in torch, its tensors and `torch.nn.functional`.

    >>> len(variants("relu"))
    3
    """
    namespaces = (torch, Tensor, F, torch._C._nn)
    return tuple({getattr(space, name) for name in names for space in namespaces if hasattr(space, name)})


CELLS = frozenset(variants("lstm_cell"))
RECTIFIERS = frozenset(variants("relu", "relu_", "relu6", "hardtanh", "hardtanh_"))
LINEAR = frozenset(
    (
        *variants(
            *("view", "view_as", "reshape", "reshape_as", "flatten", "unflatten", "transpose", "permute", "swapaxes"),
            *("movedim", "t", "squeeze", "unsqueeze", "expand", "expand_as", "broadcast_to", "repeat", "tile"),
            *("repeat_interleave", "contiguous", "to", "float", "double", "type_as", "clone", "select", "narrow"),
            *("index_select", "gather", "roll", "flip", "rot90", "mean", "sum", "__getitem__", "neg", "__neg__"),
            *("dropout", "dropout_", "feature_dropout", "avg_pool2d", "adaptive_avg_pool2d", "max_pool2d"),
            *("interpolate", "pixel_shuffle", "pixel_unshuffle", "unfold", "fold", "diagonal", "type"),
            *("pad_sequence", "alpha_dropout", "adaptive_max_pool2d", "as_strided", "cumsum", "chunk"),
            *("split", "tensor_split", "unbind", "amax", "amin", "topk", "sort"),
        ),
        rnn.pad_sequence,
        Tensor.T.__get__,  # type: ignore[attr-defined]
        Tensor.mT.__get__,  # type: ignore[attr-defined]
    )
)
"""Functions whose gradient propagates g = R / y without a rule: linear ones, and those that select values."""

LINEAR_BY_NAME = frozenset({"torchvision.roi_align"})
"""Such functions of optional libraries, which are not imported for it."""


def is_linear(func: Any) -> bool:
    """Whether a function's gradient propagates relevance without a rule."""
    return func in LINEAR or str(func) in LINEAR_BY_NAME


def is_signal(value: Any) -> bool:
    """Whether the value is a tensor that relevance can reach."""
    return isinstance(value, Tensor) and value.requires_grad


def map_nested(function: Callable[[Any], Any], value: Any) -> Any:
    """Apply a function to every value of nested tuples, lists and dictionaries."""
    if isinstance(value, tuple | list) and not hasattr(value, "_fields"):
        return type(value)(map_nested(function, item) for item in value)
    if isinstance(value, dict):
        return {key: map_nested(function, item) for key, item in value.items()}
    return function(value)


def signals(*values: Any) -> list[Tensor]:
    """The signals in nested tuples, lists and dictionaries."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, tuple | list):
            tensors += signals(*value)
        elif isinstance(value, dict):
            tensors += signals(*value.values())
        elif is_signal(value):
            tensors.append(value)
    return tensors


def out_of_place(func: Any) -> Any:
    """The function that computes what this one writes into its first argument; None if it writes nothing.

    >>> out_of_place(Tensor.add_) is Tensor.add
    True
    """
    name = getattr(func, "__name__", "")
    if func is Tensor.__setitem__:
        return written
    if name.startswith("__i") and name.endswith("__"):
        return getattr(Tensor, f"__{name[3:]}", None)
    if not name.endswith("_") or name.endswith("__"):
        return None
    candidates = (getattr(space, name[:-1], None) for space in (Tensor, torch, F))
    return next((function for function in candidates if callable(function)), None)


WRITES_INTO_PART = "this model writes into part of a tensor, which cannot be traced: it cannot be explained"


def written(x: Tensor, index: Any, value: Any) -> Tensor:
    """A copy of x in which x[index] is `value`; the tensor is to be all that refers to its memory."""
    x = x.clone()
    x[index] = value
    return x


IsWordTable = Callable[[Tensor], bool]
"""Whether a table of embeddings is that of words. What is looked up in others, such as positions, is a constant."""


def every_table(table: Tensor) -> bool:
    """All embeddings are those of words."""
    return True


def no_table(table: Tensor) -> bool:
    """No embedding is that of a word, as in an encoder of images."""
    return False


class TracingMode(TorchFunctionMode):
    """Intercepts every torch function that a model calls; subclasses override `call`.

    Parameters are detached: nothing is propagated to weights. In-place functions are replaced by out-of-place ones;
    while the mode is on, `current` maps the old tensor to its replacement, so that the backward pass finds the
    values it needs. A model may return such an old tensor: apply `current` to its result.
    """

    def __init__(self) -> None:
        super().__init__()
        self._written: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run `call` on the current values of the arguments."""
        args, kwargs = map_nested(current, args), map_nested(current, kwargs or {})
        if not signals(args, kwargs):
            return self.call(func, args, kwargs)
        first = args[0] if args else kwargs.get("input")
        if func is Tensor.__setitem__ and first._is_view():  # what it is a view of would not change
            raise UserError(WRITES_INTO_PART)
        plain, inplace = out_of_place(func), kwargs.pop("inplace", False)
        out = self.call(plain or func, args, kwargs)
        if plain is not None or inplace:
            self._written += [first, *_replace(first, out)]
        elif isinstance(out, Tensor) and isinstance(first, Tensor) and _share_storage(out, first):
            out.view_of = first  # type: ignore[attr-defined]
        return out

    def __exit__(self, *error: Any) -> None:
        """Remove the marks on tensors: one that refers to its own successor would never be freed."""
        super().__exit__(*error)
        while self._written:
            for name in ("replacement", "overwritten"):
                self._written[-1].__dict__.pop(name, None)
            self._written.pop()

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The function's own result."""
        return func(*args, **kwargs)


def _replace(tensor: Tensor, out: Tensor) -> list[Tensor]:
    """Mark `out` as the replacement of a tensor, and the tensors it is a view of as overwritten; return these."""
    tensor.replacement = out  # type: ignore[attr-defined]
    bases = []
    while (tensor := getattr(tensor, "view_of", None)) is not None:  # type: ignore[assignment]
        tensor.overwritten = True  # type: ignore[attr-defined]
        bases.append(tensor)
    return bases


def _share_storage(one: Tensor, other: Tensor) -> bool:
    return one is not other and one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def current(value: Any) -> Any:
    """The replacement of a tensor that was written in place, else the value; parameters are detached."""
    while hasattr(value, "replacement"):
        value = value.replacement
    if hasattr(value, "overwritten"):
        raise UserError(WRITES_INTO_PART)
    return value.detach() if isinstance(value, nn.Parameter) else value


class GradientMode(TracingMode):
    """Gradients end at word embeddings.

    Attributes:
        is_word_table: which embeddings are those of words.
        embedded: the word embeddings in the order of their lookups.
    """

    def __init__(self, is_word_table: IsWordTable = every_table) -> None:
        super().__init__()
        self.is_word_table = is_word_table
        self.embedded: list[Tensor] = []

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The function's own result; embeddings become leaves."""
        if func in CELLS:
            return _lstm_cell(*args, **kwargs)
        out = func(*args, **kwargs)
        if func is F.embedding and self.is_word_table(args[1]):
            self.embedded.append(out.requires_grad_())
        return out


def _lstm_cell(
    x: Tensor, state: tuple[Tensor, Tensor], W: Tensor, U: Tensor, b_x: Tensor | None = None, b_h: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The cell in plain operations: the fused CUDA cell has no backward under vmap."""
    h, c = state
    i, f, g, o = (F.linear(x, W, b_x) + F.linear(h, U, b_h)).chunk(4, dim=-1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


class GuidedMode(TracingMode):
    """After a forward pass under this mode, backward passes can be guided.

    Attributes:
        is_guided: whether they are.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_guided = False

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The function's own result; rectifiers get a backward pass that can be guided."""
        if func in RECTIFIERS and signals(args):
            x, *rest = args
            return Rectifier.apply(x, func(x.detach(), *rest, **kwargs), self)
        return func(*args, **kwargs)

    @contextmanager
    def guided(self) -> Iterator[None]:
        """Guide the backward passes in this block."""
        self.is_guided = True
        try:
            yield
        finally:
            self.is_guided = False


class Rectifier(Function):
    """A rectifier x ↦ y: its gradient is 1 where y equals x, and 0 elsewhere."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, mode: GuidedMode) -> Tensor:
        """Return y unchanged."""
        ctx.save_for_backward((x == y) & (y != 0))
        ctx.mode = mode
        return y.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """Return the gradient, guided if the mode is."""
        (is_active,) = ctx.saved_tensors
        return (g.clamp(min=0) if ctx.mode.is_guided else g) * is_active, None, None
