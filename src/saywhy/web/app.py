"""The web application: models, the page and the interface for programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from saywhy.errors import UserError
from saywhy.inference.model import Model
from saywhy.provenance import saywhy_version
from saywhy.web import api, pages
from saywhy.web.failures import ClientGone, status_and_message
from saywhy.web.guard import Guard
from saywhy.web.limits import Limits
from saywhy.web.service import Service

DESCRIPTION = """Caption images, and explain every word. Send an image as the multipart field image, or the image_id
of an earlier answer. An error is one line: {"error": "..."}."""


def create_app(
    models: Sequence[Model],
    limits: Limits | None = None,
    hosts: Collection[str] = (),
    threads: int | None = None,
    warm_up: bool = False,
) -> FastAPI:
    """An application that serves these models.

    Args:
        models: the first one is the default.
        limits: what is accepted and kept.
        hosts: names under which the server may be called, beside localhost and addresses in numbers.
        threads: of torch; None for torch's own choice.
        warm_up: compute something with every model at the start, so that the first visitor does not wait for it.
    """
    _check(models)
    limits = limits or Limits()
    service = Service(models, limits, threads)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        warming = asyncio.create_task(service.warm_up()) if warm_up else None
        yield
        if warming:
            warming.cancel()
        service.close()

    app = FastAPI(
        title="saywhy",
        version=saywhy_version(),
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.include_router(api.router)
    app.include_router(pages.router)
    for kind in (UserError, ClientGone, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _failed)
    app.add_middleware(Guard, hosts=hosts, limits=limits)
    return app


def _check(models: Sequence[Model]) -> None:
    names = [model.name for model in models]
    for model in models:
        if names.count(model.name) > 1:
            raise UserError(f"two models are called {model.name!r}: serve models with different names")
        if model.regions is not None:
            raise UserError(
                f"model {model.name} attends to regions, which an uploaded image does not have; serve another"
            )


async def _failed(_: Request, error: Exception) -> Response:
    status, text = status_and_message(error)
    return JSONResponse({"error": text}, status, headers=getattr(error, "headers", None))
