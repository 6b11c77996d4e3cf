"""Maps in colour over an image, and grids of labelled panels: what figures are drawn with.

A map is scaled by a robust maximum (a quantile), so that a few extreme pixels do not hide the rest: its own, or the
largest of several maps, which can then be compared, and of which a nearly empty one looks empty. A signed map is red
where it supports the word and blue where it is evidence against it, over the image in pale grey; small values are
raised by a power of 0.7, as in the LRP paper's figures. A map that is never negative brightens the image, which is dark
elsewhere.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

QUANTILE, GAMMA = 0.995, 0.7
DARKNESS = 0.16  # the brightness that remains where an unsigned map is 0
PALE = 0.58  # the weight of the grey image under a signed map; the rest is white
RED, BLUE = ((238, 66, 52), (158, 4, 22)), ((58, 112, 240), (10, 26, 150))
"""Colours of a signed map, from weak to strong."""
PANEL, GAP, MARGIN, LABEL, TITLE = 236, 14, 26, 44, 27  # pixels; TITLE is a font size
COLUMNS = (5, 6, 4)
"""Panels per row, the preferred number first."""
INK, GREY, PAPER = (28, 30, 34), (112, 116, 124), (255, 255, 255)
Colour = tuple[int, int, int]


def map_maximum(values: np.ndarray) -> float:
    """The robust maximum of a map's magnitudes; 0 for a map that is 0 everywhere."""
    magnitudes = np.abs(values)
    return float(np.quantile(magnitudes, QUANTILE)) or float(magnitudes.max())


def normalise_map(values: np.ndarray, signed: bool, maximum: float | None = None) -> np.ndarray:
    """A map (height, width), scaled to −1 … 1, or to 0 … 1 if it is never negative, by a maximum or its own.

    >>> normalise_map(np.array([[-4.0, 0.0, 4.0]]), signed=True).tolist()
    [[-1.0, 0.0, 1.0]]
    >>> normalise_map(np.array([[0.0, 4.0]]), signed=False, maximum=8.0).tolist()
    [[0.0, 0.5]]
    """
    maximum = maximum or map_maximum(values) or 1.0
    scaled = np.clip(values / maximum, -1 if signed else 0, 1)
    return np.sign(scaled) * np.abs(scaled) ** GAMMA if signed else scaled


def blur_map(values: np.ndarray, sigma: float) -> np.ndarray:
    """A map (height, width), blurred by a Gaussian, so that single pixels are visible."""
    vertical, horizontal = (_gaussian(side, sigma) for side in values.shape)
    return vertical @ values @ horizontal.T


def _gaussian(side: int, sigma: float) -> np.ndarray:
    """The matrix that blurs along one side, (side, side)."""
    positions = np.arange(side, dtype=np.float32)
    weights = np.exp(-0.5 * ((positions[:, None] - positions) / sigma) ** 2)
    return weights / weights.sum(axis=1, keepdims=True)


def map_layer(normalised: np.ndarray, signed: bool, levels: int = 255) -> Image.Image:
    """A normalised map as a palette image with transparency, to lay over the photograph."""
    half = levels // 2
    indices = np.rint(half + normalised * half if signed else normalised * levels)
    layer = Image.fromarray(indices.astype(np.uint8))
    layer.putpalette(palette(signed, levels).tobytes(), "RGBA")
    return layer


def palette(signed: bool, levels: int) -> np.ndarray:
    """The colours of a map layer, (levels + 1, 4): red, green, blue and opacity."""
    if not signed:
        dark = (1 - DARKNESS) * (1 - np.linspace(0, 1, levels + 1))[:, None]
        return np.rint(np.hstack([np.zeros((levels + 1, 3)), 255 * dark])).astype(np.uint8)
    s = (np.arange(levels + 1) / (levels // 2) - 1).clip(-1, 1)[:, None]
    ends = np.where(s[..., None] > 0, np.array(RED), np.array(BLUE)).astype(float)  # (levels + 1, 2, 3)
    colours = ends[:, 0] + np.abs(s) * (ends[:, 1] - ends[:, 0])
    return np.rint(np.hstack([colours, 255 * np.abs(s)])).astype(np.uint8)


def overlay_map(image: Image.Image, normalised: np.ndarray, signed: bool) -> Image.Image:
    """The image under a normalised map (height, width) of the same size."""
    base, layer = pale_grey(image) if signed else image, map_layer(normalised, signed)
    return Image.alpha_composite(base.convert("RGBA"), layer.convert("RGBA")).convert("RGB")


def pale_grey(image: Image.Image) -> Image.Image:
    """The image in pale grey."""
    return Image.blend(Image.new("RGB", image.size, "white"), image.convert("L").convert("RGB"), PALE)


def panel_grid(
    title: str,
    panels: Sequence[Image.Image],
    labels: Sequence[Image.Image],
    footer: Callable[[int], Image.Image] | None = None,
) -> Image.Image:
    """Panels in rows, each above its label, under a title; `footer` draws what is below them, given the width."""
    height = max(panel.height for panel in panels)
    row_height = height + max(label.height for label in labels)
    columns = columns_for(len(panels))
    width = columns * (PANEL + GAP) - GAP
    header, foot = paragraph(title, width, TITLE, INK, below=16), footer(width) if footer else None
    top = MARGIN + header.height
    bottom = top + math.ceil(len(panels) / columns) * row_height
    sheet = Image.new("RGB", (2 * MARGIN + width, bottom + MARGIN - 8 + (foot.height if foot else 0)), PAPER)
    sheet.paste(header, (MARGIN, MARGIN - 4))
    for number, (panel, label) in enumerate(zip(panels, labels, strict=True)):
        x, y = MARGIN + number % columns * (PANEL + GAP), top + number // columns * row_height
        sheet.paste(panel, (x + (PANEL - panel.width) // 2, y + (height - panel.height) // 2))
        sheet.paste(label, (x, y + height))
    if foot:
        sheet.paste(foot, (MARGIN, bottom))
    return sheet


def columns_for(panels: int) -> int:
    """The number of columns: all panels in one row if they fit, else the number that leaves the fewest gaps.

    >>> [columns_for(panels) for panels in (2, 5, 7, 9, 12)]
    [2, 5, 4, 5, 6]
    """
    return panels if panels <= COLUMNS[0] else min(COLUMNS, key=lambda columns: -panels % columns)


def panel_size(size: tuple[int, int]) -> tuple[int, int]:
    """The size of an image in a panel: as wide as the panel, at most one and a half times as high as that.

    >>> panel_size((472, 236)), panel_size((100, 1000))
    ((236, 118), (35, 354))
    """
    scale = min(PANEL / size[0], 1.5 * PANEL / size[1])
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def panel_label(text: str, note: str, height: int = LABEL) -> Image.Image:
    """The label under a panel: a text at the left, in grey if it has no note, and a note at the right."""
    label = Image.new("RGB", (PANEL, height), PAPER)
    draw = ImageDraw.Draw(label)
    room = PANEL - 10 - text_width(note, 16)
    draw.text((2, 6), shorten(without_accents(text), room, 20), INK if note else GREY, font(20))
    draw.text((PANEL - 2 - text_width(note, 16), 9), note, GREY, font(16))
    return label


def paragraph(text: str, width: int, size: int, colour: Colour = GREY, below: int = 0) -> Image.Image:
    """Text in lines of at most this width, with `below` pixels under it."""
    lines, line_height = wrap(without_accents(text), width, size), round(size * 1.35)
    image = Image.new("RGB", (width, line_height * len(lines) + below), PAPER)
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        draw.text((0, number * line_height), line, colour, font(size))
    return image


def flow(items: Sequence[Image.Image], width: int, gap: int = 18) -> Image.Image:
    """Small images from left to right, in as many rows as they need."""
    corners, x, y = [], 0, 0
    for item in items:
        if x and x + item.width > width:
            x, y = 0, y + item.height + 4
        corners.append((x, y))
        x += item.width + gap
    height = max(y + item.height for (_, y), item in zip(corners, items, strict=True)) + 6
    image = Image.new("RGB", (width, height), PAPER)
    for corner, item in zip(corners, items, strict=True):
        image.paste(item, corner)
    return image


def wrap(text: str, width: float, size: int) -> list[str]:
    """The text in lines no wider than this; a word that is too wide for a line is cut."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(longer, size) <= width:
            lines[-1] = longer
        else:
            lines.append(shorten(word, width, size))
    return lines or [""]


def shorten(text: str, width: float, size: int) -> str:
    """The text, cut with an ellipsis if it does not fit."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


def without_accents(text: str) -> str:
    """The text without accents and signs that the font lacks.

    >>> without_accents("gradient × input, a café, −3")
    'gradient x input, a cafe, -3'
    """
    letters = unicodedata.normalize("NFKD", text.replace("×", "x").replace("−", "-"))
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def text_width(text: str, size: int) -> float:
    """The width of a text in pixels."""
    return font(size).getlength(text)


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own font, so that a figure looks the same on every machine."""
    loaded = ImageFont.load_default(size)
    assert isinstance(loaded, ImageFont.FreeTypeFont)
    return loaded
