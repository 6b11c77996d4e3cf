"""One page that leads to the reports of many images; it needs no network."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Iterable
from html import escape
from urllib.parse import quote

from PIL import Image

from saywhy.explain.explanation import Explanation

THUMBNAIL = 192

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Why each word: {count}</title>
<link rel="icon" href="data:,">
<style>
body {{ margin: 2rem auto; max-width: 72rem; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif }}
h1 {{ font-size: 1.3rem; font-weight: 600 }}
ul {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(12rem, 1fr)); gap: 1.5rem; padding: 0 }}
li {{ list-style: none }}
a {{ color: inherit; text-decoration: none }}
a:hover, a:focus-visible {{ text-decoration: underline }}
img {{ display: block; width: 100%; height: 9rem; object-fit: cover; border-radius: 4px; margin-bottom: .4rem }}
small {{ display: block; opacity: .65; overflow-wrap: anywhere }}
</style>
</head>
<body>
<h1>Why each word: {count}</h1>
<ul>
{items}
</ul>
</body>
</html>
"""


def explanations_index(pages: Iterable[tuple[str, Explanation]]) -> str:
    """The page; each explanation comes with the way to its report, and with an image that is small already."""
    items = [_item(path, each) for path, each in pages]
    count = f"{len(items)} image{'s' if len(items) > 1 else ''}"
    return PAGE.format(count=count, items="\n".join(items))


def thumbnail(explanation: Explanation) -> Image.Image | None:
    """A small copy of the image."""
    if explanation.image is None:
        return None
    small = explanation.image.copy()
    small.thumbnail((2 * THUMBNAIL, THUMBNAIL))
    return small


def _item(path: str, explanation: Explanation) -> str:
    link = quote(os.fsencode(path))  # a name may hold what is no text
    shown = f'<img alt="" src="{_inline(explanation.image)}">' if explanation.image else ""
    caption, name = escape(explanation.caption), escape(explanation.source)
    return f'<li><a href="{link}">{shown}{caption}</a><small>{name}</small></li>'


def _inline(image: Image.Image) -> str:
    held = io.BytesIO()
    image.save(held, format="JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(held.getvalue()).decode()}"
