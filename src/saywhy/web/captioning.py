"""Captions of pictures: encoded once, decoded in batches; and what speaks against them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch

from saywhy.decoding.caption import Caption
from saywhy.decoding.config import Decoding, decode
from saywhy.encoders.base import Features
from saywhy.inference.batches import ImageBatch, LoadedImage
from saywhy.inference.model import Model
from saywhy.web.limits import RecentlyUsed
from saywhy.web.pictures import Picture
from saywhy.web.worker import CAPTION, DETAIL, Job

Encoded = tuple[Features, dict[str, Any]]
"""The features of one image, (1, L, D), and its familiarity where that is known."""
Prefix = Callable[[list[str]], None]


class EncodedPictures:
    """The features of recent pictures, by model."""

    def __init__(self, limit: int) -> None:
        self._kept = RecentlyUsed[Encoded](limit)

    def __call__(self, model: Model, pictures: Sequence[Picture]) -> list[Encoded]:
        """The features of pictures; those that are not kept are encoded together."""
        found = {picture.key: self._kept.get((model.name, picture.key)) for picture in pictures}
        missing = [picture for picture in {p.key: p for p in pictures}.values() if found[picture.key] is None]
        if missing:
            for picture, new in zip(missing, _encode(model, missing), strict=True):
                self._kept.put((model.name, picture.key), new)
                found[picture.key] = new
        return [encoded for picture in pictures if (encoded := found[picture.key]) is not None]


def _encode(model: Model, pictures: Sequence[Picture]) -> list[Encoded]:
    images = [
        LoadedImage(i, picture.name, picture.size, picture.crop, picture.image, picture.image_crop)
        for i, picture in enumerate(pictures)
    ]
    with torch.inference_mode():
        batch = ImageBatch(images, torch.stack([picture.pixels for picture in pictures]))
        features, scores = model.encode_and_score(batch)
        rows = [features.select(torch.tensor([i], device=features.vectors.device)) for i in range(len(pictures))]
    return list(zip(rows, scores, strict=True))


class CaptionJob(Job):
    """The caption of one picture; jobs with equal settings are decoded together.

    Attributes:
        future: of the caption.
    """

    urgency = CAPTION

    def __init__(
        self, model: Model, picture: Picture, settings: Decoding, encoded: EncodedPictures, prefix: Prefix | None = None
    ) -> None:
        self.model, self.picture, self.settings, self.encoded, self.prefix = model, picture, settings, encoded, prefix
        self.batch_key = (model.name, settings)
        self.future: Future[Caption] = Future()

    @property
    def has_work(self) -> bool:
        """Whether somebody waits for the caption."""
        return not self.future.done()

    def work(self, batch: Sequence[CaptionJob]) -> None:
        """Caption the pictures of the batch."""
        captions = self._captions([job.picture for job in batch], [job.prefix for job in batch])
        for job, caption in zip(batch, captions, strict=True):
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(caption)

    def fail(self, error: Exception) -> None:
        """Pass the error to whoever waits."""
        if not self.future.done():
            self.future.set_exception(error)

    def _captions(self, pictures: Sequence[Picture], prefixes: Sequence[Prefix | None]) -> list[Caption]:
        model, settings = self.model, self.settings
        encoded = self.encoded(model, pictures)
        vocabulary = model.vocabulary

        def watch(row: int, tokens: list[int]) -> None:
            if (prefix := prefixes[row]) is not None:
                prefix(vocabulary.decode(tokens))

        with torch.inference_mode():
            features = Features.joined([features for features, _ in encoded])
            start = vocabulary.start(settings.style)
            indices = [0] * len(pictures)  # so that a sampled caption does not depend on its batch
            is_watched = any(prefix is not None for prefix in prefixes)
            hypotheses = decode(
                model.captioner, features, settings, indices, start, watch=watch if is_watched else None
            )
        details = [
            _details(model, picture, settings) | scores for picture, (_, scores) in zip(pictures, encoded, strict=True)
        ]
        rows = enumerate(zip(hypotheses, details, strict=True))
        return [Caption.of(hypothesis, vocabulary, features, row, **fields) for row, (hypothesis, fields) in rows]


def _details(model: Model, picture: Picture, settings: Decoding) -> dict[str, Any]:
    return {
        **{"source": picture.name, "model": model.name, "image": picture.image, "crop": picture.image_crop},
        **{"style": settings.style, "guidance": settings.guidance_settings},
    }


@dataclass(frozen=True)
class Doubts:
    """What speaks against trusting a caption.

    Attributes:
        risks: the risk of each word, None for words that name no object; None for a model without a risk model.
        familiarity: as in `Caption`: `familiarity` and `familiar`, where they are known.
    """

    risks: tuple[float | None, ...] | None
    familiarity: dict[str, Any]


def doubts_of(
    model: Model, encoded: EncodedPictures, picture: Picture, words: Sequence[str], settings: Decoding
) -> Doubts:
    """The doubts about a caption of a picture."""
    ((features, scores),) = encoded(model, [picture])
    if model.risk_error is not None:
        return Doubts(None, scores)
    (row,) = model.risks(features, [words], [scores.get("familiarity")], settings)
    return Doubts(tuple(row), scores)


class DoubtsJob(Job):
    """The risks of a caption's words.

    Attributes:
        future: of the doubts.
    """

    urgency = DETAIL

    def __init__(
        self, model: Model, picture: Picture, words: Sequence[str], settings: Decoding, encoded: EncodedPictures
    ) -> None:
        self.model, self.picture, self.words, self.settings, self.encoded = model, picture, words, settings, encoded
        self.future: Future[Doubts] = Future()

    @property
    def has_work(self) -> bool:
        """Whether somebody waits for the risks."""
        return not self.future.done()

    def work(self, batch: Sequence[DoubtsJob]) -> None:
        """Estimate the risks."""
        doubts = doubts_of(self.model, self.encoded, self.picture, self.words, self.settings)
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(doubts)

    def fail(self, error: Exception) -> None:
        """Pass the error to whoever waits."""
        if not self.future.done():
            self.future.set_exception(error)
