"""Files are complete or absent; what cannot be read or written is one line with the file's name."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from saywhy.errors import UserError
from saywhy.files import parse_json, printable, read_json, read_text, whole_file, write_text


def refusal(call, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("contents", "detail"),
    [
        (b'{"a": 1,\n "b"}', "malformed JSON at line 2, column 5"),
        (b"", "malformed JSON at line 1, column 1"),
        (b"[" * 100_000, "malformed JSON (nested too deeply)"),
        (b'{"a":' * 100_000, "malformed JSON (nested too deeply)"),
        (b"[" * 100_000 + b"]" * 100_000, "malformed JSON (nested too deeply)"),
        (b"1" * 10_000, "malformed JSON (Exceeds the limit"),
        (b'"\xff"', "not UTF-8 text (byte 1)"),
    ],
)
def test_malformed_json_is_one_line_with_the_files_name(tmp_path, contents, detail):
    path = tmp_path / "config.json"
    path.write_bytes(contents)
    line = refusal(read_json, path)
    assert line.startswith(f"{path}: {detail}")
    assert len(line) < 300


def test_json_is_read_with_or_without_a_byte_order_mark(tmp_path):
    for encoding in ("utf-8", "utf-8-sig"):
        (tmp_path / "a.json").write_text('{"ü": [1]}', encoding=encoding)
        assert read_json(tmp_path / "a.json") == {"ü": [1]}
    assert parse_json(b"[1]", "line 1") == [1]


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    assert refusal(read_text, tmp_path / "gone.txt").startswith(
        f"{tmp_path / 'gone.txt'}: cannot be read (No such file"
    )
    assert "Is a directory" in refusal(read_json, tmp_path)
    assert "cannot be read" in refusal(read_text, "null\0character")


def write_half(path: Path, interruption: type[BaseException]) -> None:
    with whole_file(path) as part:
        part.write_text("half")
        raise interruption


def test_a_file_is_complete_or_absent(tmp_path):
    path = tmp_path / "new" / "a.txt"
    with pytest.raises(KeyboardInterrupt):
        write_half(path, KeyboardInterrupt)
    assert list(path.parent.iterdir()) == []
    write_text(path, "complete")
    with pytest.raises(ZeroDivisionError):
        write_half(path, ZeroDivisionError)
    assert path.read_text() == "complete"
    assert list(path.parent.iterdir()) == [path]


def test_a_written_file_has_the_usual_permissions(tmp_path):
    mask = os.umask(0o027)
    try:
        write_text(tmp_path / "a.txt", "text")
    finally:
        os.umask(mask)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == 0o640


def test_a_full_disk_names_the_file(tmp_path, monkeypatch):
    def full(*arguments: object, **named: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*why\.html'") as caught:
        write_text(tmp_path / "why.html", "text")
    assert caught.value.filename == str(tmp_path / "why.html")
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"why\.html"):
        write_text(tmp_path / "why.html", "text")
    assert list(tmp_path.iterdir()) == []


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file") as caught:
        write_text(tmp_path / "file" / "a.txt", "text")
    assert ".part" not in str(caught.value)
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError) as replaced:
        write_text(tmp_path / "folder", "text")
    assert replaced.value.filename == str(tmp_path / "folder")


@pytest.mark.parametrize("name", ["x" * 250 + ".txt", "ü" * 120 + ".txt"])
def test_a_name_of_the_greatest_length_can_be_written(tmp_path, name):
    write_text(tmp_path / name, "text")
    assert (tmp_path / name).read_text() == "text"


def test_characters_that_utf8_cannot_encode_are_written_as_escapes(tmp_path):
    write_text(tmp_path / "a.json", json.dumps(os.fsdecode(b"\xff.jpg"), ensure_ascii=False))
    assert (tmp_path / "a.json").read_text() == '"\\udcff.jpg"'


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain ünï 犬 😀.jpg", "plain ünï 犬 😀.jpg"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\nb\rc\td\0", r"a\nb\rc\td\x00"),
        ("\x7f\x9b31m", r"\x7f\x9b31m"),
        ("gpj.\u202etxt\u2066\u2069\u200f", r"gpj.\u202etxt\u2066\u2069\u200f"),
        ("one\u2028two\u2029\x85", r"one\u2028two\u2029\x85"),
        ("\udcff.jpg", r"\udcff.jpg"),
        (Path("a\x07b"), r"a\x07b"),
    ],
)
def test_control_characters_are_shown_as_escapes(text, shown):
    assert printable(text) == shown
