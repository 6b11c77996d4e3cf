"""A caption in words, with the log-probability, attention and hallucination risk of each word."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from saywhy.data.tokenizer import SPACED_CLITIC, Vocabulary, as_text
from saywhy.decoding.settings import Hypothesis

if TYPE_CHECKING:
    from saywhy.encoders.base import Features

_HTML_SIDE = 320  # longest side of the image in a notebook


@dataclass(frozen=True)
class Caption:
    """Words with their log-probabilities, without markers.

    Attributes:
        words: the T words.
        logprobs: the log-probability of each word, given the image and the words before it, also with guidance.
        score: the length-normalised log-probability, `<end>` included; with guidance, that of the guided distribution.
        alpha: attention while choosing each word, (T, [heads,] L).
        beta: the gate at each word, (T,), or None.
        grid: rows and columns of the L features, if they are a grid.
        boxes: (L, 4) left, top, right, bottom of the L features as fractions of `crop`, if they are regions.
        source: the path of the image; empty if it has none.
        model: the name of the model.
        style: the style of the caption; empty for a model without styles.
        guidance: the settings of guidance that were used; empty without guidance.
        risks: the probability that each word is hallucinated, None for words that name no object; None if the risks
            were not computed.
        familiarity: the share of photographs that are less like the training photographs than this image; None if
            the model has no familiarity model.
        familiar: whether the familiarity is not below its threshold.
        image: the image, for `show`.
        crop: the part of `image` that the encoder gets: left, top, right, bottom.
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
    style: str = ""
    guidance: Mapping[str, Any] = field(default_factory=dict)
    risks: tuple[float | None, ...] | None = None
    familiarity: float | None = None
    familiar: bool | None = None
    image: Image.Image | None = field(default=None, repr=False, compare=False)
    crop: tuple[float, float, float, float] | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls, hypothesis: Hypothesis, vocabulary: Vocabulary, features: Features, row: int, **details: Any
    ) -> Caption:
        """A hypothesis in words; `row` is the row of its image in the features.

        The log-probability of a word of several pieces is the sum of theirs, its attention that of the first.
        """
        words, spans = tuple(vocabulary.decode(hypothesis.tokens)), vocabulary.spans(hypothesis.tokens)
        first = [end - length for end, length in zip(accumulate(spans), spans, strict=True)]  # token of each word
        logprobs = tuple(
            sum(hypothesis.logprobs[start : start + length]) for start, length in zip(first, spans, strict=True)
        )
        alpha, beta, boxes = hypothesis.alpha[first], hypothesis.beta, None
        beta = None if beta is None else beta[first]
        if features.boxes is not None:
            from saywhy.data.regions import has_area  # needs torch, which captions of a grid do not

            boxes = features.boxes[row].float().cpu().numpy()
            is_region = has_area(boxes)
            alpha, boxes = alpha[..., is_region], boxes[is_region]
        return cls(words, logprobs, hypothesis.score, alpha, beta, features.grid, boxes, **details)

    @property
    def text(self) -> str:
        """The caption as a sentence."""
        return as_text(self.words)

    @property
    def text_with_risks(self) -> str:
        """The caption as a sentence, with its risk after each object word."""
        return " ".join(word if risk is None else f"{word} ({risk:.0%})" for word, risk in self.words_with_risks)

    @property
    def words_with_risks(self) -> list[tuple[str, float | None]]:
        """The words as in `text`, separated by spaces, each with its risk."""
        parts: list[tuple[str, float | None]] = []
        for word, risk in zip(self.words, self._risk_per_word, strict=True):
            if parts and SPACED_CLITIC.fullmatch(f" {word}"):  # "the dog's (12%) ball"
                parts[-1] = parts[-1][0] + word, parts[-1][1]
            else:
                parts.append((word, risk))
        return parts

    @property
    def _risk_per_word(self) -> Sequence[float | None]:
        return self.risks or (None,) * len(self.words)

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
            **({"style": self.style} if self.style else {}),
            **self.guidance,
            **({} if self.familiarity is None else {"familiarity": self.familiarity, "familiar": self.familiar}),
        }

    def show(self) -> Image.Image:
        """A figure of the attention for each word; a notebook displays it."""
        from saywhy.viz.attention_figure import attention_figure  # captioning without figures need not load it

        return attention_figure(self)

    def _repr_html_(self) -> str:
        """The caption in a notebook: the image, and the words with their probability and risk as tooltips."""
        spans = []
        for word, logprob, risk in zip(self.words, self.logprobs, self._risk_per_word, strict=True):
            space = "" if SPACED_CLITIC.fullmatch(f" {word}") else " "
            spans.append(f'{space}<span title="{_tooltip(logprob, risk)}">{html.escape(word)}</span>')
        sentence = "".join(spans).strip()
        image = "" if self.image is None else f'<img src="{_data_url(self.image)}" alt="{html.escape(self.source)}">'
        return f"<figure>{image}<figcaption>{sentence}</figcaption></figure>"

    def __str__(self) -> str:
        return self.text


def _tooltip(logprob: float, risk: float | None) -> str:
    return f"probability {math.exp(logprob):.1%}" + ("" if risk is None else f", hallucination risk {risk:.0%}")


def _data_url(image: Image.Image) -> str:
    """A small copy of the image as a PNG data URL."""
    small, buffer = image.convert("RGB"), io.BytesIO()
    small.thumbnail((_HTML_SIDE, _HTML_SIDE))
    small.save(buffer, "PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
