"""What every audit works with: a model, images that people described, and what is known of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saywhy.audits.result_cache import Arrays, ResultCache
from saywhy.cache import content_key
from saywhy.captioners.base import Captioner
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.loading import Chunks, ImageFiles, default_workers, read_ahead
from saywhy.data.object_words import ObjectWords
from saywhy.data.phrases import Phrases
from saywhy.data.region_inputs import GivenRegions, RegionBoxes
from saywhy.data.tokenizer import tokenize
from saywhy.data.vocabulary import PAD, START
from saywhy.decoding import decode
from saywhy.decoding.config import log_probabilities
from saywhy.encoders.features import Features
from saywhy.errors import UserError
from saywhy.explain.composites import DEFAULT, Composite, composite
from saywhy.explain.explaining import words_at_a_time
from saywhy.explain.methods import METHODS
from saywhy.hallucination.risk import Names
from saywhy.inference.model import Model

VERSION = 1
"""Of what is kept: another one finds nothing of this."""
AT_ONCE = {"cpu": 16, "cuda": 256}
"""Images, or captions, that go through the model at once; more are slower on a CPU, whose caches they overflow."""
Progress = Callable[[str, int, int], None]
"""Told what is being done, how many images of it are done, and how many there are."""


def silent(what: str, done: int, total: int) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class ImageBatch:
    """A batch of images as the encoder sees them."""

    images: Sequence[CaptionedImage]
    pixels: Tensor  # (B, 3, S, S) uint8
    boxes: Tensor | None  # (B, R, 4), where the model looks at regions

    def __len__(self) -> int:
        return len(self.images)


@dataclass
class AuditContext:
    """A model on trial.

    Attributes:
        model: the model.
        data: the images of one split, with their captions.
        cache: the folder in which what was found out is kept.
        objects: the table of object words.
        phrases: noun phrases with boxes, where the data has some.
        regions: what a model of regions looks at.
        rules: of LRP.
        batch: images at a time; by itself one on a CPU and eight on a GPU.
        workers: processes that read images.
        progress: told how far an audit is.
        on_unreadable: told of each image that cannot be read, once.
        of: how many images the split has, where `data` are some of them.
        fitting: the images that a risk is to be fitted on; without them the model's own is used.
    """

    model: Model
    data: Dataset
    cache: Path
    objects: ObjectWords = field(default_factory=ObjectWords.read)
    phrases: Phrases | None = None
    regions: GivenRegions | None = None
    rules: Composite = field(default_factory=lambda: composite(DEFAULT))
    batch: int | None = None
    workers: int | None = None
    progress: Progress = silent
    on_unreadable: Callable[[str], None] = lambda line: None
    fitting: AuditContext | None = None
    of: int | None = None
    broken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        if self.regions is not None and self.regions.are_features:
            raise UserError(
                f"model {self.model.name} looks at given features, not at pixels: there is nothing an audit could mask"
            )
        decoding = self.model.decoding
        if decoding.method == "sample" or decoding.attend == "sampled":
            raise UserError(
                f"model {self.model.name} draws its words or places at random: audits need one that does not"
            )
        wordless = [image.name for image in self.data.images if not image.captions]
        if wordless:
            raise UserError(f"{self.data.root}: {wordless[0]} has no caption to hold the model's against")

    @property
    def captioner(self) -> Captioner:
        """The model's captioner."""
        return self.model.captioner

    @property
    def device(self) -> torch.device:
        """What is computed on."""
        return self.captioner.device

    @property
    def side(self) -> int:
        """S, of the square the encoder sees."""
        return self.model.preprocessing.size

    @property
    def chunk(self) -> int:
        """Words that go back at a time."""
        return words_at_a_time(self.device)

    @property
    def at_once(self) -> int:
        """Images, or captions, that go through the model at once."""
        return AT_ONCE.get(self.device.type, 64)

    @cached_property
    def names(self) -> Names:
        """Which words of the model's vocabulary name which things."""
        return Names(self.model.vocabulary, self.objects)

    @cached_property
    def references(self) -> dict[str, tuple[tuple[str, ...], ...]]:
        """What people said of each image, in words."""
        return {each.name: tuple(tuple(tokenize(text)) for text in each.captions) for each in self.data.images}

    @cached_property
    def key(self) -> dict[str, Any]:
        """All that a caption and its explanation depend on, the image apart."""
        return {
            "model": digest(self.model),
            "decoding": str(self.model.decoding),
            "rules": repr(self.rules),
            "objects": self.objects.key,
            "regions": self.regions.describe() if self.regions else None,
        }

    def kept(self, stage: str, **more: Any) -> ResultCache:
        """What is kept of a stage; `more` is what it depends on beside the model."""
        return ResultCache(self.cache, stage, {**self.key, "version": VERSION, "methods": METHODS, **more})

    def through(
        self,
        kept: ResultCache,
        compute: Callable[[ImageBatch], Iterable[Arrays]],
        what: str,
        images: Sequence[CaptionedImage] | None = None,
    ) -> list[CaptionedImage]:
        """See to it that every image is kept; `compute` gives the arrays of each of a batch. Those that are."""
        asked = self.data.images if images is None else images
        every = [each for each in asked if each.name not in self.broken]
        names = {each.name: self.name_of(each) for each in every}
        missing = [each for each in every if not kept.has(names[each.name])]
        done = len(every) - len(missing)
        self.progress(what, done, len(every))
        for seen in self._seen(missing):
            with (
                torch.inference_mode(False),
                self.captioner.attention_mode_set(self.model.decoding.attend),
                _enough_memory(),
            ):
                for image, arrays in zip(seen.images, compute(seen), strict=True):
                    kept.save(names[image.name], arrays)
            done += len(seen)
            self.progress(what, done, len(every))
        return [each for each in every if each.name not in self.broken]

    def name_of(self, image: CaptionedImage) -> str:
        """What an image is kept under: its name and contents."""
        try:
            return f"{image.name} {content_key(image.path)}"
        except UserError:
            return image.name  # broken, so never kept

    def _seen(self, images: Sequence[CaptionedImage]) -> Iterator[ImageBatch]:
        if not images:
            return
        size = self.batch or (1 if self.device.type == "cpu" else 8)
        names, paths = [each.name for each in images], [Path(each.path) for each in images]
        frame = self.model.preprocessing
        files = ImageFiles(paths, (3, frame.size, frame.size), frame, frame.at_least)
        boxes = RegionBoxes(self.regions, names, paths, frame) if self.regions else None
        chunks = [list(range(start, min(start + size, len(paths)))) for start in range(0, len(paths), size)]
        workers = default_workers() if self.workers is None else self.workers
        for numbers, rows, faults in read_ahead(Chunks(files), chunks, workers):
            for number, fault in zip(numbers, faults, strict=True):
                if fault:
                    self.broken.add(names[number])
                    self.on_unreadable(fault)
            whole = [row for row, fault in enumerate(faults) if not fault]
            if whole:
                there = [numbers[row] for row in whole]
                where = torch.from_numpy(boxes.rows(there)).to(self.device) if boxes else None
                yield ImageBatch([images[each] for each in there], rows[whole].to(self.device), where)

    def encode(
        self,
        seen: ImageBatch,
        rows: Sequence[int] | None = None,
        change: Callable[[Tensor, slice], Tensor] | None = None,
    ) -> Features:
        """Features of images, each as often as its row says; `change` alters the pixels of some of these."""
        whose = torch.arange(len(seen)) if rows is None else torch.as_tensor(rows)
        parts = []
        for start in range(0, len(whose), self.at_once):
            some = slice(start, start + self.at_once)
            here = whose[some].to(seen.pixels.device)
            pixels = seen.pixels[here] if change is None else change(seen.pixels[here], some)
            with torch.no_grad():
                parts.append(self.captioner.encode(pixels, None if seen.boxes is None else seen.boxes[here]))
        return Features.joined(parts)

    def captions(self, features: Features) -> list[list[str]]:
        """The words the model says."""
        found: list[list[str]] = []
        for start in range(0, len(features), self.at_once):
            some = decode(self.captioner, features[start : start + self.at_once], self.model.decoding)
            found += [self.model.vocabulary.decode(each.words) for each in some]
        return found

    def probabilities(
        self, features: Features, rows: Sequence[int], said: Sequence[Sequence[int]], words: Sequence[int]
    ) -> np.ndarray:
        """p of each word after what was said, numbers without `<start>`, of the images in these rows: (N,)."""
        order = sorted(range(len(said)), key=lambda i: -len(said[i]))  # the longest first: padding is not computed
        found = np.empty(len(order))
        for start in range(0, len(order), self.at_once):
            some = order[start : start + self.at_once]
            asked = [rows[i] for i in some], [said[i] for i in some], [words[i] for i in some]
            found[some] = self._probabilities(features, *asked)
        return found

    @torch.no_grad()
    def _probabilities(
        self, features: Features, rows: list[int], said: list[Sequence[int]], words: list[int]
    ) -> np.ndarray:
        captions = pad_sequence([torch.tensor([START, *each]) for each in said], batch_first=True, padding_value=PAD)
        whose, last, wanted = (torch.tensor(of, device=self.device) for of in (rows, [*map(len, said)], words))
        logits, _ = self.captioner(features.select(whose), captions.to(self.device))
        log_p = log_probabilities(logits[torch.arange(len(rows), device=self.device), last])  # (N, V)
        return log_p.gather(-1, wanted[:, None])[:, 0].exp().cpu().numpy()


@contextmanager
def _enough_memory() -> Iterator[None]:
    try:
        yield
    except torch.OutOfMemoryError:
        raise UserError("the GPU's memory is too small for so many images at a time: give a smaller --batch") from None


def digest(model: Model) -> str:
    """A hash of all that makes a model say what it says."""
    found = hashlib.blake2b(digest_size=16)
    parts = (model.captioner.settings, model.captioner.encoder.settings, model.preprocessing)
    about = [model.captioner.name, *map(asdict, parts)]
    found.update(json.dumps([*about, model.vocabulary.words], sort_keys=True, default=str).encode())
    for name, values in sorted(model.captioner.state_dict().items()):
        found.update(name.encode())
        found.update(values.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()
