"""What figures and pages read of a caption and of an explanation. The packages above define classes that have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from PIL import Image

Crop = tuple[float, float, float, float]
"""The part of an image that the encoder gets: left, top, right, bottom in pixels."""


class CaptionLike(Protocol):
    """A caption of T words with the attention of each word."""

    @property
    def text(self) -> str:
        """The caption as a sentence."""

    @property
    def words(self) -> Sequence[str]:
        """The T words."""

    @property
    def logprobs(self) -> Sequence[float]:
        """The log-probability of each word."""

    @property
    def alpha(self) -> np.ndarray:
        """Attention weights, (T, [heads,] L)."""

    @property
    def grid(self) -> tuple[int, int] | None:
        """Rows and columns of the L features, if they are a grid."""

    @property
    def boxes(self) -> np.ndarray | None:
        """Boxes of the L features as fractions of the crop, (L, 4), if they are regions."""

    @property
    def image(self) -> Image.Image | None:
        """The image."""

    @property
    def crop(self) -> Crop | None:
        """The part of the image that the encoder gets."""


class BudgetLike(Protocol):
    """The evidence budget of a word: parts that add up to its score; most captioners have the first four only."""

    @property
    def image(self) -> float:
        """Relevance of the image."""

    @property
    def earlier_words(self) -> float:
        """Relevance of the earlier words."""

    @property
    def initial_state(self) -> float:
        """Relevance of the start token and of constant initial states."""

    @property
    def absorbed(self) -> float:
        """Relevance absorbed by biases and stabilisers."""

    @property
    def class_token(self) -> float:
        """Relevance of image features that stand for no place."""

    @property
    def own_pieces(self) -> float:
        """Relevance of the first pieces of a word of several sub-words."""

    @property
    def image_share(self) -> float:
        """The image's share of the evidence, −1 to 1."""


class WordLike(Protocol):
    """A word of a caption with its explanation."""

    @property
    def word(self) -> str:
        """The explained word."""

    @property
    def position(self) -> int:
        """The number of words before it."""

    @property
    def caption_word(self) -> str:
        """The word that the caption has at this position."""

    @property
    def contrast(self) -> str | None:
        """The word it is compared with, if any; the score is then the difference between their logits."""

    @property
    def score(self) -> float:
        """The explained number."""

    @property
    def probability(self) -> float:
        """The probability of the word."""

    @property
    def budget(self) -> BudgetLike:
        """The score, split into parts."""

    @property
    def pixel_relevance(self) -> float | None:
        """The part of the image's relevance that reached the pixels."""

    @property
    def absorbed_by_encoder(self) -> float:
        """The part of the image's relevance that the encoder absorbed."""

    @property
    def earlier_words(self) -> Mapping[str, Sequence[float]]:
        """By method, one signed weight per earlier word."""

    @property
    def beta(self) -> float | None:
        """The gate β, if the model has one."""

    @property
    def risk(self) -> float | None:
        """The probability that the word is hallucinated, if known."""


class ExplanationLike(Protocol):
    """The explanation of a caption."""

    @property
    def source(self) -> str:
        """Where the image came from."""

    @property
    def model(self) -> str:
        """The name of the model."""

    @property
    def style(self) -> str:
        """The style of the caption; empty for a model without styles."""

    @property
    def familiarity(self) -> float | None:
        """The share of photographs that are less like the training photographs, if known."""

    @property
    def familiar(self) -> bool | None:
        """Whether the image is like the training photographs, if known."""

    @property
    def caption(self) -> str:
        """The caption as a sentence."""

    @property
    def tokens(self) -> Sequence[str]:
        """The words of the caption."""

    @property
    def words(self) -> Sequence[WordLike]:
        """The explained words."""

    @property
    def methods(self) -> Sequence[str]:
        """The methods whose maps are available."""

    @property
    def composite(self) -> str:
        """The name of the LRP rules."""

    @property
    def score(self) -> str:
        """What LRP explains: "logp" or "logit"."""

    @property
    def map_kind(self) -> str:
        """The map of LRP, such as "why"."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the image."""

    @property
    def crop(self) -> Crop:
        """The part of the image that the encoder gets."""

    @property
    def input_size(self) -> int:
        """The side of the encoder's input in pixels."""

    @property
    def maps(self) -> Mapping[str, np.ndarray]:
        """By method, the maps of all words."""

    @property
    def boxes(self) -> np.ndarray | None:
        """Boxes of the features, if they are regions."""

    @property
    def image(self) -> Image.Image | None:
        """The image."""

    def map(
        self, i: int, method: str | None = None, head: int | None = None, size: tuple[int, int] | None = None
    ) -> np.ndarray:
        """The map of word i over the whole image, (height, width)."""
