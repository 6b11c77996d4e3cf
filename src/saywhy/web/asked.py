"""A request that has been read: its picture and settings, and the ways to wait for what it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Request

from saywhy.data.tokenizer import tokenize
from saywhy.decoding.caption import Caption
from saywhy.decoding.config import Decoding
from saywhy.errors import UserError, did_you_mean
from saywhy.inference.model import Model
from saywhy.web.answers import Event
from saywhy.web.captioning import Doubts
from saywhy.web.explaining import Explaining, Task
from saywhy.web.failures import ClientGone, UnknownBody
from saywhy.web.forms import DecodingForm, PictureForm
from saywhy.web.pictures import Picture
from saywhy.web.service import Service
from saywhy.web.streaming import NDJSON

T = TypeVar("T")
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")


@dataclass(frozen=True)
class Asked:
    """A request whose picture and settings have been read."""

    request: Request
    service: Service
    model: Model
    picture: Picture
    settings: Decoding

    @property
    def streams(self) -> bool:
        """Whether the client wants the answer in parts."""
        return NDJSON in self.request.headers.get("accept", "")

    async def result(self, awaitable: Awaitable[T]) -> T:
        """The result of something that is dropped if the client hangs up."""
        waiting = asyncio.ensure_future(awaitable)
        gone = asyncio.ensure_future(_disconnected(self.request))
        try:
            await asyncio.wait({waiting, gone}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            raise ClientGone
        finally:
            gone.cancel()
            waiting.cancel()
            await asyncio.wait({waiting, gone})  # a generator can be closed only after its reader has stopped

    async def caption(self) -> Caption:
        """The model's caption."""
        job = self.service.caption(self.model, self.picture, self.settings)
        return await self.result(asyncio.wrap_future(job.future))

    async def doubts(self, words: Sequence[str]) -> Doubts:
        """What speaks against a caption."""
        job = self.service.doubts(self.model, self.picture, words, self.settings)
        return await self.result(asyncio.wrap_future(job.future))

    async def explained(self, job: Explaining, tasks: Sequence[Task], urgent: bool = False) -> None:
        """Wait until these tasks of an explanation are done."""
        async with aclosing(self.service.events(job, tasks, urgent)) as events:
            await self.result(_exhaust(events))

    async def caption_words(self, text: str | None) -> tuple[str, ...]:
        """The words of a given caption, or of the model's own."""
        if text is None:
            return (await self.caption()).words
        words, ids = tuple(text.split()), self.model.vocabulary.ids
        return words if all(word in ids for word in words) else tuple(tokenize(text))


async def read_request(request: Request, picture: PictureForm, decoding: DecodingForm) -> Asked:
    """Read the picture and the settings of a request; a field that would be ignored is a `UserError`."""
    await _check_fields(request)
    service: Service = request.app.state.service
    model = service.model(picture.model)
    settings = service.settings(model, decoding.changes())
    async with service.reading:
        prepared = await service.picture(model, await picture.upload(), await picture.erased())
    return Asked(request, service, model, prepared, settings)


async def _check_fields(request: Request) -> None:
    """Refuse what FastAPI ignores: bodies of other kinds, and fields that are unknown, repeated or in the address."""
    kind = request.headers.get("content-type", FORMS[0]).partition(";")[0].strip().lower()
    if kind not in FORMS:
        raise UnknownBody(f"send a form with the image in the field image (multipart/form-data), not {kind[:80]!r}")
    if request.query_params:
        raise UserError("send fields in the form, not in the address")
    known = _documented_fields(request)
    names = [name for name, _ in (await request.form()).multi_items()]
    for name in names:
        if name not in known:
            raise UserError(f"unknown field {name[:80]!r}: {did_you_mean(name, known)}")
        if names.count(name) > 1:
            raise UserError(f"field {name!r} is given twice")


def _documented_fields(request: Request) -> set[str]:
    """The fields of a request's form, by the OpenAPI document."""
    document = request.app.openapi()  # built once
    body = document["paths"][request.url.path]["post"]["requestBody"]
    name = body["content"][FORMS[0]]["schema"]["$ref"].rpartition("/")[2]
    return set(document["components"]["schemas"][name]["properties"])


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _exhaust(events: AsyncGenerator[Event, None]) -> None:
    async for _ in events:
        pass
