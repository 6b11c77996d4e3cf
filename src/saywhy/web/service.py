"""The models behind the interface: what a request asks for, as jobs of the worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from PIL import Image

from saywhy.audits.patches import patch_masks, patch_sums, select_highest
from saywhy.data.preprocess import map_on_image
from saywhy.decoding.config import Decoding
from saywhy.errors import UserError, did_you_mean
from saywhy.explain.explanation import Explanation
from saywhy.explain.request import ExplanationRequest
from saywhy.explain.word_by_word import APART, WORD_METHODS
from saywhy.inference.model import Model
from saywhy.web.answers import Event, png
from saywhy.web.captioning import CaptionJob, DoubtsJob, EncodedPictures, Prefix
from saywhy.web.explaining import PAGE_METHODS, Explaining, Listener, OpenPasses, Task
from saywhy.web.failures import ImageGone, UnknownModel
from saywhy.web.limits import Limits, RecentlyUsed
from saywhy.web.pictures import Picture, Upload, prepare
from saywhy.web.worker import Worker

T = TypeVar("T")
DECODERS = 2
"""Threads that decode pictures and draw maps, beside the thread of the models."""
READING = 4
"""Uploads whose bytes are in memory, beside those that are kept; others wait on the disk."""


@dataclass(frozen=True)
class Target:
    """What to explain of a picture.

    Attributes:
        caption: its words.
        position: of the only word to explain, from 1; None for all words.
        word: the word to explain in place of that of the caption.
        contrast: the word that it is compared with.
    """

    caption: tuple[str, ...]
    position: int | None = None
    word: str | None = None
    contrast: str | None = None


class Service:
    """Models, and what is kept of recent pictures."""

    def __init__(self, models: Sequence[Model], limits: Limits, threads: int | None = None) -> None:
        self.models = {model.name: model for model in models}
        self.default, self.limits = models[0], limits
        self.worker = Worker(limits.batch, threads)
        self.pool = ThreadPoolExecutor(DECODERS, thread_name_prefix="saywhy-images")
        self.encoded, self.passes = EncodedPictures(limits.features), OpenPasses(limits.open_passes)
        self.reading = asyncio.Semaphore(READING)
        self._uploads = RecentlyUsed[Upload](limits.image_bytes, lambda upload: len(upload.content))
        self._explanations = RecentlyUsed[Explaining](limits.explanations)

    async def warm_up(self) -> None:
        """Caption a blank picture and explain a word with every model: the first time takes longest."""
        blank = Upload.of(png(Image.new("RGB", (64, 64), "grey")), "blank")
        for model in self.models.values():
            picture = await self.in_pool(prepare, blank, model.preprocessing, self.limits)
            settings = model.decoding_with()
            caption = await asyncio.wrap_future(self.caption(model, picture, settings).future)
            if caption.words:
                job = self.explaining(model, picture, Target(tuple(caption.words)), settings)
                async for _ in self.events(job, job.words[:1]):
                    pass

    def close(self) -> None:
        """Stop the threads."""
        self.worker.close()
        self.pool.shutdown(cancel_futures=True)

    def model(self, name: str | None) -> Model:
        """The model of this name, or the first one."""
        if name and name not in self.models:
            raise UnknownModel(f"no model {name!r} is served: {did_you_mean(name, self.models)}")
        return self.models[name] if name else self.default

    async def picture(self, model: Model, upload: Upload | str, erased: bytes = b"") -> Picture:
        """An upload, or the kept one of this id, prepared for a model."""
        if isinstance(upload, Upload):
            self._uploads.put(upload.id, upload)
        else:
            upload = self._kept(upload)
        return await self.in_pool(prepare, upload, model.preprocessing, self.limits, erased)

    async def in_pool(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread that decodes pictures."""
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *arguments)

    def settings(self, model: Model, changes: Mapping[str, Any]) -> Decoding:
        """Decoding settings of a model with some changed."""
        settings = model.decoding_with(**changes)
        if settings.beam > self.limits.beam:
            raise UserError(f"beam = {settings.beam} is too wide for this server: use at most {self.limits.beam}")
        return settings

    def caption(self, model: Model, picture: Picture, settings: Decoding, prefix: Prefix | None = None) -> CaptionJob:
        """Begin to caption a picture."""
        job = CaptionJob(model, picture, settings, self.encoded, prefix)
        self.worker.submit(job)
        return job

    def doubts(self, model: Model, picture: Picture, words: Sequence[str], settings: Decoding) -> DoubtsJob:
        """Begin to estimate the risks of a caption's words."""
        job = DoubtsJob(model, picture, words, settings, self.encoded)
        self.worker.submit(job)
        return job

    def explaining(self, model: Model, picture: Picture, target: Target, settings: Decoding) -> Explaining:
        """The explanation of a caption, begun or as far as it is known."""
        key = (model.name, picture.key, target, settings.style, settings.attention)
        job = self._explanations.get(key)
        if job is None:
            request = ExplanationRequest.parse(
                model.vocabulary,
                settings.max_words,
                caption=" ".join(target.caption),
                word=target.word,
                position=target.position,
                contrast=target.contrast,
                methods=("lrp",),
            )
            assert request.caption is not None
            job = Explaining(model, picture, request.caption, request, settings, self.encoded, self.passes)
            self._explanations.put(key, job)
        return job

    async def events(self, job: Explaining, tasks: Sequence[Task], urgent: bool = False) -> AsyncGenerator[Event, None]:
        """The events of these tasks, as they become known; whoever stops to iterate stops to wait."""
        queue: asyncio.Queue[Event | Exception | None] = asyncio.Queue()
        listener = Listener(tasks, call_soon(queue.put_nowait), urgent)
        job.add(listener)
        self.worker.submit(job)
        try:
            while (event := await queue.get()) is not None:
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            listener.is_open = False

    async def explained(self, job: Explaining, methods: Sequence[str] = ()) -> Explanation:
        """The whole explanation, with these methods beside those that come with each word."""
        async for _ in self.events(job, [*job.words, *method_tasks(job, methods)]):
            pass
        return await self.in_pool(job.explanation)

    def evidence_mask(self, job: Explaining, k: int, count: int) -> tuple[bytes, int, int]:
        """The patches with the most relevance for word k, as a mask; how many they are, and how many there are."""
        values = job.steps.explain(k).maps["lrp"][0]  # (S, S)
        sums = patch_sums(values)
        selected = select_highest(sums, count, np.zeros_like(sums)) & (sums > 0)
        covered = patch_masks(torch.from_numpy(selected), values.shape[-1]).numpy()  # (S, S)
        width, height = job.picture.size
        scale = len(values) / max(width, height)
        size = max(1, round(width * scale)), max(1, round(height * scale))
        ratio = size[0] / width, size[1] / height
        left, top, right, bottom = job.picture.crop
        crop = (left * ratio[0], top * ratio[1], right * ratio[0], bottom * ratio[1])
        mask = map_on_image(covered.astype(np.float32), size, crop) > 0.5
        return png(Image.fromarray(np.where(mask, 255, 0).astype(np.uint8))), int(selected.sum()), sums.size

    def _kept(self, id: str) -> Upload:
        upload = self._uploads.get(id)
        if upload is None:
            raise ImageGone(f"image_id {id[:16]!r} is not kept any more: send the image again")
        return upload


def method_tasks(job: Explaining, methods: Sequence[str]) -> list[Task]:
    """The tasks of methods whose maps do not come with each word; unknown methods raise a `UserError`."""
    for method in methods:
        if method not in PAGE_METHODS:
            raise UserError(f"no method {method!r} here: {did_you_mean(method, PAGE_METHODS)}")
    return [
        ("maps", method)
        for method in methods
        if method not in WORD_METHODS and (method != APART or job.steps.compares_words)
    ]


def call_soon(function: Callable[[T], None]) -> Callable[[T], None]:
    """A function that calls another one in the running event loop, from any thread, until the loop ends."""
    loop = asyncio.get_running_loop()

    def call(argument: T) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(function, argument)

    return call
