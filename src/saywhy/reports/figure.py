"""The classic figure of Show, attend and tell: the picture, and one panel a word with what the model looked at.

A panel shows the picture in the dark, lit where the attention was. The map is enlarged smoothly and laid over
the part of the picture that the encoder saw; what a crop cut away stays dark. A model that looks at regions lights
the boxes.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from saywhy.decoding.caption import Caption

PANEL, GAP, MARGIN, LABEL, COLUMNS = 236, 14, 26, 44, 5
INK, GREY, PAPER = (28, 30, 34), (120, 124, 132), (255, 255, 255)
DARKNESS = 0.16  # how much of the light is left where the model did not look


def attention_figure(caption: Caption) -> Image.Image:
    """Draw a caption that carries its picture."""
    if caption.picture is None or caption.region is None:
        raise ValueError("a figure needs the picture: caption it with `Model.caption`")
    panels = [_fitted(caption.picture)]
    panels += [_fitted(lit(caption.picture, light)) for light in attention_maps(caption)]
    labels = [("picture", "")]
    probabilities = np.exp(caption.logprobs)
    labels += [(word, f"{p:.0%}") for word, p in zip(caption.words, probabilities, strict=True)]
    return _sheet(caption.text, panels, labels)


def attention_maps(caption: Caption) -> list[np.ndarray]:
    """α of each word over the whole picture, (height, width) from 0 to 1; heads are averaged."""
    picture, region = caption.picture, caption.region
    assert picture is not None
    assert region is not None
    if caption.boxes is not None:
        alpha = caption.alpha.reshape(len(caption.words), -1, len(caption.boxes)).mean(axis=1)  # (T, R)
        return [_painted(places, caption.boxes, picture.size, region) for places in alpha]
    assert caption.grid is not None
    alpha = caption.alpha.reshape(len(caption.words), -1, *caption.grid).mean(axis=1)  # (T, rows, columns)
    return [_laid_over(places, picture.size, region) for places in alpha]


def _laid_over(places: np.ndarray, size: tuple[int, int], region: tuple[float, float, float, float]) -> np.ndarray:
    left, top, right, bottom = (round(each) for each in region)
    small = Image.fromarray((places / max(places.max(), 1e-12)).astype(np.float32))
    large = small.resize((max(1, right - left), max(1, bottom - top)), Image.Resampling.BICUBIC)
    whole = np.zeros((size[1], size[0]), np.float32)
    whole[top:bottom, left:right] = np.asarray(large).clip(0, 1)
    blur = max(right - left, bottom - top) / max(places.shape) / 3
    light = Image.fromarray((whole * 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(blur))
    values = np.asarray(light, np.float32)
    return values / max(float(values.max()), 1.0)


def _painted(
    places: np.ndarray, boxes: np.ndarray, size: tuple[int, int], region: tuple[float, float, float, float]
) -> np.ndarray:
    """Light in boxes: of each pixel the sum of α over the boxes (R, 4) that cover it, by the largest such sum."""
    left, top, right, bottom = region
    whole = np.zeros((size[1], size[0]), np.float32)
    corner, sides = np.array([left, top] * 2), np.array([right - left, bottom - top] * 2)
    for share, (x, y, far_x, far_y) in zip(places, np.rint(corner + boxes * sides).astype(int), strict=True):
        whole[max(y, 0) : max(far_y, y + 1), max(x, 0) : max(far_x, x + 1)] += share
    return whole / max(float(whole.max()), 1e-12)


def lit(picture: Image.Image, light: np.ndarray) -> Image.Image:
    """The picture in the dark, lit by a map (height, width) from 0 to 1."""
    shade = DARKNESS + (1 - DARKNESS) * light[..., None]
    return Image.fromarray((np.asarray(picture.convert("RGB"), np.float32) * shade).astype(np.uint8))


def _fitted(picture: Image.Image) -> Image.Image:
    """A panel's picture: as wide as a panel, no taller than three halves of that."""
    scale = min(PANEL / picture.width, 1.5 * PANEL / picture.height)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    return picture.resize(size, Image.Resampling.LANCZOS)


def _sheet(title: str, panels: list[Image.Image], labels: list[tuple[str, str]]) -> Image.Image:
    height = max(panel.height for panel in panels)
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    head = MARGIN + 46
    width = 2 * MARGIN + columns * PANEL + (columns - 1) * GAP
    sheet = Image.new("RGB", (width, head + rows * (height + LABEL) + MARGIN - 8), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN - 4), _shortened(draw, title, width - 2 * MARGIN, 27), INK, ImageFont.load_default(27))
    for number, (panel, (word, share)) in enumerate(zip(panels, labels, strict=True)):
        x = MARGIN + number % columns * (PANEL + GAP) + (PANEL - panel.width) // 2
        y = head + number // columns * (height + LABEL)
        sheet.paste(panel, (x, y + (height - panel.height) // 2))
        _label(draw, MARGIN + number % columns * (PANEL + GAP), y + height + 6, word, share)
    return sheet


def _label(draw: ImageDraw.ImageDraw, x: int, y: int, word: str, share: str) -> None:
    colour = INK if share else GREY
    draw.text((x + 2, y), _shortened(draw, word, PANEL - 60, 20), colour, ImageFont.load_default(20))
    small = ImageFont.load_default(16)
    draw.text((x + PANEL - 2 - draw.textlength(share, small), y + 3), share, GREY, small)


def _shortened(draw: ImageDraw.ImageDraw, text: str, width: int, size: int) -> str:
    """The text, cut with an ellipsis where it would not fit."""
    font = ImageFont.load_default(size)
    if draw.textlength(text, font) <= width:
        return text
    while text and draw.textlength(text + "…", font) > width:
        text = text[:-1]
    return text.rstrip() + "…"
