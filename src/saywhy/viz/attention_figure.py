"""The classic figure of Show, attend and tell: the image, and one panel a word with what the model looked at.

A panel shows the image in the dark, lit where the attention was. The map is enlarged smoothly and laid over
the part of the image that the encoder saw; what a crop cut away stays dark. A model that looks at regions lights
the boxes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageFilter

from saywhy.viz.colormap import shown
from saywhy.viz.panels import fitted, label, sheet

if TYPE_CHECKING:
    from saywhy.decoding.caption import Caption


def attention_figure(caption: Caption) -> Image.Image:
    """Draw a caption that carries its image."""
    image = caption.image
    if image is None or caption.region is None:
        raise ValueError("a figure needs the image: caption it with `Model.caption`")
    panels = [image, *(lit(image, light) for light in attention_maps(caption))]
    labels = [label("image", "")]
    probabilities = np.exp(caption.logprobs)
    labels += [label(word, f"{p:.0%}") for word, p in zip(caption.words, probabilities, strict=True)]
    size = fitted(image.size)
    return sheet(caption.text, [panel.resize(size, Image.Resampling.LANCZOS) for panel in panels], labels)


def attention_maps(caption: Caption) -> list[np.ndarray]:
    """α of each word over the whole image, (height, width) from 0 to 1; heads are averaged."""
    image, region = caption.image, caption.region
    assert image is not None
    assert region is not None
    if caption.boxes is not None:
        alpha = caption.alpha.reshape(len(caption.words), -1, len(caption.boxes)).mean(axis=1)  # (T, R)
        return [_painted(places, caption.boxes, image.size, region) for places in alpha]
    assert caption.grid is not None
    alpha = caption.alpha.reshape(len(caption.words), -1, *caption.grid).mean(axis=1)  # (T, rows, columns)
    return [_laid_over(places, image.size, region) for places in alpha]


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


def lit(image: Image.Image, light: np.ndarray) -> Image.Image:
    """The image in the dark, lit by a map (height, width) from 0 to 1."""
    return shown(image, light, signed=False)
