"""A run that is killed at any moment and started again has every image exactly once."""

from __future__ import annotations

import json
import multiprocessing
import random
import signal
from pathlib import Path

import tiny

KILLS = 20
IMAGES = 300


def test_killed_at_20_random_moments_every_image_has_exactly_one_row(caption, tmp_path: Path) -> None:
    folder, out = tmp_path / "images", tmp_path / "out.jsonl"
    folder.mkdir()
    images = sorted(str(path) for path in tiny.image_files(folder, IMAGES))
    for broken in images[::50]:
        Path(broken).write_bytes(b"not an image")
    caption(folder, tmp_path / "whole.jsonl", part_size=7)
    random_seconds = random.Random(0)
    kills, parts = 0, {0}
    while kills < KILLS:
        process = multiprocessing.get_context("fork").Process(
            target=caption, args=(folder, out), kwargs={"part_size": 7, "workers": 1}
        )
        process.start()
        process.join(random_seconds.uniform(0.2, 0.6))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            kills += 1
            parts.add(len(list(tmp_path.glob("out.jsonl.parts/part-*"))))
        else:  # finished before it was killed: begin again
            assert process.exitcode == 0
            out.unlink()
    assert len(parts) > 3, "the kills came while parts were written"
    caption(folder, out, part_size=7)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["image"] for row in rows] == images
    assert out.read_text() == (tmp_path / "whole.jsonl").read_text()
