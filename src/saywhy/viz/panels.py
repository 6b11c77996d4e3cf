"""A sheet of panels: a title, rows of images with a label under each, and a foot."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

from PIL import Image, ImageDraw, ImageFont

PANEL, GAP, MARGIN, LABEL, TITLE = 236, 14, 26, 44, 27
COLUMNS = (5, 6, 4)
"""How many panels a row may have, the best first."""
INK, GREY, PAPER = (28, 30, 34), (112, 116, 124), (255, 255, 255)
Colour = tuple[int, int, int]


def sheet(
    title: str,
    panels: Sequence[Image.Image],
    labels: Sequence[Image.Image],
    foot: Callable[[int], Image.Image] | None = None,
) -> Image.Image:
    """Panels in rows, each over its label; `foot` draws what stands below them, as wide as it is told."""
    height = max(panel.height for panel in panels)
    row = height + max(label.height for label in labels)
    columns = columns_for(len(panels))
    inside = columns * (PANEL + GAP) - GAP
    head, below = heading(title, inside), foot(inside) if foot else None
    top = MARGIN + head.height
    end = top + math.ceil(len(panels) / columns) * row
    whole = Image.new("RGB", (2 * MARGIN + inside, end + MARGIN - 8 + (below.height if below else 0)), PAPER)
    whole.paste(head, (MARGIN, MARGIN - 4))
    for number, (panel, label) in enumerate(zip(panels, labels, strict=True)):
        x, y = MARGIN + number % columns * (PANEL + GAP), top + number // columns * row
        whole.paste(panel, (x + (PANEL - panel.width) // 2, y + (height - panel.height) // 2))
        whole.paste(label, (x, y + height))
    if below:
        whole.paste(below, (MARGIN, end))
    return whole


def columns_for(panels: int) -> int:
    """How many panels a row has: one row if that is enough, else as few empty places as can be.

    >>> [columns_for(panels) for panels in (2, 5, 7, 9, 12)]
    [2, 5, 4, 5, 6]
    """
    return panels if panels <= COLUMNS[0] else min(COLUMNS, key=lambda columns: -panels % columns)


def fitted(size: tuple[int, int]) -> tuple[int, int]:
    """How large an image of this size is in a panel: as wide as it, no taller than three halves of that.

    >>> fitted((472, 236)), fitted((100, 1000))
    ((236, 118), (35, 354))
    """
    scale = min(PANEL / size[0], 1.5 * PANEL / size[1])
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def heading(title: str, width: int) -> Image.Image:
    """The title in as many lines as it needs."""
    return paragraph(title, width, TITLE, INK, below=16)


def label(word: str, note: str, height: int = LABEL) -> Image.Image:
    """What stands under a panel: a word at the left, a note at the right; a word without a note is no word said."""
    drawn = Image.new("RGB", (PANEL, height), PAPER)
    draw = ImageDraw.Draw(drawn)
    room = PANEL - 10 - text_width(note, 16)
    draw.text((2, 6), shortened(plain(word), room, 20), INK if note else GREY, font(20))
    draw.text((PANEL - 2 - text_width(note, 16), 9), note, GREY, font(16))
    return drawn


def paragraph(text: str, width: int, size: int, colour: Colour = GREY, below: int = 0) -> Image.Image:
    """Text in lines of at most this width, with room below it."""
    lines, leading = wrapped(plain(text), width, size), round(size * 1.35)
    drawn = Image.new("RGB", (width, leading * len(lines) + below), PAPER)
    draw = ImageDraw.Draw(drawn)
    for number, line in enumerate(lines):
        draw.text((0, number * leading), line, colour, font(size))
    return drawn


def wrapped(text: str, width: float, size: int) -> list[str]:
    """The text in lines that are no wider than this; a word that is too wide alone is cut."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(shortened(word, width, size))
    return lines or [""]


def shortened(text: str, width: float, size: int) -> str:
    """The text, cut with an ellipsis where it would not fit."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def plain(text: str) -> str:
    """The text without accents and signs that the font has no drawing of.

    >>> plain("gradient × input, a café, −3")
    'gradient x input, a cafe, -3'
    """
    parts = unicodedata.normalize("NFKD", text.replace("×", "x").replace("−", "-"))
    return "".join(letter for letter in parts if not unicodedata.combining(letter))


def text_width(text: str, size: int) -> float:
    """How many pixels wide a text is."""
    return font(size).getlength(text)


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """The font that Pillow carries: a figure looks the same on every machine."""
    found = ImageFont.load_default(size)
    assert isinstance(found, ImageFont.FreeTypeFont)
    return found


def flowed(items: Sequence[Image.Image], width: int, gap: int = 18) -> Image.Image:
    """Small drawings from left to right, in as many rows as they need."""
    at, x, y = [], 0, 0
    for item in items:
        if x and x + item.width > width:
            x, y = 0, y + item.height + 4
        at.append((x, y))
        x += item.width + gap
    whole = Image.new("RGB", (width, max(y + item.height for (_, y), item in zip(at, items, strict=True)) + 6), PAPER)
    for place, item in zip(at, items, strict=True):
        whole.paste(item, place)
    return whole
