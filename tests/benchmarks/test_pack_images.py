"""benchmarks/pack_images.py packs a data set into parts that unpack to the same data set with smaller images."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import tiny

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "pack_images.py"


def test_parts_are_small_and_unpack_to_the_data_set(tmp_path: Path) -> None:
    data, out, copy = tmp_path / "data", tmp_path / "parts", tmp_path / "copy"
    (data / "Images").mkdir(parents=True)
    copy.mkdir()
    images = tiny.image_files(data / "Images", 6)
    (data / "captions.txt").write_text("image,caption\n" + "".join(f"{path.name},a dog\n" for path in images))
    (data / "noise").write_bytes(random.Random(0).randbytes(2_500_000))
    kept = [path.relative_to(data) for path in images[1:]]
    (tmp_path / "names").write_text("\n".join(path.name for path in kept))
    command = [sys.executable, SCRIPT, data, "--out", out, "--side", "64", "--names", tmp_path / "names"]
    subprocess.run([*command, "--megabytes", "1"], check=True)
    assert [path.stat().st_size for path in sorted(out.iterdir())][:2] == [1_000_000, 1_000_000]
    subprocess.run(f"cat {out}/* | tar -xz -C {copy}", shell=True, check=True)
    for name in ("captions.txt", "noise"):
        assert (copy / name).read_bytes() == (data / name).read_bytes()
    assert {path.relative_to(copy) for path in copy.glob("Images/*")} == set(kept)
    assert all((copy / name).read_bytes()[8:12] == b"WEBP" for name in kept)


def test_a_part_is_full_before_the_next_begins(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    from pack_images import Parts

    parts = Parts(tmp_path, 10)
    for contents in (b"abc", b"", b"defghij", b"k", b"l" * 25):
        assert parts.write(contents) == len(contents)
    written = [path.read_bytes() for path in sorted(tmp_path.iterdir())]
    assert list(map(len, written)) == [10, 10, 10, 6]
    assert b"".join(written) == b"abcdefghijk" + b"l" * 25
