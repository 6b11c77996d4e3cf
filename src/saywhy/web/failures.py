"""Which status and which line answer an error."""

from __future__ import annotations

import logging
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from saywhy.errors import ImageTooLarge, UnreadableImage, UserError

logger = logging.getLogger("uvicorn.error")
UPLOAD_ONLY = "must be a file: the server reads no path and fetches no address"


class ImageGone(UserError):
    """An image that is not kept any more."""


class UnknownModel(UserError):
    """A model that is not served."""


class UnknownBody(UserError):
    """A body that is not a form."""


class ClientGone(Exception):
    """The client has hung up: nobody needs the answer."""


STATUSES: dict[type[Exception], int] = {
    ClientGone: 499,
    ImageTooLarge: 413,
    UnreadableImage: 415,
    ImageGone: 410,
    UnknownModel: 404,
    UnknownBody: 415,
    UserError: 422,
}
"""The status of each error; the first class that fits."""


def status_and_message(error: Exception) -> tuple[int, str]:
    """The status of an error, and one line about it."""
    if isinstance(error, RequestValidationError):
        return 422, _invalid_field(error.errors()[0])
    if isinstance(error, HTTPException):
        allowed = (error.headers or {}).get("Allow")
        return error.status_code, f"use {allowed} here" if allowed else str(error.detail)
    for kind, status in STATUSES.items():
        if isinstance(error, kind):
            return status, str(error) or "the client has gone"
    if isinstance(error, MemoryError) or "memory" in str(error).lower():
        logger.error("out of memory: %s", error)
        return 507, "the server is out of memory; try a smaller beam, or later"
    logger.error("internal error", exc_info=error)
    return 500, f"internal error: {type(error).__name__}; the log of the server has the details"


def _invalid_field(error: dict[str, Any]) -> str:
    """One line about a field whose value FastAPI refused."""
    name = str(error["loc"][-1])
    if name in ("image", "erase"):
        return f"{name} {UPLOAD_ONLY}"
    return f"{name}: {error['msg'][:1].lower()}{error['msg'][1:]}, not {str(error.get('input'))[:60]!r}"
