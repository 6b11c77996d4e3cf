"""What a captioner says, with what it looked at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from saywhy.data.regions import has_area
from saywhy.data.vocabulary import Vocabulary
from saywhy.decoding.hypothesis import Hypothesis
from saywhy.encoders.features import Features

if TYPE_CHECKING:
    from PIL import Image

CLITIC = re.compile(r" (n't|'(?:s|m|d|ll|re|ve)?)(?= |$)")


@dataclass(frozen=True)
class Caption:
    """Words with their log-probabilities; never a marker among them.

    Attributes:
        words: the T words.
        logprobs: the log-probability of each word, given the image and the words before it.
        score: the length rule's score, `<end>` included.
        alpha: attention while choosing each word, (T, [heads,] L).
        beta: the gate at each word, (T,), or None.
        grid: rows and columns of the L places, where they are a grid.
        boxes: (L, 4) left, top, right, bottom of the L places as shares of `region`, where they are regions.
        source: the path of the image; empty where none is known.
        model: which model spoke.
        risks: how likely each word is made up, None for words that name no thing; None where that was not asked.
        image: the image itself, for `show`.
        region: the part of it the encoder saw: left, top, right, bottom.
    """

    words: tuple[str, ...]
    logprobs: tuple[float, ...]
    score: float
    alpha: np.ndarray = field(repr=False)
    beta: np.ndarray | None = field(repr=False)
    grid: tuple[int, int] | None
    boxes: np.ndarray | None = field(default=None, repr=False)
    source: str = ""
    model: str = ""
    risks: tuple[float | None, ...] | None = None
    image: Image.Image | None = field(default=None, repr=False, compare=False)
    region: tuple[float, float, float, float] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, hypothesis: Hypothesis, vocabulary: Vocabulary, features: Features, row: int, **about: Any) -> Caption:
        """The words of a hypothesis about the image in this row of the features."""
        words = tuple(vocabulary.decode(hypothesis.words))
        logprobs, alpha, boxes = hypothesis.logprobs[: len(words)], hypothesis.alpha, None
        if features.boxes is not None:
            boxes = features.boxes[row].float().cpu().numpy()
            there = has_area(boxes)
            alpha, boxes = alpha[..., there], boxes[there]
        return cls(words, logprobs, hypothesis.score, alpha, hypothesis.beta, features.grid, boxes, **about)

    @property
    def text(self) -> str:
        """The words as one writes them."""
        return as_text(self.words)

    @property
    def text_with_risks(self) -> str:
        """The words as one writes them, each object word with its risk behind it."""
        told: list[tuple[str, float | None]] = []
        for word, risk in zip(self.words, self.risks or (None,) * len(self.words), strict=True):
            if told and CLITIC.fullmatch(f" {word}"):  # "the dog's (12%) ball"
                told[-1] = told[-1][0] + word, told[-1][1]
            else:
                told.append((word, risk))
        return " ".join(word if risk is None else f"{word} ({risk:.0%})" for word, risk in told)

    def as_dict(self) -> dict[str, Any]:
        """The caption as `saywhy caption --json` prints it."""
        words: list[dict[str, Any]] = [
            {"word": word, "logprob": round(logprob, 6)}
            for word, logprob in zip(self.words, self.logprobs, strict=True)
        ]
        for word, risk in zip(words, self.risks or (), strict=False):
            word["risk"] = None if risk is None else round(risk, 6)
        return {
            "image": self.source,
            "caption": self.text,
            "words": words,
            "score": round(self.score, 6),
            "model": self.model,
        }

    def show(self) -> Image.Image:
        """A figure of what the model looked at, word by word; a notebook displays it."""
        from saywhy.viz.attention_figure import attention_figure  # drawing is loaded only when something is drawn

        return attention_figure(self)

    def __str__(self) -> str:
        return self.text


def as_text(words: Sequence[str]) -> str:
    """Words as one writes them: the tokeniser's clitics join their word.

    >>> as_text(["a", "man", "'s", "dog", "does", "n't", "bark"])
    "a man's dog doesn't bark"
    """
    return CLITIC.sub(r"\1", " ".join(words))
