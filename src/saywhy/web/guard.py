"""What every request passes before it is answered: who may ask, how much may be sent, and how many may wait.

A page of another site must not use the server through the visitor's browser: requests whose Host is a foreign name (DNS
rebinding) or whose Origin is another site are refused.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from saywhy.web.limits import Limits

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]

RETRY_AFTER = 2  # seconds
DISCARDED = 20
"""How many times the limit of an upload is read and discarded, so that the client reads the answer, not a reset."""
POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data: blob:"),
        *("connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "x-frame-options": "DENY",
}


class Guard:
    """Refuses foreign hosts, foreign origins, large bodies, and requests above the number that may wait.

    Args:
        app: the application.
        hosts: names under which the server may be called, beside localhost and addresses in numbers.
        limits: of the server.
    """

    def __init__(self, app: App, hosts: Collection[str], limits: Limits) -> None:
        self.app, self.limits = app, limits
        self.hosts = {"localhost", *(host.lower() for host in hosts)}
        self.in_flight = 0

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = _Body(receive, self.limits)
        if refusal := self._refusal(scope):
            await body.discard()
            await _answer(_with_headers(send), *refusal)
            return
        counted = scope["method"] == "POST"
        self.in_flight += counted
        try:
            await self.app(scope, body.receive, _with_headers(send, body))
        except BodyRefused:
            pass
        finally:
            self.in_flight -= counted
        if body.refusal:
            await body.discard()
            await _answer(_with_headers(send), *body.refusal)

    def _refusal(self, scope: MutableMapping[str, Any]) -> tuple[int, str] | None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self._is_allowed(host):
            return 421, f"this server is not {host[:80]!r}: call it by its address, or start it with --allow-host"
        if scope["method"] not in ("GET", "HEAD") and _is_foreign(headers.get("origin"), host):
            return 403, "requests from pages of other sites are refused"
        if scope["method"] == "POST" and self.in_flight >= self.limits.requests:
            return 503, f"the server is busy: try again in {RETRY_AFTER} seconds"
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.limits.upload_bytes:
            return 413, _too_large(self.limits)
        return None

    def _is_allowed(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
        except ValueError:
            return False
        return name in self.hosts or _is_address(name)


class BodyRefused(Exception):
    """A body that is too large, of a request that did not say how long it is, or one that stopped arriving."""


class _Body:
    """The body of a request, read up to a limit.

    Attributes:
        refusal: the status and the message, once the body is refused.
    """

    def __init__(self, receive: Receive, limits: Limits) -> None:
        self._receive, self.limits, self.read, self.complete = receive, limits, 0, False
        self.refusal: tuple[int, str] | None = None

    async def receive(self) -> Message:
        message = await self._next()
        if self.read > self.limits.upload_bytes:
            self.refusal = 413, _too_large(self.limits)
        if self.refusal:
            raise BodyRefused
        return message

    async def discard(self) -> None:
        """Read the rest without keeping it, up to a larger limit."""
        while not self.complete and self.read < DISCARDED * self.limits.upload_bytes:
            await self._next()

    async def _next(self) -> Message:
        """The next part; a client that sends nothing for long would keep one of the places for requests."""
        if self.complete:
            return await self._receive()  # returns when the client hangs up
        try:
            message = await asyncio.wait_for(self._receive(), self.limits.stalled_seconds)
        except TimeoutError:
            self.refusal = 408, f"the upload stopped for {self.limits.stalled_seconds:g} seconds: send it again"
            message = {"type": "http.disconnect"}
        self.read += len(message.get("body", b""))
        self.complete |= message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message


def _is_address(name: str) -> bool:
    """Whether a host is an address in numbers, which no foreign name server can change."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_foreign(origin: str | None, host: str) -> bool:
    try:
        return origin is not None and urlsplit(origin).netloc.lower() != host.lower()
    except ValueError:  # no address
        return True


def _too_large(limits: Limits) -> str:
    return f"the upload is too large: the limit is {limits.upload_bytes // 1_000_000} MB; make the image smaller first"


def _with_headers(send: Send, body: _Body | None = None) -> Send:
    """Add the headers to an answer; the application's own answer to a refused body is dropped."""

    async def sender(message: Message) -> None:
        if body is not None and body.refusal:
            return
        if message["type"] == "http.response.start":
            names = {name.lower() for name, _ in message["headers"]}
            added = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in names]
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return sender


async def _answer(send: Send, status: int, error: str) -> None:
    content = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    if status == 503:
        headers.append((b"retry-after", str(RETRY_AFTER).encode()))
    if status == 408:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
