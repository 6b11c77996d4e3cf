"""Decoding settings and decoded captions. Nothing here needs torch.

A decoding method is a function (captioner, features, decoding, indices, start) → one `Hypothesis` per image, registered
by name; `start` is the token that captions begin with:

    @decoding_methods.register("greedy")
    def greedy(captioner, features, decoding, indices, start): ...
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, ClassVar, TypeVar

import numpy as np

from saywhy.data.tokenizer import Vocabulary
from saywhy.errors import UserError, did_you_mean
from saywhy.registry import Registry

ATTENTION_MODES = ("expected", "sampled", "argmax")
_RENAMED = {"length": "length_penalty", "attend": "attention"}  # names in the model folders of version 0.1

Method = Callable[..., "list[Hypothesis]"]
BUILT_IN = ("beam", "greedy", "sample")
decoding_methods: Registry[Method] = Registry(
    "decoding method", builtin=("saywhy.decoding.beam", "saywhy.decoding.sampling")
)
Number = TypeVar("Number")
"""A number, or an array or tensor of numbers."""


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
        guidance: γ of classifier-free guidance (see `guidance.py`); above 1, captions are more specific to their image
            and less likely. 1 turns it off.
        lm: the path of a language model; "" for none. With `guidance` it replaces the captioner's p(words) without an
            image; with `lm_weight` it is added.
        lm_weight: α and β of language-model guidance; None turns it off.
        lm_prompt: a file of example captions, one per line, that a language model of Hugging Face reads first; "" for
            none.
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
    guidance: float = 1.0
    lm: str = ""
    lm_weight: tuple[float, float] | None = None
    lm_prompt: str = ""

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
        "guidance": (0, 100),
    }
    LM_WEIGHTS: ClassVar[tuple[float, float]] = (0, 100)

    def __post_init__(self) -> None:
        for name in ("method", "attention", "style", "lm", "lm_prompt"):
            _require_type(name, getattr(self, name), str, "text")
        if self.method not in BUILT_IN:  # to look a method up is to import it, and torch with it
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
        self._check_language_model()

    def _check_language_model(self) -> None:
        if self.lm_prompt and not self.lm:
            raise UserError("decoding: lm_prompt is for a language model: give lm, its path")
        if self.lm_weight is not None:
            object.__setattr__(self, "lm_weight", self._checked_weights())  # a list, as in JSON, becomes a tuple
            if not self.lm:
                raise UserError("decoding: lm_weight is for a language model: give lm, its path")
            if self.guidance != 1:
                raise UserError(
                    f"decoding: guidance = {self.guidance:g} and lm_weight exclude each other: with guidance the "
                    "language model replaces the captioner without an image, with lm_weight it is added"
                )
        elif self.lm and self.guidance == 1:
            raise UserError("decoding: lm needs guidance other than 1, or lm_weight: without them it has no effect")

    def _checked_weights(self) -> tuple[float, float]:
        least, most = self.LM_WEIGHTS
        weights = self.lm_weight
        if (
            not isinstance(weights, list | tuple)
            or len(weights) != 2
            or not all(isinstance(weight, numbers.Real) and not isinstance(weight, bool) for weight in weights)
            or not all(least <= weight <= most for weight in weights)
        ):
            raise UserError(f"decoding: lm_weight must be two numbers α, β from {least} to {most}, not {weights!r:.60}")
        return weights[0], weights[1]

    @property
    def is_guided(self) -> bool:
        """Whether words are chosen by guided scores."""
        return self.guidance != 1 or self.lm_weight is not None

    @property
    def needs_no_image(self) -> bool:
        """Whether guidance uses p(words) without an image, which only some captioners are trained for."""
        return bool(self.lm_weight[1]) if self.lm_weight is not None else self.guidance != 1 and not self.lm

    @property
    def guidance_settings(self) -> dict[str, Any]:
        """The settings of guidance that are in use, as `saywhy caption --json` prints them.

        >>> Decoding(guidance=1.5).guidance_settings
        {'guidance': 1.5}
        """
        settings: dict[str, Any] = {"guidance": self.guidance} if self.guidance != 1 else {}
        settings |= {name: PurePath(getattr(self, name)).name for name in ("lm", "lm_prompt") if getattr(self, name)}
        return settings | ({"lm_weight": list(self.lm_weight)} if self.lm_weight is not None else {})

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
        guidance = f",guidance{self.guidance:g}" if self.guidance != 1 else ""
        lm = f",lm:{PurePath(self.lm).name}" if self.lm else ""
        lm += f",prompt:{PurePath(self.lm_prompt).name}" if self.lm_prompt else ""
        if self.lm_weight is not None:
            lm += f",alpha{self.lm_weight[0]:g},beta{self.lm_weight[1]:g}"
        words = f"length{self.length_penalty:g}{min_words},max{self.max_words}{no_repeat}"
        return f"{method},{words}{attention}{style}{guidance}{lm}"

    def score(self, log_probability: Number, words: int) -> Number:
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
        logprobs: T + 1 log-probabilities, of the words and of `<end>`, given the image.
        score: their length-normalised sum; with guidance, that of the guided log-probabilities.
        alpha: attention while choosing each word, (T, [heads,] L).
        beta: the gate at each word, (T,), or None.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    score: float
    alpha: np.ndarray
    beta: np.ndarray | None
