"""HTML pages without other files: templates with values filled in, and images as data URLs."""

from __future__ import annotations

import io
import re
from base64 import b64encode
from collections.abc import Mapping
from importlib.resources import files

from PIL import Image


def fill_template(name: str, values: Mapping[str, str]) -> str:
    """A template of this package with every {{name}} replaced by its value, which must be HTML already."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: values[match[1]], read_template(name))


def read_template(name: str) -> str:
    """The text of a template, style or script of this package."""
    return (files("saywhy.viz") / name).read_text(encoding="utf-8").strip()


def jpeg_url(image: Image.Image, quality: int) -> str:
    """An RGB image as the URL of a JPEG."""
    buffer = io.BytesIO()
    image.save(buffer, format="JPEG", quality=quality)
    return data_url(buffer.getvalue(), "jpeg")


def data_url(content: bytes, kind: str) -> str:
    """The contents of an image file as a URL; `kind` is "jpeg" or "png"."""
    return f"data:image/{kind};base64,{b64encode(content).decode()}"
