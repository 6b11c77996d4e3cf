"""Waiting for an answer that the client may stop to wait for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi", reason="saywhy serve needs pip install 'saywhy[web]'")

from saywhy.web.asked import Asked
from saywhy.web.failures import ClientGone


def test_a_client_that_hangs_up_ends_the_wait_and_closes_what_it_waited_for():
    closed = []

    async def events(*_: object) -> AsyncGenerator[None, None]:
        try:
            await asyncio.Event().wait()
            yield
        finally:
            closed.append(True)

    async def receive() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    asked = Asked(SimpleNamespace(receive=receive), SimpleNamespace(events=events), *[None] * 3)
    with pytest.raises(ClientGone):
        asyncio.run(asked.explained(None, []))
    assert closed == [True]
