"""A real server: many clients, clients that hang up, and its memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from web_photos import photo

MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Server:
    """A server process and its address."""

    process: subprocess.Popen[str]
    address: str

    @property
    def port(self) -> int:
        return int(self.address.rstrip("/").rpartition(":")[2])

    @property
    def memory(self) -> float:
        """Megabytes in memory now."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / MEGABYTE

    def caption(self, number: int = 0) -> httpx.Response:
        files = {"image": ("photo.png", photo(number))}
        return httpx.post(f"{self.address}api/caption", files=files, timeout=60)

    def is_idle(self) -> bool:
        """Whether, soon, no job waits."""
        for _ in range(600):
            if httpx.get(f"{self.address}healthz", timeout=20).json()["waiting"] == 0:
                return True
            time.sleep(0.1)
        return False


@pytest.fixture(scope="module")
def server(folders: list[Path]) -> Iterator[Server]:
    """`saywhy serve` with a small model, on a free port."""
    command = [sys.executable, "-m", "saywhy", "serve", "--model", str(folders[0]), "--port", "0", "--threads", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    address = process.stdout.readline().strip()
    assert address, process.stderr.read()
    server = Server(process, address)
    assert server.caption().status_code == 200
    yield server
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) in (0, 128 + signal.SIGTERM)
    assert "Traceback" not in process.stderr.read()


async def _captions_at_once(address: str, count: int) -> list[httpx.Response]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, timeout=120) as client:
        files = [{"image": ("photo.png", photo(number % 20))} for number in range(count)]
        return await asyncio.gather(*[client.post(f"{address}api/caption", files=each) for each in files])


def test_200_uploads_at_once_are_answered_or_sent_away(server):
    before = server.memory
    responses = asyncio.run(_captions_at_once(server.address, 200))
    statuses = [response.status_code for response in responses]
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 64
    assert all(int(response.headers["retry-after"]) >= 1 for response in responses if response.status_code == 503)
    expected = {number: server.caption(number).json()["caption"] for number in range(20)}
    for number, response in enumerate(responses):
        if response.status_code == 200:
            assert response.json()["caption"] == expected[number % 20]  # batches do not mix up captions
    assert server.memory - before < 150


def _request(server: Server, body: bytes, declared: int, accept: str = "*/*") -> socket.socket:
    """A connection on which a request has been sent, perhaps with less than the declared body."""
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
    head = [
        "POST /api/explain HTTP/1.1",
        f"Host: 127.0.0.1:{server.port}",
        "Content-Type: multipart/form-data; boundary=x",
        f"Content-Length: {declared}",
        f"Accept: {accept}",
    ]
    connection.sendall("\r\n".join([*head, "", ""]).encode() + body)
    return connection


def _form(image: bytes) -> bytes:
    head = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n'
    return head + image + b"\r\n--x--\r\n"


def test_clients_that_hang_up_do_not_stop_the_server(server):
    body = _form(photo(31))
    for _ in range(10):
        _request(server, body[:200], len(body)).close()  # in the middle of the upload
        _request(server, body, len(body)).close()  # before the answer
        connection = _request(server, body, len(body), "application/x-ndjson")
        connection.recv(200)
        connection.close()  # in the middle of the answer
    assert server.is_idle()
    assert server.caption().status_code == 200


def test_80_megabytes_are_refused_without_being_kept(server):
    before = server.memory
    response = httpx.post(f"{server.address}api/caption", files={"image": ("a.png", bytes(80 * MEGABYTE))}, timeout=60)
    assert response.status_code == 413
    assert "the limit is 20 MB" in response.json()["error"]
    assert server.memory - before < 60
    assert server.caption().status_code == 200


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_pictures(server):
    for number in range(100, 200):
        assert server.caption(number).status_code == 200
    before = server.memory
    for number in range(200, 500):
        assert server.caption(number).status_code == 200
    assert server.memory - before < 30


@pytest.mark.slow
def test_explanations_of_many_pictures_are_not_all_kept(server):
    def explain(number: int) -> None:
        files = {"image": ("photo.png", photo(number))}
        assert httpx.post(f"{server.address}api/explain", files=files, timeout=60).status_code == 200

    for number in range(20):
        explain(number)
    before = server.memory
    for number in range(20, 60):
        explain(number)
    assert server.memory - before < 60


def test_it_listens_on_127_0_0_1_only(server):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=5)


def test_a_word_that_is_waited_for_overtakes_the_others(server):
    async def times() -> tuple[float, float]:
        async with httpx.AsyncClient(timeout=60, base_url=server.address) as client:
            files = {"image": ("photo.png", photo(77))}
            words = (await client.post("/api/caption", files=files)).json()
            fields = {"image_id": words["image_id"], "caption": words["caption"]}

            async def ask(**more: object) -> float:
                ended = await client.post(
                    "/api/explain", data=fields | more, headers={"accept": "application/x-ndjson"}
                )
                assert json.loads(ended.text.splitlines()[-1]) == {"event": "end"}
                return time.perf_counter()

            everything = asyncio.create_task(ask(methods="guided-backprop,gradient-input,gradcam,lrp-apart"))
            await asyncio.sleep(0)
            tapped = asyncio.create_task(ask(position=4, urgent=True))
            return await tapped, await everything

    tapped, everything = asyncio.run(times())
    assert tapped < everything
