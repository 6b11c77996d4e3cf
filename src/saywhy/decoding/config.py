"""Decoding settings, the constraints that every decoding method applies, and `decode`, which runs a method.

A method is a function (captioner, features, decoding, indices, start) → one `Hypothesis` per image, registered by name;
`start` is the token that captions begin with:

    @decoding_methods.register("greedy")
    def greedy(captioner, features, decoding, indices, start): ...
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK, Vocabulary
from saywhy.encoders.base import Features
from saywhy.errors import UserError, did_you_mean
from saywhy.registry import Registry

ATTENTION_MODES = ("expected", "sampled", "argmax")
_RENAMED = {"length": "length_penalty", "attend": "attention"}  # names in the model folders of version 0.1


@dataclass(frozen=True)
class Decoding:
    """How captions are decoded.

    Attributes:
        method: "beam", "greedy" or "sample".
        beam: beam width.
        length_penalty: the exponent a of length normalisation: captions are ranked by log p / length^a, where length
            counts the words and `<end>`. 0 ranks by probability alone, which favours short captions.
        min_words, max_words: limits of a caption's length, at least one word.
        no_repeat: never repeat a trigram.
        attention: the context vector of hard attention: the "expected" one, that of a "sampled" feature, or that of
            the "argmax" of α. Other captioners have "expected" only.
        temperature: sampling temperature; below 1 is more conservative.
        top_k: sample from the k most probable words; 0 turns it off.
        top_p: sample from the smallest set of words with this probability mass (nucleus sampling); 1 turns it off.
        seed: of the random numbers of sampling.
        style: the style of the captions, for a model with styles; "" is its first one.
    """

    method: str = "beam"
    beam: int = 3
    length_penalty: float = 0.7
    min_words: int = 1
    max_words: int = 20
    no_repeat: bool = False
    attention: str = "expected"
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    style: str = ""

    WHOLE_NUMBERS: ClassVar[Mapping[str, tuple[int, int]]] = {
        "beam": (1, 1000),
        "min_words": (1, 1000),
        "max_words": (1, 1000),
        "top_k": (0, 1_000_000),
        "seed": (0, 2**63 - 1),
    }
    NUMBERS: ClassVar[Mapping[str, tuple[float, float]]] = {
        "length_penalty": (0, 10),
        "temperature": (0.01, 100),
        "top_p": (1e-6, 1),
    }

    def __post_init__(self) -> None:
        for name in ("method", "attention", "style"):
            _require_type(name, getattr(self, name), str, "text")
        _ = decoding_methods[self.method]
        if self.attention not in ATTENTION_MODES:
            raise UserError(
                f"unknown attention mode {self.attention!r}: {did_you_mean(self.attention, ATTENTION_MODES)}"
            )
        _require_type("no_repeat", self.no_repeat, bool, "true or false")
        for name, limits in self.WHOLE_NUMBERS.items():
            _require_type(name, getattr(self, name), numbers.Integral, "a whole number")
            self._check_range(name, *limits)
        for name, bounds in self.NUMBERS.items():
            _require_type(name, getattr(self, name), numbers.Real, "a number")
            self._check_range(name, *bounds)
        if self.min_words > self.max_words:
            raise UserError(f"decoding: min_words = {self.min_words} is above max_words = {self.max_words}")

    def _check_range(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            raise UserError(f"decoding: {name} = {value} is out of range: use {least} to {most}")

    @classmethod
    def from_config(cls, settings: Mapping[str, Any]) -> Decoding:
        """Settings as a model folder holds them; those of version 0.1 had two other names.

        >>> Decoding.from_config({"beam": 5, "length": 0.85}).length_penalty
        0.85
        """
        if not isinstance(settings, Mapping):
            raise UserError(f"decoding settings must be a table of names and values, not {settings!r:.40}")
        renamed = {_RENAMED.get(name, name): value for name, value in settings.items()}
        for name in renamed:
            if name not in cls.__dataclass_fields__:
                raise UserError(f"unknown decoding setting {name!r}: {did_you_mean(name, cls.__dataclass_fields__)}")
        return cls(**renamed)

    def with_style_of(self, vocabulary: Vocabulary) -> Decoding:
        """The settings with the style's name in place of "", for a model with styles; else unchanged.

        A style that the model does not have is a `UserError`.
        """
        vocabulary.start(self.style)
        return replace(self, style=vocabulary.styles[0]) if vocabulary.styles and not self.style else self

    def __str__(self) -> str:
        """The settings as signatures write them.

        >>> print(Decoding(beam=5))
        beam5,length0.7,max20
        """
        method = {
            "beam": f"beam{self.beam}",
            "sample": f"sample,t{self.temperature:g},k{self.top_k},p{self.top_p:g},seed{self.seed}",
        }.get(self.method, self.method)
        min_words = f",min{self.min_words}" if self.min_words > 1 else ""
        no_repeat = ",norepeat3" if self.no_repeat else ""
        attention = f",{self.attention}" if self.attention != "expected" else ""
        style = f",style:{self.style}" if self.style else ""
        return f"{method},length{self.length_penalty:g}{min_words},max{self.max_words}{no_repeat}{attention}{style}"

    def score(self, log_probability: Tensor, words: int) -> Tensor:
        """The length-normalised score, log p / length^a, of captions of this many words and `<end>`."""
        return log_probability / (words + 1) ** self.length_penalty


def _require_type(name: str, value: object, expected: type, description: str) -> None:
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        raise UserError(f"decoding: {name} must be {description}, not {value!r:.60}")


@dataclass(frozen=True)
class Hypothesis:
    """A decoded caption as token numbers, without markers.

    Attributes:
        tokens: the numbers of the T words.
        logprobs: T + 1 log-probabilities, of the words and of `<end>`.
        score: their length-normalised sum.
        alpha: attention while choosing each word, (T, [heads,] L).
        beta: the gate at each word, (T,), or None.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float
    alpha: np.ndarray
    beta: np.ndarray | None


Method: TypeAlias = Callable[[Captioner, Features, Decoding, Sequence[int], int], list[Hypothesis]]

decoding_methods: Registry[Method] = Registry("decoding method")


@torch.inference_mode()
def decode(
    captioner: Captioner,
    features: Features,
    decoding: Decoding,
    indices: Sequence[int] | None = None,
    start: int = START,
) -> list[Hypothesis]:
    """One caption per image, as token numbers. The captioner should be in evaluation mode.

    `indices` are the positions of the B images among all images of the call, 0 … B − 1 if not given. Sampling seeds
    an image's random numbers by its index, so that its caption does not depend on the other images of its batch.
    `start` is the token that captions begin with: `Vocabulary.start` of the style, for a captioner with styles.
    """
    indices = range(len(features)) if indices is None else indices
    if len(indices) != len(features):
        raise ValueError(f"{len(indices)} indices for features of {len(features)} images")
    if start not in (range(len(MARKERS), len(MARKERS) + captioner.styles) if captioner.styles else (START,)):
        raise ValueError(f"a captioner with {captioner.styles} styles cannot begin a caption with token {start}")
    with captioner.using_attention(decoding.attention):
        return decoding_methods[decoding.method](captioner, features, decoding, indices, start)


def log_probabilities(logits: Tensor, styles: int = 0) -> Tensor:
    """log p over the words a caption may contain, (…, V).

    The softmax leaves out `<unk>`, `<pad>`, `<start>` and the markers of a captioner's `styles`.
    """
    logits = logits.float().clone()
    logits[..., [PAD, START, UNK]] = -torch.inf
    logits[..., len(MARKERS) : len(MARKERS) + styles] = -torch.inf
    return logits.log_softmax(dim=-1)


def finite_log_probabilities(logits: Tensor, styles: int = 0) -> Tensor:
    """`log_probabilities` of logits (R, V); a `UserError` where the model's logits are NaN or infinite."""
    log_p = log_probabilities(logits, styles)
    if log_p[:, END].isnan().any():  # the softmax spreads a NaN over its whole row
        raise UserError(
            "the model's logits are not finite (NaN or infinity): its weights are damaged or overflow; load another "
            "checkpoint"
        )
    return log_p


def constrained(log_p: Tensor, tokens: Tensor, decoding: Decoding) -> Tensor:
    """`log_p` (R, V) with −∞ for every word that may not follow `tokens` (R, t)."""
    words = tokens.shape[1]
    end = log_p[:, END]
    log_p = log_p.clone()
    if words < decoding.min_words:
        log_p[:, END] = -torch.inf
    if words >= decoding.max_words:
        log_p[:, :END] = log_p[:, END + 1 :] = -torch.inf
    elif decoding.no_repeat and words >= 3:
        _forbid_repeated_trigrams(log_p, tokens)
        no_word_left = log_p.isneginf().all(dim=-1)  # then the caption ends, even below min_words
        log_p[:, END] = torch.where(no_word_left, end, log_p[:, END])
    return log_p


def _forbid_repeated_trigrams(log_p: Tensor, tokens: Tensor) -> None:
    """Set `log_p` to −∞ for each word that followed an earlier occurrence of the last two words."""
    repeats = (tokens[:, :-2] == tokens[:, -2:-1]) & (tokens[:, 1:-1] == tokens[:, -1:])  # (R, t-2)
    rows, positions = repeats.nonzero(as_tuple=True)
    log_p[rows, tokens[rows, positions + 2]] = -torch.inf
