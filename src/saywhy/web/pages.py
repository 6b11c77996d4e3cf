"""The page and its files, which are read once: no request names a path."""

from __future__ import annotations

import mimetypes
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from saywhy.provenance import saywhy_version
from saywhy.viz.drawing import BLUE, GAMMA, PALE, RED
from saywhy.viz.explanation_figure import BUDGET_PARTS, ORDER, RARE_PARTS
from saywhy.viz.explanation_page import LIKELY_MADE_UP
from saywhy.viz.method_styles import METHOD_STYLES
from saywhy.web.api import PATCHES, model_answer
from saywhy.web.explaining import PAGE_METHODS
from saywhy.web.service import Service

PAGES = {"/": "index.html", "/docs": "docs.html", "/favicon.ico": "icon.svg"}
CACHING = {"cache-control": "no-cache"}
NAMES = {"lrp": "Why this word", "lrp-apart": "What sets it apart"}
"""Names of methods that differ from those of figures: questions that a visitor understands."""
NO_PAGE = "no such page: / is the page, and /docs describes the interface"
router = APIRouter()


def _contents(folder: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (files("saywhy.web") / folder).iterdir() if path.is_file()}


STATIC, EXAMPLES = _contents("static"), _contents("examples")


async def page(request: Request) -> Response:
    """One of the pages."""
    return _file(STATIC, PAGES[request.url.path])


for address in PAGES:
    router.add_api_route(address, page, methods=["GET", "HEAD"], include_in_schema=False)


@router.get("/static/{name}", include_in_schema=False)
async def static(name: str) -> Response:
    """A script, style or icon."""
    return _file(STATIC, name)


@router.get("/examples/{name}", include_in_schema=False)
async def example(name: str) -> Response:
    """One of the photographs to try."""
    return _file(EXAMPLES, name)


@router.get("/api/page", include_in_schema=False)
async def page_data(request: Request) -> dict[str, Any]:
    """What the page shows: models, methods, colours, limits and examples."""
    service: Service = request.app.state.service
    return {
        "version": saywhy_version(),
        "models": [model_answer(model, service.limits.beam) for model in service.models.values()],
        "methods": [_method(name) for name in PAGE_METHODS],
        "parts": {name: _part(name) for name in ORDER},
        "colours": {"red": RED, "blue": BLUE, "gamma": GAMMA, "pale": PALE},
        "likely_made_up": LIKELY_MADE_UP,
        "upload_bytes": service.limits.upload_bytes,
        "patches": PATCHES,
        "examples": sorted(name for name in EXAMPLES if name.endswith(".jpg")),
    }


def _part(name: str) -> dict[str, Any]:
    """A part of the evidence budget; a rare one is shown only where it is not 0."""
    text, colour = (BUDGET_PARTS | RARE_PARTS)[name]
    return {"name": text, "colour": colour, "rare": name in RARE_PARTS}


def _method(name: str) -> dict[str, Any]:
    style = METHOD_STYLES["lrp-why" if name == "lrp" else name]
    return {
        "id": name,
        "name": NAMES.get(name, style.name),
        "signed": METHOD_STYLES[name].signed,
        "description": style.description,
    }


def _file(contents: dict[str, bytes], name: str) -> Response:
    if name not in contents:
        raise HTTPException(404, NO_PAGE)
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(contents[name], media_type=kind, headers=CACHING)
