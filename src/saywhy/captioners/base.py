"""The one seam: what every captioner answers to.

Decoding, training, explaining and exporting know a captioner by `encode`, `start`, `step` and `forward`, and by what
has a default here: `without_image`, `auxiliary_loss`, `attention_mode_set`.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from saywhy.data.vocabulary import PAD
from saywhy.encoders.base import Encoder
from saywhy.encoders.features import Features, take_rows
from saywhy.errors import UserError, closest
from saywhy.registry import Registry

captioners: Registry[type[Captioner]] = Registry("captioner")


@dataclass(frozen=True)
class State:
    """What a decoder carries from word to word. Every field is a tensor, or Features, with the batch first."""

    def select(self, rows: Tensor) -> Self:
        """The states of these rows: how beams are reordered and finished images dropped."""
        return dataclasses.replace(self, **{name: _select(part, rows) for name, part in self._parts()})

    def first(self, rows: int) -> Self:
        """The states of the first rows, seen and not copied."""
        return dataclasses.replace(self, **{name: part[:rows] for name, part in self._parts()})

    def _parts(self) -> list[tuple[str, Any]]:
        return [(field.name, getattr(self, field.name)) for field in dataclasses.fields(self)]


def _select(part: Any, rows: Tensor) -> Any:
    return take_rows(part, rows) if isinstance(part, Tensor) else part.select(rows)


@dataclass(frozen=True)
class Attention:
    """What the model looked at while choosing a word.

    All have a time axis after the batch when they come from teacher forcing.

    Attributes:
        alpha: attention over the features, (B, [heads,] L), each row summing to one.
        beta: the gate between image and words, (B,), as the architecture's paper has it (its class says which
            of the two it lets in), or None where there is no gate.
        drawn: the place that was drawn instead of looking everywhere, (B,), −1 where none was; None unless an
            architecture draws.
    """

    alpha: Tensor
    beta: Tensor | None = None
    drawn: Tensor | None = None

    @classmethod
    def of_words(cls, attentions: Sequence[Attention]) -> Attention:
        """One after another, with a time axis after the batch; later ones may be of fewer rows (`active_rows`)."""
        alpha = stack_over_time([each.alpha for each in attentions])
        betas = [each.beta for each in attentions if each.beta is not None]
        drawn = [each.drawn for each in attentions if each.drawn is not None]
        return cls(
            alpha, stack_over_time(betas) if betas else None, stack_over_time(drawn, missing=-1) if drawn else None
        )


def stack_over_time(parts: Sequence[Tensor], missing: float = 0) -> Tensor:
    """Tensors (B, …) of one time each as one (B, T, …); those of fewer rows than the first are filled up."""
    return pad_sequence(list(parts), batch_first=True, padding_value=missing).transpose(0, 1)


def active_rows(captions: Tensor) -> list[int]:
    """How many rows of captions (B, T), from the first on, are not yet all padding at each time.

    Teacher forcing need not go through the others. With the longest captions first, it skips all padding; at the
    first time there are all rows, so that what comes of it is of their number.

    >>> active_rows(torch.tensor([[1, 5, 6], [1, 4, PAD], [1, PAD, PAD]]))
    [3, 2, 1]
    """
    number = torch.arange(1, len(captions) + 1, device=captions.device)
    rows = ((captions != PAD) * number[:, None]).amax(dim=0).clamp(min=1)  # (T)
    return [len(captions), *rows[1:].tolist()]


@dataclass(frozen=True)
class TeacherForced:
    """Captions taught by teacher forcing, for what an architecture adds to the objective.

    Attributes:
        features: of each caption's image, (N, L, D).
        words: (N, T + 1) from `<start>` to `<end>`, padded.
        log_p: log p of the T words that follow each, (N, T), 0 where it is padding; carries the gradient.
        spoken: where a word follows, (N, T).
        has_image: which captions were taught with their image, (N,).
        owner: the number of each caption's image, (N,).
        attention: what was looked at.
    """

    features: Features
    words: Tensor
    log_p: Tensor
    spoken: Tensor
    has_image: Tensor
    owner: Tensor
    attention: Attention


S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Step(Generic[S]):
    """One word's worth of decoding: logits (B, V), the next state, and the attention."""

    logits: Tensor
    state: S
    attention: Attention


NO_IMAGE = ("zero", "learned")


@dataclass(frozen=True)
class CaptionerSettings:
    """What every architecture lets one choose; its own settings are a subclass.

    Attributes:
        no_image: the vector that stands for "no image": "zero" or "learned".
    """

    no_image: str = "zero"

    def __post_init__(self) -> None:
        if self.no_image not in NO_IMAGE:
            raise UserError(f"unknown no_image {self.no_image!r}: {closest(self.no_image, NO_IMAGE)}")


class Captioner(nn.Module, ABC, Generic[S]):
    """An encoder and a decoder over its features.

    A subclass registers itself, names the dataclass of its settings and writes `start` and `step`.

    Attributes:
        gate_admits: what the gate of its attentions lets in, the "image" or the "words".
        propagates_through_attention: True for transformers, where relevance also flows through the attention
            weights (AttnLRP); elsewhere the weights are constants, as in the LRP paper.
        attention_modes: the ways it can take in what it attention_modes to once it is trained; the first is the usual.
        attend: the way it does.
        heads: how many heads of attention can be heard alone; 1 where there is no telling them apart.
        heard: the head that is heard alone, or None for all of them.
    """

    name: ClassVar[str]
    Settings: ClassVar[type[CaptionerSettings]]
    gate_admits: ClassVar[str] = "image"
    propagates_through_attention: ClassVar[bool] = False
    attention_modes: ClassVar[tuple[str, ...]] = ("expected",)
    attend: str = "expected"
    heads: int = 1
    isolated_head: int | None = None

    def __init__(self, encoder: Encoder, words: int, settings: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.words = words
        self.settings = settings
        if settings.no_image == "learned":
            self.no_image = nn.Parameter(torch.zeros(encoder.width))
        else:
            self.register_buffer("no_image", torch.zeros(encoder.width), persistent=False)

    def encode(self, pixels: Tensor, boxes: Tensor | None = None) -> Features:
        """Features of images (B, 3, H, W), RGB 0–255; of regions where boxes (B, R, 4) are given.

        Where regions come with their vectors, those (B, R, D) stand in the place of pixels.
        """
        return self.encoder(pixels, boxes)

    def without_image(self, features: Features, rows: Tensor | None = None) -> Features:
        """The features of no image for those of `rows` (B,) that are true, or for all of them.

        What the captioner then says is p(words) alone, if it was trained with conditioning dropout.
        """
        if rows is None:
            rows = torch.ones(len(features), dtype=torch.bool, device=features.vectors.device)
        return features.without(rows, self.no_image)

    @abstractmethod
    def start(self, features: Features) -> S:
        """The state before the first word."""

    @abstractmethod
    def step(self, words: Tensor, state: S) -> Step[S]:
        """Read the words (B,) just said and score the next ones."""

    def forward(self, features: Features, captions: Tensor) -> tuple[Tensor, Attention]:
        """Teacher forcing: captions (B, T) in, logits (B, T, V) of the word after each, and the attentions.

        What comes out where a caption is padding means nothing. This goes word by word; an architecture may do for
        all words at once what does not depend on the word before.
        """
        state, logits, attentions = self.start(features), [], []
        for t, rows in enumerate(active_rows(captions)):
            step = self.step(captions[:rows, t], state.first(rows))
            state = step.state
            logits.append(step.logits)
            attentions.append(step.attention)
        return stack_over_time(logits), Attention.of_words(attentions)

    @classmethod
    def check_attention_mode(cls, how: str) -> None:
        """Raise a `UserError` where this is no way it can attend."""
        if how not in cls.attention_modes:
            raise UserError(f"attend = {how!r} is not for {cls.name}, which knows {', '.join(cls.attention_modes)}")

    @contextmanager
    def attention_mode_set(self, how: str) -> Iterator[None]:
        """Attend in another way for a while."""
        self.check_attention_mode(how)
        before, self.attend = self.attend, how
        try:
            yield
        finally:
            self.attend = before

    @contextmanager
    def isolate_head(self, head: int) -> Iterator[None]:
        """Say the same for a while, but so that gradients and relevance find their way back through one head alone."""
        if not 0 <= head < self.heads:
            raise ValueError(f"{self.name} has no head {head} that could be heard alone, of {self.heads}")
        before, self.isolated_head = self.isolated_head, head
        try:
            yield
        finally:
            self.isolated_head = before

    def auxiliary_loss(self, forced: TeacherForced) -> Tensor | None:
        """What the architecture's paper adds to −log p of each caption, (N,); None for nothing."""
        return None

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return next(self.parameters()).device


def build(name: str, encoder: Encoder, words: int, **settings: Any) -> Captioner:
    """A registered captioner with fresh decoder weights."""
    cls = captioners[name]
    known = {field.name for field in dataclasses.fields(cls.Settings)}
    for key in settings:
        if key not in known:
            raise UserError(f"captioner {name} has no setting {key!r}: {closest(key, known)}")
    return cls(encoder, words, cls.Settings(**settings))
