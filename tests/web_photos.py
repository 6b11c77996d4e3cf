"""Small photographs for the tests of the server."""

from __future__ import annotations

import io

import numpy as np
from PIL import Image


def photo(seed: int = 0, size: tuple[int, int] = (96, 64), kind: str = "PNG") -> bytes:
    """An image file of coloured cells, large enough to be seen by a small network."""
    cells = np.random.default_rng(seed).integers(0, 256, (4, 6, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(cells).resize(size, Image.Resampling.NEAREST).save(buffer, kind)
    return buffer.getvalue()
