"""Answers in parts: one JSON object per line, as soon as it is known."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator

from fastapi import Response
from fastapi.responses import StreamingResponse

from saywhy.web.answers import Event
from saywhy.web.failures import status_and_message

NDJSON = "application/x-ndjson"


def stream(events: AsyncGenerator[Event, None]) -> Response:
    """Events as lines; an error after the first line is a line too."""
    return StreamingResponse(_lines(events), media_type=NDJSON, headers={"cache-control": "no-store"})


async def _lines(events: AsyncGenerator[Event, None]) -> AsyncGenerator[str, None]:
    try:
        async for event in events:
            yield f"{json.dumps(event, ensure_ascii=False)}\n"
        yield '{"event": "end"}\n'
    except Exception as error:
        status, text = status_and_message(error)
        yield f"{json.dumps({'event': 'error', 'error': text, 'status': status}, ensure_ascii=False)}\n"
    finally:
        await events.aclose()
