"""Images in tar shards, their bytes, and the rows of an output, for tests."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def png(number: int, size: tuple[int, int] = (80, 70)) -> bytes:
    """The bytes of an image of noise."""
    noise = np.random.default_rng(number).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "PNG")
    return buffer.getvalue()


def write_tar(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    """A tar file of these members."""
    with tarfile.open(path, "w") as archive:
        for name, contents in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(contents)
            archive.addfile(entry, io.BytesIO(contents))
    return path


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of an output."""
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    import pyarrow.parquet as parquet

    return parquet.read_table(path).to_pylist()
