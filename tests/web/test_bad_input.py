"""What the server refuses: the status, the one line, and that it goes on."""

from __future__ import annotations

import asyncio
import io
import json
import struct
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from saywhy.web.guard import Guard
from saywhy.web.limits import Limits
from web_photos import photo


def send(client: Any, content: bytes, name: str = "photo.png", path: str = "/api/caption", **fields: Any) -> Any:
    return client.post(path, files={"image": (name, content)}, data=fields)


def refused(response: Any, status: int) -> str:
    """The one line of an answer that refuses a request."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert "\n" not in error
    assert "Traceback" not in error
    return error


@pytest.fixture
def client(client: Any) -> Iterator[Any]:
    """A client whose server still works after the test."""
    yield client
    assert send(client, photo()).status_code == 200


@pytest.fixture
def small_client(small_client: Any) -> Iterator[Any]:
    """The same, with low limits."""
    yield small_client
    assert send(small_client, photo()).status_code == 200


def bomb(side: int) -> bytes:
    """A PNG whose header promises side × side pixels, in a few hundred bytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def test_a_text_file_is_no_image(client):
    error = refused(send(client, b"Dear diary,\n" * 100, "notes.txt"), 415)
    assert error == "notes.txt: not an image in a known format; save it as JPEG or PNG"


def test_a_file_without_bytes(client):
    assert "empty (0 bytes)" in refused(send(client, b""), 415)


def test_a_damaged_image(client):
    whole = photo(kind="JPEG", size=(480, 320))
    assert "damaged" in refused(send(client, whole[: len(whole) // 2], "half.jpg"), 415)


@pytest.mark.parametrize("side", [8_000, 30_000, 60_000])
def test_a_decompression_bomb(client, side):
    error = refused(send(client, bomb(side), "bomb.png"), 413)
    assert error.startswith("bomb.png: ")
    assert "smaller first" in error


def test_an_upload_above_the_limit(small_client):
    assert "too large" in refused(send(small_client, bytes(300_000)), 413)


def test_an_upload_above_the_limit_that_does_not_say_how_long_it_is(small_client):
    boundary = b'--x\r\ncontent-disposition: form-data; name="image"; filename="a.png"\r\n\r\n'

    def parts():
        yield boundary
        for _ in range(30):
            yield bytes(10_000)
        yield b"\r\n--x--\r\n"

    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert "too large" in refused(small_client.post("/api/caption", content=parts(), headers=headers), 413)


def test_an_image_with_many_pixels(small_client):
    buffer = io.BytesIO()
    Image.new("RGB", (400, 300)).save(buffer, "PNG")
    assert "120,000 pixels, and the limit is 100,000" in refused(send(small_client, buffer.getvalue()), 413)


@pytest.mark.parametrize(
    "text", ["/etc/passwd", "../../etc/passwd", "http://169.254.169.254/latest", "file:///etc/hosts"]
)
def test_paths_and_addresses_are_not_images(client, text):
    error = refused(client.post("/api/caption", data={"image": text}), 422)
    assert error == "image must be a file: the server reads no path and fetches no address"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/examples/..%2f..%2f__init__.py",
        "/static//etc/passwd",
    ],
)
def test_only_the_files_of_the_page_are_served(client, path):
    assert client.get(path).status_code == 404


def test_a_file_name_is_not_used_as_a_path(client):
    response = send(client, photo(), "../../../etc/passwd.png")
    assert response.json()["image"] == "passwd.png"
    response = send(client, photo(), "C:\\temp\\a\x1b[31m.png", "/api/figure")
    assert response.headers["content-disposition"].isascii()


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({}, 422, ""),
        ({"beam": 21}, 422, "use at most 20"),
        ({"beam": 0}, 422, "beam: input should be greater than or equal to 1"),
        ({"beam": "wide"}, 422, "beam: input should be a valid integer"),
        ({"beem": 3}, 422, "unknown field 'beem': did you mean \"beam\"?"),
        ({"guidance": 11}, 422, "guidance"),
        ({"temperature": 2}, 422, "add sample=true"),
        ({"sample": True, "beam": 2}, 422, "one or the other"),
        ({"style": "haiku"}, 422, "unknown style 'haiku'"),
        ({"model": "third"}, 404, "no model 'third' is served"),
    ],
)
def test_wrong_fields(client, fields, status, message):
    response = send(client, photo(), **fields)
    if fields:
        assert message in refused(response, status)
    else:
        assert "send an image" in refused(client.post("/api/caption"), 422)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"caption": "word0 zebra"}, "'zebra' is not in the model's vocabulary"),
        ({"caption": "."}, "no words"),
        ({"caption": "word0", "position": 3}, "no word 3"),
        ({"caption": "word0", "position": 1, "contrast": "word0"}, "choose another contrast"),
        ({"contrast": "word0"}, "need a position"),
        ({"methods": "occlusion"}, "no method 'occlusion' here"),
        ({"caption": "word0 " * 30}, "at most 6: shorten it"),
    ],
)
def test_wrong_targets(client, fields, message):
    assert message in refused(send(client, photo(), path="/api/explain", **fields), 422)


def test_fields_that_would_be_ignored_are_refused(client):
    assert "unknown field 'position'" in refused(send(client, photo(), position=2), 422)
    assert "not in the address" in refused(send(client, photo(), path="/api/caption?beam=3"), 422)
    twice = [("image", ("a.png", photo())), ("image", ("b.png", photo(1)))]
    assert "'image' is given twice" in refused(client.post("/api/caption", files=twice), 422)


@pytest.mark.parametrize("kind", ["application/json", "image/png", "text/plain"])
def test_a_body_that_is_no_form(client, kind):
    response = client.post("/api/caption", content=photo(), headers={"content-type": kind})
    assert f"not '{kind}'" in refused(response, 415)


def test_a_wrong_method_is_answered_by_the_right_one(client):
    response = client.get("/api/caption")
    assert refused(response, 405) == "use POST here"
    assert response.headers["allow"] == "POST"
    for path in ("/", "/docs", "/healthz"):
        assert client.head(path).status_code == 200


def test_an_error_of_a_stream_is_its_last_line(client):
    response = client.post(
        "/api/explain",
        files={"image": ("a.png", photo())},
        data={"caption": "zebra"},
        headers={"accept": "application/x-ndjson"},
    )
    assert "not in the model's vocabulary" in refused(response, 422)


def test_a_broken_mask(client):
    files = {"image": ("a.png", photo()), "erase": ("mask.png", b"not a mask")}
    assert "the mask is not a PNG" in refused(client.post("/api/caption", files=files), 415)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "", "[::1"])
def test_foreign_hosts_are_refused(client, host):
    assert "is not" in refused(client.get("/", headers={"host": host}), 421).replace("this server is not", "is not")


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1", "192.168.1.7:8000", "[::1]:8000"])
def test_own_addresses_are_answered(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


def test_pages_of_other_sites_may_not_post(client):
    response = client.post(
        "/api/caption", files={"image": ("a.png", photo())}, headers={"origin": "https://evil.example"}
    )
    assert "other sites" in refused(response, 403)
    response = client.post("/api/caption", files={"image": ("a.png", photo())}, headers={"origin": "http://["})
    assert "other sites" in refused(response, 403)
    own = {"origin": "http://127.0.0.1:8000"}
    assert client.post("/api/caption", files={"image": ("a.png", photo())}, headers=own).status_code == 200


@pytest.mark.parametrize("path", ["/", "/static/app.js", "/api/models", "/nothing", "/docs"])
def test_every_answer_has_the_headers_that_protect_a_visitor(client, path):
    headers = client.get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"


def test_a_failure_of_the_model_is_one_line(client, models, monkeypatch):
    def fail(*_: Any) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(models[0], "encode_and_score", fail)
    error = refused(send(client, photo(99)), 500)
    assert "secret" not in error
    monkeypatch.undo()


def test_an_upload_that_stops_frees_its_place_and_is_answered():
    async def application(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass

    parts = [{"type": "http.request", "body": b"half", "more_body": True}]

    async def receive() -> Any:
        return parts.pop() if parts else await asyncio.Event().wait()

    async def run() -> list[Any]:
        answer: list[Any] = []

        async def send(message: Any) -> None:
            answer.append(message)

        guard = Guard(application, (), Limits(stalled_seconds=0.05))
        scope = {"type": "http", "method": "POST", "headers": [(b"host", b"localhost")]}
        await asyncio.wait_for(guard(scope, receive, send), 5)
        assert guard.in_flight == 0
        return answer

    start, body = asyncio.run(run())
    assert start["status"] == 408
    assert (b"connection", b"close") in start["headers"]
    assert "send it again" in json.loads(body["body"])["error"]
