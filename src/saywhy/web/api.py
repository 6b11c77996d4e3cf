"""The interface for programs, which the page uses too: POST requests with a picture, answered by JSON.

With `Accept: application/x-ndjson`, captions and explanations are sent in parts, one JSON object per line, as soon as
they are known.
"""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Form, Request, Response
from fastapi.responses import JSONResponse

from saywhy.errors import UserError
from saywhy.explain.explanation import Explanation
from saywhy.explain.methods import REPORT_METHODS
from saywhy.inference.model import Model
from saywhy.provenance import saywhy_version
from saywhy.viz.explanation_page import explanation_page
from saywhy.web.answers import Event, begin_event, caption_event, doubts_event, explanation_answer, png
from saywhy.web.asked import Asked, read_request
from saywhy.web.captioning import Doubts
from saywhy.web.explaining import DOUBTS, Explaining, Task
from saywhy.web.forms import DecodingForm, PictureForm, TargetForm
from saywhy.web.schemas import (
    ERRORS,
    CaptionAnswer,
    ExplainAnswer,
    HealthAnswer,
    ModelAnswer,
    PatchesAnswer,
    answer,
    file_answer,
)
from saywhy.web.service import Service, Target, call_soon, method_tasks
from saywhy.web.streaming import stream

PATCHES = 20  # as in the audit image-ablation
router = APIRouter()
PictureFields = Annotated[PictureForm, Depends()]
DecodingFields = Annotated[DecodingForm, Depends()]
TargetFields = Annotated[TargetForm, Depends()]


@router.post("/api/caption", summary="Caption an image", responses=ERRORS | answer(CaptionAnswer, streams=True))
async def caption(
    request: Request,
    picture: PictureFields,
    decoding: DecodingFields,
    risk: Annotated[bool, Form(description="Estimate how likely each object word is made up.")] = False,
) -> Response:
    """The caption of an image, with the log-probability of each word."""
    asked = await read_request(request, picture, decoding)
    if asked.streams:
        return stream(_caption_events(asked, risk))
    result = await asked.caption()
    if risk:
        result = replace(result, risks=(await asked.doubts(result.words)).risks)
    event = caption_event(result, asked.picture)
    del event["event"]
    return JSONResponse(event)


async def _caption_events(asked: Asked, risk: bool) -> AsyncGenerator[Event, None]:
    """The best unfinished caption after each word, the caption, and its risks."""
    queue: asyncio.Queue[list[str] | None] = asyncio.Queue()
    put = call_soon(queue.put_nowait)
    job = asked.service.caption(asked.model, asked.picture, asked.settings, put)
    job.future.add_done_callback(lambda _: put(None))
    try:
        while (words := await queue.get()) is not None:
            yield {"event": "prefix", "words": words}
        result = job.future.result()
        yield caption_event(result, asked.picture)
        if risk:
            yield doubts_event(await asked.doubts(result.words))
    finally:
        job.future.cancel()


@router.post(
    "/api/explain", summary="Explain why each word was said", responses=ERRORS | answer(ExplainAnswer, streams=True)
)
async def explain(
    request: Request,
    picture: PictureFields,
    decoding: DecodingFields,
    target: TargetFields,
    risk: Annotated[bool, Form(description="Estimate how likely each object word is made up.")] = False,
    maps: Annotated[bool, Form(description="Include the maps.")] = True,
    urgent: Annotated[bool, Form(description="Compute this before what other requests wait for.")] = False,
) -> Response:
    """For each word: the evidence budget, the weights of earlier words, the likeliest other words, and maps."""
    asked = await read_request(request, picture, decoding)
    job = await _explaining(asked, target, shared=asked.streams)
    tasks = [*_words(job, target), *method_tasks(job, target.methods)]
    if asked.streams:
        if risk:
            tasks.insert(1, DOUBTS)  # after the first word: then a tapped word comes soon
        return stream(_explain_events(asked, job, tasks, urgent))
    await asked.explained(job, [*job.words, *tasks], urgent)
    explanation = await asked.service.in_pool(job.explanation)
    alternatives = [job.steps.alternatives(k) for k in range(len(job.steps))]
    if risk and target.contrast is None:
        explanation = with_doubts(explanation, await asked.doubts(job.caption))
    content = await asked.service.in_pool(explanation_answer, explanation, alternatives, maps)
    return JSONResponse({"image_id": asked.picture.key[0], **content})


async def _explain_events(
    asked: Asked, job: Explaining, tasks: Sequence[Task], urgent: bool
) -> AsyncGenerator[Event, None]:
    yield begin_event(asked.picture, asked.model.name, job.caption)
    async with aclosing(asked.service.events(job, tasks, urgent)) as events:
        async for event in events:
            yield event


@router.post("/api/patches", summary="Where the evidence for a word is", responses=ERRORS | answer(PatchesAnswer))
async def patches(
    request: Request,
    picture: PictureFields,
    decoding: DecodingFields,
    target: TargetFields,
    patches: Annotated[int, Form(ge=1, le=100_000, description="How many patches.")] = PATCHES,
) -> Response:
    """The patches of 8 × 8 pixels of the encoder's input that support a word most, as a mask for the field erase."""
    asked = await read_request(request, picture, decoding)
    if target.position is None:
        raise UserError("name the word by its position, from 1")
    job = await _explaining(asked, target, shared=True)
    (task,) = _words(job, target)
    await asked.explained(job, [task], urgent=True)
    mask, count, total = await asked.service.in_pool(asked.service.evidence_mask, job, task[1], patches)
    return JSONResponse({"mask": b64encode(mask).decode(), "patches": count, "of": total})


@router.post(
    "/api/report",
    summary="The report of saywhy explain",
    response_class=Response,
    responses=ERRORS | file_answer("text/html"),
)
async def report(request: Request, picture: PictureFields, decoding: DecodingFields, target: TargetFields) -> Response:
    """One HTML page that works offline: all words, by all methods."""
    explanation, service = await _whole_explanation(request, picture, decoding, target)
    page = await service.in_pool(explanation_page, explanation)
    return Response(page, media_type="text/html", headers=_attachment(explanation, "html"))


@router.post(
    "/api/figure",
    summary="The figure of saywhy explain",
    response_class=Response,
    responses=ERRORS | file_answer("image/png"),
)
async def figure(request: Request, picture: PictureFields, decoding: DecodingFields, target: TargetFields) -> Response:
    """A PNG with the map of each word."""
    asked = await read_request(request, picture, decoding)
    job = await _explaining(asked, target)
    method = target.methods[0] if target.methods else "lrp"
    await asked.explained(job, [*job.words, *method_tasks(job, [method])])
    explanation = await asked.service.in_pool(job.explanation)
    content = await asked.service.in_pool(lambda: png(explanation.show(method)))
    return Response(content, media_type="image/png", headers=_attachment(explanation, "png"))


@router.get("/api/models", summary="The models that are served", response_model=list[ModelAnswer])
async def models(request: Request) -> list[dict[str, Any]]:
    """Names, styles and default settings; the first model is the default."""
    service: Service = request.app.state.service
    return [model_answer(model, service.limits.beam) for model in service.models.values()]


@router.get("/healthz", summary="Whether the server works", responses=answer(HealthAnswer))
@router.head("/healthz", include_in_schema=False)
async def healthz(request: Request) -> Response:
    """The state of the server: status 200, or 503 if the thread of the models has ended."""
    worker = request.app.state.service.worker
    state = {"status": "ok" if worker.is_alive else "failed", "version": saywhy_version(), "waiting": worker.waiting}
    return JSONResponse(state, 200 if worker.is_alive else 503)


def model_answer(model: Model, widest_beam: int) -> dict[str, Any]:
    """What a client needs to know of a model."""
    return {
        "name": model.name,
        "captioner": model.captioner.name,
        "encoder": model.captioner.encoder.settings.name,
        "size": model.preprocessing.size,
        "words": len(model.vocabulary) - model.vocabulary.markers,
        "styles": list(model.vocabulary.styles),
        "style": model.decoding.style,
        "beam": model.decoding.beam,
        "widest_beam": widest_beam,
        "guidance": model.decoding.guidance,
        "guidable": model.conditioning_dropout != 0,
        "has_risk": model.risk_error is None,
    }


async def _explaining(asked: Asked, target: TargetForm, shared: bool = False) -> Explaining:
    """The explanation of what a request names; a shared one is that of the whole caption, if it has the word."""
    words = await asked.caption_words(target.caption)
    wanted = Target(words, target.position, target.word, target.contrast)
    if shared and target.word is None and target.contrast is None:
        wanted = Target(words)
    return asked.service.explaining(asked.model, asked.picture, wanted, asked.settings)


def _words(job: Explaining, target: TargetForm) -> list[Task]:
    """The tasks of the words that were asked for."""
    if target.position is None or job.steps.request.position is not None:
        return job.words
    if target.position > len(job.words):
        raise UserError(f"no word {target.position} in {' '.join(job.caption)!r}: it has {len(job.words)} words")
    return [job.words[target.position - 1]]


async def _whole_explanation(
    request: Request, picture: PictureForm, decoding: DecodingForm, target: TargetForm
) -> tuple[Explanation, Service]:
    asked = await read_request(request, picture, decoding)
    job = await _explaining(asked, target)
    await asked.explained(job, [*job.words, *method_tasks(job, REPORT_METHODS)])
    explanation = await asked.service.in_pool(job.explanation)
    if target.contrast is None:
        explanation = with_doubts(explanation, await asked.doubts(job.caption))
    return explanation, asked.service


def with_doubts(explanation: Explanation, doubts: Doubts) -> Explanation:
    """The explanation with the risk of each word and the familiarity of the picture."""
    risks = doubts.risks or (None,) * len(explanation.tokens)
    words = tuple(replace(word, risk=risks[word.position]) for word in explanation.words)
    return replace(explanation, words=words, **doubts.familiarity)


def _attachment(explanation: Explanation, suffix: str) -> dict[str, str]:
    stem = "".join(
        letter if letter.isascii() and letter.isalnum() else "-" for letter in PurePath(explanation.source).stem
    )
    return {"content-disposition": f'attachment; filename="{stem.strip("-") or "image"}-why.{suffix}"'}
