"""The answers of the interface, as its OpenAPI document describes them."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


class ErrorAnswer(BaseModel):
    """Every error is one line."""

    error: str = Field(description="What is wrong, with what, and what to do.")


class PictureAnswer(BaseModel):
    """An image that was sent."""

    image: str = Field(description="The file name.")
    image_id: str = Field(description="Names the image in later requests, while the server keeps it.")
    size: tuple[int, int] = Field(description="Width and height of the upright image.")
    familiarity: float | None = Field(None, description="How much the image is like the training photographs, 0 to 1.")
    familiar: bool | None = Field(None, description="False: unlike the training photographs, and so may be wrong.")


class CaptionWord(BaseModel):
    """A word of a caption."""

    word: str
    logprob: float
    risk: float | None = Field(None, description="The probability that an object word is made up; with risk=true.")


class CaptionAnswer(PictureAnswer):
    """A caption."""

    caption: str
    words: list[CaptionWord]
    score: float = Field(description="By which beam search compared captions.")
    model: str
    style: str | None = None
    crop: tuple[float, float, float, float] = Field(description="The part the encoder sees, in shares of the sides.")


class Budget(BaseModel):
    """The parts of a word's score; they add up to it."""

    image: float
    earlier_words: float
    initial_state: float
    absorbed: float


class Alternative(BaseModel):
    """A word that was probable in place of another."""

    word: str
    probability: float


class ExplainedWord(BaseModel):
    """The explanation of a word."""

    word: str
    position: int = Field(description="In the caption, from 0.")
    contrast: str | None
    score: float = Field(description="The logit; with a contrast, the difference of two logits.")
    probability: float
    budget: Budget
    image_share: float | None = Field(description="The image's share of the evidence.")
    earlier_words: dict[str, list[float]] = Field(description="By method: the weight of each earlier word.")
    risk: float | None
    alternatives: list[Alternative]


class MapAnswer(BaseModel):
    """A map over the whole image."""

    png: str = Field(description="A grey PNG, in base64.")
    maximum: float
    signed: bool


class ExplainAnswer(PictureAnswer):
    """explanation.json of saywhy explain."""

    format: int
    caption: str
    model: str
    style: str | None = None
    tokens: list[str] = Field(description="The words of the caption.")
    methods: list[str]
    crop: tuple[float, float, float, float] = Field(description="The part the encoder sees, in pixels.")
    words: list[ExplainedWord]
    maps: dict[str, list[MapAnswer]] | None = Field(None, description="By method: the map of each explained word.")


class PatchesAnswer(BaseModel):
    """Where the evidence for a word is."""

    mask: str = Field(description="A PNG for the field erase, in base64.")
    patches: int = Field(description="How many patches support the word, at most as many as were asked for.")
    of: int = Field(description="How many patches there are.")


class ModelAnswer(BaseModel):
    """A model that is served."""

    name: str
    captioner: str
    encoder: str
    size: int = Field(description="The side of the encoder's input, in pixels.")
    words: int = Field(description="The size of the vocabulary.")
    styles: list[str]
    style: str | None
    beam: int
    widest_beam: int
    guidance: float
    guidable: bool = Field(description="Whether the field guidance can be used.")
    has_risk: bool


class HealthAnswer(BaseModel):
    """The state of the server."""

    status: str
    version: str
    waiting: int = Field(description="Jobs that wait for the models.")


REASONS = {
    400: "The body cannot be read as a form.",
    403: "The request comes from a page of another site.",
    404: "The model is not served.",
    408: "The upload stopped.",
    410: "The image_id is not kept any more: send the image again.",
    413: "The image or the mask is too large.",
    415: "The file is not an image that can be read, or the body is not a form.",
    421: "The server was called by a foreign name: see --allow-host.",
    422: "A field is wrong.",
    500: "An internal error.",
    503: "Too many requests: try again after the seconds of Retry-After.",
    507: "Out of memory.",
}
ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": reason} for status, reason in REASONS.items()
}


def answer(model: type[BaseModel], streams: bool = False) -> dict[int | str, dict[str, Any]]:
    """A JSON answer, for the `responses` of a request."""
    parts = {"application/x-ndjson": {"schema": {"type": "string", "description": "One JSON object per line."}}}
    return {200: {"model": model, "description": "The answer.", **({"content": parts} if streams else {})}}


def file_answer(kind: str) -> dict[int | str, dict[str, Any]]:
    """An answer that is a file of this media type."""
    return {200: {"description": "The file.", "content": {kind: {"schema": {"type": "string", "format": "binary"}}}}}
