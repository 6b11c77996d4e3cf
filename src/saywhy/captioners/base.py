"""The interface of every captioner.

Decoding, training, explaining and saving use `encode`, `start`, `step` and `forward` of a captioner, and three methods
with a default: `without_image`, `auxiliary_loss`, `using_attention`.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.weak import WeakTensorKeyDictionary

from saywhy.data.tokenizer import PAD
from saywhy.encoders.base import Encoder, Features, take_rows
from saywhy.errors import UserError, did_you_mean
from saywhy.registry import Registry

captioners: Registry[type[Captioner]] = Registry(
    "captioner",
    entry_points="saywhy.captioners",
    builtin=(
        "saywhy.captioners.soft_attention",
        "saywhy.captioners.hard_attention",
        "saywhy.captioners.ada_lstm",
        "saywhy.captioners.mh_fc",
        "saywhy.captioners.coca",
    ),
)


@dataclass(frozen=True)
class State:
    """The decoder's state between two words, with the batch first.

    Every field is a tensor, Features, None, or a state of its own, such as that of a captioner inside another one.
    """

    def select(self, rows: Tensor) -> Self:
        """The states of these rows: beam search reorders beams and removes finished images with it."""
        return dataclasses.replace(self, **{name: _select(value, rows) for name, value in self._fields()})

    def select_beams(self, rows: Tensor, before: Self) -> Self:
        """As `select`, where each of these rows has the image that its new place had before.

        What the last step took unchanged from the state `before` it is the same for all beams of an image, such as
        features and keys: it is not copied.
        """
        values: dict[str, Any] = {}
        for name, value in self._fields():
            earlier = getattr(before, name)
            if isinstance(value, State) and isinstance(earlier, State):
                values[name] = value.select_beams(rows, earlier)
            elif value is earlier and isinstance(value, Tensor | Features):
                values[name] = value[: len(rows)]
            else:
                values[name] = _select(value, rows)
        return dataclasses.replace(self, **values)

    def first(self, rows: int) -> Self:
        """The states of the first rows, as views."""
        return dataclasses.replace(self, **{name: value[:rows] for name, value in self._fields()})

    def _fields(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]


def _select(value: Any, rows: Tensor) -> Any:
    if value is None:
        return None
    return take_rows(value, rows) if isinstance(value, Tensor) else value.select(rows)


@dataclass(frozen=True)
class Attention:
    """The attention while predicting one word; teacher forcing returns all words, with a time axis after the batch.

    Attributes:
        alpha: attention over the features, (B, [heads,] L), each row sums to one.
        beta: the gate between image and words, (B,), as defined in the architecture's paper
            (`Captioner.beta_admits` names the side it lets in), or None without a gate.
        drawn: the index of the feature that was sampled in place of the weighted mean, (B,), −1 where none was;
            None unless the architecture samples.
    """

    alpha: Tensor
    beta: Tensor | None = None
    drawn: Tensor | None = None

    @classmethod
    def over_time(cls, steps: Sequence[Attention]) -> Attention:
        """The attention of several steps, with a time axis; later steps may have fewer rows (`active_rows`)."""
        betas = [step.beta for step in steps if step.beta is not None]
        drawn = [step.drawn for step in steps if step.drawn is not None]
        return cls(
            stack_over_time([step.alpha for step in steps]),
            stack_over_time(betas) if betas else None,
            stack_over_time(drawn, padding=-1) if drawn else None,
        )


def stack_over_time(steps: Sequence[Tensor], padding: float = 0) -> Tensor:
    """Tensors (B, …) of T steps as one (B, T, …); steps with fewer rows than the first are padded."""
    return pad_sequence(list(steps), batch_first=True, padding_value=padding).transpose(0, 1)


def active_rows(captions: Tensor) -> list[int]:
    """For each time, how many rows of captions (B, T), from the first, contain all that are not padding yet.

    Teacher forcing can skip the others. If the longest captions come first, it skips all padding; the first time
    always has all rows, so that the result has B rows. On a GPU this waits for the device: training passes the
    numbers to `forward` instead.

    >>> active_rows(torch.tensor([[1, 5, 6], [1, 4, PAD], [1, PAD, PAD]]))
    [3, 2, 1]
    """
    number = torch.arange(1, len(captions) + 1, device=captions.device)
    rows = ((captions != PAD) * number[:, None]).amax(dim=0).clamp(min=1)  # (T)
    return [len(captions), *rows[1:].tolist()]


@dataclass(frozen=True)
class TeacherForced:
    """The result of teacher forcing N captions: the input of an architecture's `auxiliary_loss`.

    Attributes:
        features: of each caption's image, (N, L, D).
        tokens: (N, T + 1) from `<start>` to `<end>`, padded.
        log_p: log p of tokens 1 to T, (N, T), 0 at padding; with gradient.
        mask: false at padding, (N, T).
        has_image: false where conditioning dropout removed the image, (N,).
        image_index: the number of each caption's image in the batch, (N,).
        attention: of all words.
    """

    features: Features
    tokens: Tensor
    log_p: Tensor
    mask: Tensor
    has_image: Tensor
    image_index: Tensor
    attention: Attention


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Step(Generic[S]):
    """The result of decoding one word.

    Attributes:
        logits: of the next word, (B, V).
        state: the next state.
        attention: of this word.
        scores: (B, V), by which decoding chooses words in place of the logits; None without guidance.
    """

    logits: Tensor
    state: S
    attention: Attention
    scores: Tensor | None = None


class Linear(nn.Linear):
    """A linear layer of a decoder, faster than torch's while decoding on a CPU (`decoding_linear`)."""

    def forward(self, x: Tensor) -> Tensor:
        """W x + b."""
        return decoding_linear(x, self.weight, self.bias)

    def logit(self, x: Tensor, words: Tensor) -> Tensor:
        """As an output layer, the logit of one word per row: (…, n) and token ids (…) ↦ (…), without the others."""
        return (x * self.weight[words]).sum(dim=-1) + self.bias[words]


class LSTMCell(nn.LSTMCell):
    """The LSTM cell of a decoder, faster than torch's while decoding on a CPU (`decoding_linear`)."""

    def forward(self, input: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """The next h and c."""
        if not _decodes_on_cpu(input):
            return super().forward(input, state)
        h, c = state
        gates = decoding_linear(input, self.weight_ih, self.bias_ih) + decoding_linear(h, self.weight_hh, self.bias_hh)
        i, f, g, o = gates.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


def decoding_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x Wᵀ + b. While decoding on a CPU, W is rearranged once for oneDNN's matrix product of few rows.

    That is two to ten times as fast for the rows of a beam; torch rearranges W in every call.
    """
    if not _decodes_on_cpu(x) or weight.is_inference():
        return nn.functional.linear(x, weight, bias)
    version = (weight.data_ptr(), weight._version)
    packed_version, packed = _packed.get(weight, (None, None))
    if packed_version != version:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _PACKED_ROWS)
        _packed[weight] = (version, packed)
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


_PACKED_ROWS = 8  # any number but 1 gives the arrangement that is fast for all numbers of rows
_packed = WeakTensorKeyDictionary()  # of each weight its version, and its copy in oneDNN's arrangement
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def _decodes_on_cpu(x: Tensor) -> bool:
    is_plain = (
        x.ndim == 2 and x.device.type == "cpu" and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    )
    return is_plain and _HAS_ONEDNN and torch.is_inference_mode_enabled()


NO_IMAGE = ("zero", "learned")


@dataclass(frozen=True)
class CaptionerSettings:
    """The settings of every architecture; each architecture subclasses it.

    Attributes:
        no_image: the vector that replaces the features for "no image": "zero" or "learned".
    """

    no_image: str = "zero"

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            _check_type(field.name, getattr(self, field.name), field.default)
        if self.no_image not in NO_IMAGE:
            raise UserError(f"unknown no_image {self.no_image!r}: {did_you_mean(self.no_image, NO_IMAGE)}")


def _check_type(name: str, value: Any, default: Any) -> None:
    """Raise a `UserError` unless a setting has the type of its default; NaN is no number, True is no integer."""
    if isinstance(default, float):
        valid = type(value) in (int, float) and not math.isnan(value)
    else:
        valid = default is dataclasses.MISSING or default is None or type(value) is type(default)
    if not valid:
        kind = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}.get(type(default))
        raise UserError(f"captioner setting {name} must be {kind or type(default).__name__}, not {value!r}")


class Captioner(nn.Module, ABC, Generic[S]):
    """An encoder, and a decoder over its features.

    A subclass registers itself, names the dataclass of its settings and implements `start` and `step`. Where the
    output layer reads a sum of terms, such as c + h, it subclasses `SummedOutputCaptioner` and returns the terms in
    place of the logits: LRP-inference fine-tuning weights them.

    Attributes:
        beta_admits: which side the gate β lets in, "image" or "words".
        propagates_through_attention: True for transformers, where relevance also flows through the attention
            weights (AttnLRP); elsewhere the weights are constants, as in the LRP paper.
        attention_modes: how a trained captioner can turn α into a context; the first is the default.
        attention_mode: the mode in use.
        heads: number of attention heads that `isolate_head` can select; 1 if they cannot be separated.
        isolated_head: the selected head, or None for all of them.
        styles: number of style markers in the vocabulary; their token ids follow that of `<unk>`.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[CaptionerSettings]]
    beta_admits: ClassVar[str] = "image"
    propagates_through_attention: ClassVar[bool] = False
    attention_modes: ClassVar[tuple[str, ...]] = ("expected",)
    attention_mode: str = "expected"
    heads: int = 1
    isolated_head: int | None = None
    styles: int = 0

    def __init__(self, encoder: Encoder, vocabulary_size: int, settings: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.vocabulary_size = vocabulary_size
        self.settings = settings
        if settings.no_image == "learned":
            self.no_image = nn.Parameter(torch.zeros(encoder.width))
        else:
            self.register_buffer("no_image", torch.zeros(encoder.width), persistent=False)

    def encode(self, pixels: Tensor, boxes: Tensor | None = None) -> Features:
        """Features of images (B, 3, H, W), RGB 0–255; with boxes (B, R, 4), features of these regions.

        A model of precomputed region features takes their vectors (B, R, D) in place of pixels.
        """
        return self.encoder(pixels, boxes)

    def without_image(self, features: Features, rows: Tensor | None = None) -> Features:
        """The features, where rows (B,) that are true, or all rows if None, become those of "no image".

        The captioner then predicts p(words) without an image, if it was trained with conditioning dropout.
        """
        if rows is None:
            rows = torch.ones(len(features), dtype=torch.bool, device=features.vectors.device)
        return features.without(rows, self.no_image)

    @abstractmethod
    def start(self, features: Features) -> S:
        """The state before the first word."""

    @abstractmethod
    def step(self, tokens: Tensor, state: S) -> Step[S]:
        """Read the previous words (B,) and compute logits of the next words."""

    def forward(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Tensor, Attention]:
        """Teacher forcing: from captions (B, T), logits (B, T, V) of the word after each, and the attention.

        Results at padding are undefined. `active` is what `active_rows` returns, where the caller knows it. This
        default calls `step` for each word; an architecture may compute for all words at once what does not depend on
        the previous word.
        """
        state, logits, attention = self.start(features), [], []
        for t, rows in enumerate(active or active_rows(captions)):
            step = self.step(captions[:rows, t], state.first(rows))
            state = step.state
            logits.append(step.logits)
            attention.append(step.attention)
        return stack_over_time(logits), Attention.over_time(attention)

    def is_word_table(self, table: Tensor) -> bool:
        """Whether a table of embeddings is that of words; relevance ends at these, and others are constants."""
        return True

    @classmethod
    def check_attention_mode(cls, mode: str) -> None:
        """Raise a `UserError` if the captioner does not have this attention mode."""
        if mode not in cls.attention_modes:
            modes = ", ".join(cls.attention_modes)
            raise UserError(f"captioner {cls.name} has no attention mode {mode!r}: use one of {modes}")

    @contextmanager
    def using_attention(self, mode: str) -> Iterator[None]:
        """Use another attention mode within the block."""
        self.check_attention_mode(mode)
        previous, self.attention_mode = self.attention_mode, mode
        try:
            yield
        finally:
            self.attention_mode = previous

    @contextmanager
    def isolate_head(self, head: int) -> Iterator[None]:
        """Within the block, let gradients and relevance flow through one attention head only; values do not change."""
        if not 0 <= head < self.heads:
            raise ValueError(f"{self.name} has no head {head}: its {self.heads} heads are counted from 0")
        previous, self.isolated_head = self.isolated_head, head
        try:
            yield
        finally:
            self.isolated_head = previous

    def auxiliary_loss(self, forced: TeacherForced) -> Tensor | None:
        """The terms that the architecture's paper adds to −log p of each caption, (N,); None if there are none."""
        return None

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device


Terms = Sequence[Tensor]
"""The terms y_n, each (B, d) of one step, or (B, T, d) of teacher forcing, in the order in which they are added."""

LogitsOfTerms = Callable[[Any, Terms, Tensor, Attention], Tensor]
"""From a captioner, its terms, its logits and its attention, the logits to use instead."""


class SummedOutputCaptioner(Captioner[S]):
    """A captioner whose output layer reads a sum of terms: logits = output_layer(dropout(Σ_n y_n)).

    The terms are c and h of Ada-LSTM and MH-FC, and E y, L_h h and L_z z of soft attention. Fine-tuning can weight them
    by their relevance (`saywhy.training.relevance_weighting`).

    A subclass implements `step_terms` and `forward_terms`, from which `step` and `forward` follow, and names its
    output layer.

    Attributes:
        image_term: the index of the term that comes from the attended image; the others come from the words.
        dropout: of the sum, before the output layer.
    """

    image_term: ClassVar[int] = 0
    dropout: nn.Dropout
    _reweighting: Callable[[Terms, Tensor, Attention], Tensor] | None = None

    @property
    @abstractmethod
    def output_layer(self) -> Linear:
        """The layer that scores the words."""

    @abstractmethod
    def step_terms(self, tokens: Tensor, state: S) -> tuple[Terms, S, Attention]:
        """As `step`, with the terms (B, d) of the output layer in place of the logits."""

    @abstractmethod
    def forward_terms(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Terms, Attention]:
        """As `forward`, with the terms (B, T, d) of the output layer in place of the logits."""

    def logits(self, terms: Terms) -> Tensor:
        """The output layer on the sum of the terms: (…, d) ↦ (…, V)."""
        return self.output_layer(self.dropout(reduce(operator.add, terms)))

    def step(self, tokens: Tensor, state: S) -> Step[S]:
        """Read the previous words (B,) and compute logits of the next words."""
        terms, state, attention = self.step_terms(tokens, state)
        return Step(self._logits(terms, attention), state, attention)

    def forward(
        self, features: Features, captions: Tensor, active: Sequence[int] | None = None
    ) -> tuple[Tensor, Attention]:
        """Teacher forcing: as `step` for each word, with the output layer computed for all words at once."""
        terms, attention = self.forward_terms(features, captions, active)
        return self._logits(terms, attention), attention

    @contextmanager
    def reweighted(self, reweighting: LogitsOfTerms) -> Iterator[None]:
        """Within the block, `step` and `forward` return the logits of weighted terms, such as `RelevanceWeighting`."""
        previous, self._reweighting = self._reweighting, partial(reweighting, self)
        try:
            yield
        finally:
            self._reweighting = previous

    def _logits(self, terms: Terms, attention: Attention) -> Tensor:
        logits = self.logits(terms)
        return logits if self._reweighting is None else self._reweighting(terms, logits, attention)


def build(name: str, encoder: Encoder, vocabulary_size: int, **settings: Any) -> Captioner:
    """A registered captioner with random decoder weights."""
    cls = captioners[name]
    known = {field.name for field in dataclasses.fields(cls.Settings)}
    for key in settings:
        if key not in known:
            raise UserError(f"captioner {name} has no setting {key!r}: {did_you_mean(key, known)}")
    return cls(encoder, vocabulary_size, cls.Settings(**settings))
