"""What every audit works with: a model, the images of a split with their references, and a cache of results.

Results are cached per image and stage. The cache key contains everything that the numbers depend on (weights,
settings, decoding, LRP rules, object words, and the content of the image), so an interrupted audit continues where it
stopped, and a changed model or image never reuses old numbers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saywhy.cache import Arrays, DiskCache, ItemCache, content_key
from saywhy.captioners.base import Captioner
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.object_words import ObjectWords
from saywhy.data.phrases import Phrases
from saywhy.data.regions import RegionSource
from saywhy.data.tokenizer import tokenize
from saywhy.decoding.config import decode
from saywhy.encoders.base import Features
from saywhy.errors import UnreadableImage, UserError
from saywhy.explain.composites import DEFAULT, Composite, composite
from saywhy.explain.methods import METHODS
from saywhy.explain.targets import Targets
from saywhy.inference.batches import ImageBatch, ImageBatches, default_workers
from saywhy.inference.model import Model
from saywhy.language_models.load_scorer import lm_key

VERSION = 2
"""Part of every cache key; increase it when the meaning of cached arrays changes."""
FORWARD_BATCH = {"cpu": 16, "cuda": 256}
"""Images or captions per forward pass; larger batches are slower on a CPU, because they exceed its caches."""


class NotApplicable(Exception):
    """An audit that cannot run on these data or this model, and the reason."""


@dataclass(frozen=True)
class Progress:
    """An event of a stage: its start, a finished batch, or its end.

    Attributes:
        stage: what is being computed.
        done: images finished so far, cached ones included.
        total: images of the stage.
        seconds: since the stage started.
        finished: whether this is the last event of the stage.
    """

    stage: str
    done: int
    total: int
    seconds: float = 0.0
    finished: bool = False


def ignore(event: object) -> None:
    """Do nothing with an event."""


@dataclass
class AuditContext:
    """A model to audit, with its data and settings.

    Attributes:
        model: the model.
        data: the images of one split, with their reference captions.
        cache: the folder of cached results.
        object_words: the table of object words.
        phrases: noun phrases with boxes, if the data has them.
        regions: the regions that a region model attends to.
        composite: the rules of LRP.
        occlusion: whether the audit specificity measures occlusion too, which is slow.
        batch_size: images per batch; by default 1 on a CPU and 8 on a GPU.
        workers: processes that read images.
        on_progress: called at the start and end of every stage, and after every batch.
        on_unreadable: called once for each image that cannot be read.
        fit_contexts: of the images to fit a risk on, one per data set; without them, the model's own risk is tested.
        unfamiliar: a folder of images that are not like the training photographs, with one sub-folder per kind.
        split_images: the number of images of the split, if `data` is a part of it.
        unreadable: names of the images that could not be read.
    """

    model: Model
    data: Dataset
    cache: Path
    object_words: ObjectWords = field(default_factory=ObjectWords.read)
    phrases: Phrases | None = None
    regions: RegionSource | None = None
    composite: Composite = field(default_factory=lambda: composite(DEFAULT))
    occlusion: bool = False
    batch_size: int | None = None
    workers: int | None = None
    on_progress: Callable[[Progress], None] = ignore
    on_unreadable: Callable[[UnreadableImage], None] = ignore
    fit_contexts: tuple[AuditContext, ...] = ()
    unfamiliar: Path | None = None
    split_images: int | None = None
    unreadable: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.regions is not None and self.regions.are_features:
            raise UserError(
                f"model {self.model.name} reads region features instead of pixels, so audits have no pixels to mask; "
                "audit a model that reads images"
            )
        decoding = self.model.decoding
        if decoding.method == "sample" or decoding.attention == "sampled":
            raise UserError(f"model {self.model.name} samples words or attention; audits need deterministic decoding")
        without_captions = [image.name for image in self.data.images if not image.captions]
        if without_captions:
            raise UserError(
                f"{self.data.root}: {without_captions[0]} has no reference caption; add one or remove the image"
            )

    @property
    def captioner(self) -> Captioner:
        """The model's captioner."""
        return self.model.captioner

    @property
    def device(self) -> torch.device:
        """The device of the captioner."""
        return self.captioner.device

    @property
    def style(self) -> str:
        """The style of the captions; "" for a model without styles."""
        return self.model.decoding.style

    @property
    def start_token(self) -> int:
        """The token that captions begin with."""
        return self.model.vocabulary.start(self.style)

    @property
    def input_size(self) -> int:
        """S, the side of the encoder's input."""
        return self.model.preprocessing.size

    @property
    def forward_batch(self) -> int:
        """Images or captions per forward pass."""
        return FORWARD_BATCH.get(self.device.type, 64)

    @cached_property
    def references(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """The tokenised reference captions by image name."""
        return {image.name: tuple(tuple(tokenize(text)) for text in image.captions) for image in self.data.images}

    @cached_property
    def key(self) -> dict[str, Any]:
        """Everything except the image that a caption and its explanation depend on."""
        decoding = self.model.decoding
        return {
            "model": self.model.digest(),
            "decoding": str(decoding),
            "composite": repr(self.composite),
            "object_words": self.object_words.key,
            "regions": self.regions.describe() if self.regions else None,
            **({"lm": lm_key(decoding.lm, decoding.lm_prompt)} if decoding.lm else {}),
        }

    def stage_cache(self, stage: str, **settings: Any) -> DiskCache:
        """The cached results of a stage; `settings` are what it depends on besides the model."""
        return DiskCache(self.cache, stage, {**self.key, "version": VERSION, "methods": METHODS, **settings})

    def image_key(self, image: CaptionedImage) -> str:
        """The cache key of an image: its name and its content."""
        try:
            return f"{image.name} {content_key(image.path)}"
        except UserError:
            return image.name  # unreadable, so it is never cached

    def compute_missing(
        self,
        cache: ItemCache,
        compute: Callable[[ImageBatch, list[CaptionedImage]], Iterable[Arrays]],
        stage: str,
        images: Sequence[CaptionedImage] | None = None,
    ) -> list[CaptionedImage]:
        """Compute and cache the arrays of all images that are not cached yet; return the images that are readable.

        `compute` gets a batch and its images, and gives the arrays of each.
        """
        images = self.data.images if images is None else images
        images = [image for image in images if image.name not in self.unreadable]
        keys = {image.name: self.image_key(image) for image in images}
        missing = [image for image in images if not cache.has(keys[image.name])]
        done, total, start = len(images) - len(missing), len(images), time.monotonic()
        self.on_progress(Progress(stage, done, total))
        for batch in self.batches(missing):
            batch_images = [missing[index] for index in batch.indices]
            with (
                torch.inference_mode(False),
                self.captioner.using_attention(self.model.decoding.attention),
                _out_of_memory_advice(),
            ):
                for image, arrays in zip(batch_images, compute(batch, batch_images), strict=True):
                    cache.save(keys[image.name], arrays)
            done += len(batch)
            self.on_progress(Progress(stage, done, total, time.monotonic() - start))
        self.on_progress(Progress(stage, done, total, time.monotonic() - start, finished=True))
        return [image for image in images if image.name not in self.unreadable]

    def batches(self, images: Sequence[CaptionedImage]) -> Iterator[ImageBatch]:
        """The images in batches on the device; unreadable ones are reported and left out."""

        def report(index: int, error: UnreadableImage) -> None:
            self.unreadable.add(images[index].name)
            self.on_unreadable(error)

        if not images:
            return
        batches = ImageBatches(
            self.model.preprocessing,
            [image.path for image in images],
            self.regions,
            batch_size=self.batch_size or (1 if self.device.type == "cpu" else 8),
            workers=default_workers() if self.workers is None else self.workers,
            on_unreadable=report,
            names=[image.name for image in images],
        )
        for batch in batches:
            yield batch.to(self.device)

    def encode(
        self,
        batch: ImageBatch,
        rows: Sequence[int] | None = None,
        change: Callable[[Tensor, slice], Tensor] | None = None,
    ) -> Features:
        """The features of the images in `rows`, where a row may occur many times.

        `change(pixels, part)` alters the pixels of the slice `part` of the rows before they are encoded.
        """
        indices = torch.arange(len(batch)) if rows is None else torch.as_tensor(rows)
        parts = []
        for start in range(0, len(indices), self.forward_batch):
            part = slice(start, start + self.forward_batch)
            index = indices[part].to(batch.pixels.device)
            pixels = batch.pixels[index] if change is None else change(batch.pixels[index], part)
            with torch.no_grad():
                parts.append(self.captioner.encode(pixels, None if batch.boxes is None else batch.boxes[index]))
        return Features.joined(parts)

    def captions(self, features: Features) -> list[list[str]]:
        """The captions that the model generates, as words."""
        captions: list[list[str]] = []
        decoding = self.model.decoding
        lm = self.model.language_model(decoding.lm, decoding.lm_prompt)
        for start in range(0, len(features), self.forward_batch):
            part = features[start : start + self.forward_batch]
            hypotheses = decode(self.captioner, part, decoding, start=self.start_token, lm=lm)
            captions += [self.model.vocabulary.decode(hypothesis.tokens) for hypothesis in hypotheses]
        return captions

    def probabilities(
        self, features: Features, rows: Sequence[int], prefixes: Sequence[Sequence[str]], words: Sequence[str]
    ) -> np.ndarray:
        """The probability of each word after its prefix, for the image in its row of the features: (N,)."""
        order = sorted(range(len(prefixes)), key=lambda i: -len(prefixes[i]))  # longest first: less padding
        p = np.empty(len(order))
        for start in range(0, len(order), self.forward_batch):
            part = order[start : start + self.forward_batch]
            p[part] = self._probabilities(
                features, [rows[i] for i in part], [prefixes[i] for i in part], [words[i] for i in part]
            )
        return p

    @torch.no_grad()
    def _probabilities(
        self, features: Features, rows: list[int], prefixes: list[Sequence[str]], words: list[str]
    ) -> np.ndarray:
        captions = [[*prefix, word] for prefix, word in zip(prefixes, words, strict=True)]
        last = [[len(prefix)] for prefix in prefixes]
        targets = Targets.of_captions(captions, last, self.model.vocabulary, self.device, style=self.style)
        selected = features.select(torch.tensor(rows, device=self.device))
        logits, _ = self.captioner(selected, targets.tokens[:, :-1])  # nothing follows the last token
        return targets.probabilities(logits, self.captioner.styles)[:, 0].cpu().numpy()


@contextmanager
def _out_of_memory_advice() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise UserError("out of GPU memory: give a smaller --batch-size") from None
