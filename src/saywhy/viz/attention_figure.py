"""The attention figure of Show, attend and tell: the image, then one panel per word with the attention for that word.

A panel shows the image in the dark, bright where attention is high. The attention map is enlarged smoothly and placed
on the crop that the encoder gets; the rest of the image stays dark. Features that are regions are drawn as boxes.
"""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from saywhy.viz.drawing import overlay_map, panel_grid, panel_label, panel_size, paragraph
from saywhy.viz.protocols import CaptionLike, Crop

HELP = "Bright: where the model attended for the word. Percent: the probability of the word."


def attention_figure(caption: CaptionLike) -> Image.Image:
    """Draw the attention of a caption that carries its image."""
    image, crop = caption.image, caption.crop
    if image is None or crop is None:
        raise ValueError("this caption carries no image to draw on: make it with `Model.caption`")
    maps = attention_maps(caption, image.size, crop)
    panels = [image, *(overlay_map(image, attention, signed=False) for attention in maps)]
    labels = [panel_label("image", "")]
    probabilities = np.exp(caption.logprobs)
    labels += [panel_label(word, f"{p:.0%}") for word, p in zip(caption.words, probabilities, strict=True)]
    size = panel_size(image.size)
    resized = [panel.resize(size, Image.Resampling.LANCZOS) for panel in panels]
    return panel_grid(caption.text, resized, labels, lambda width: paragraph(HELP, width, 14))


def attention_maps(caption: CaptionLike, size: tuple[int, int], crop: Crop) -> list[np.ndarray]:
    """α of each word over an image of (width, height): (height, width), 0 to 1, the mean over heads."""
    if caption.boxes is not None:
        alpha = caption.alpha.reshape(len(caption.words), -1, len(caption.boxes)).mean(axis=1)  # (T, R)
        return [_boxes_map(weights, caption.boxes, size, crop) for weights in alpha]
    assert caption.grid is not None
    alpha = caption.alpha.reshape(len(caption.words), -1, *caption.grid).mean(axis=1)  # (T, rows, columns)
    return [_grid_map(weights, size, crop) for weights in alpha]


def _grid_map(weights: np.ndarray, size: tuple[int, int], crop: Crop) -> np.ndarray:
    """Weights (rows, columns), enlarged and blurred over the crop."""
    left, top, right, bottom = (round(side) for side in crop)
    small = Image.fromarray((weights / max(weights.max(), 1e-12)).astype(np.float32))
    large = small.resize((max(1, right - left), max(1, bottom - top)), Image.Resampling.BICUBIC)
    canvas = np.zeros((size[1], size[0]), np.float32)
    canvas[top:bottom, left:right] = np.asarray(large).clip(0, 1)
    radius = max(right - left, bottom - top) / max(weights.shape) / 3
    blurred = Image.fromarray((canvas * 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(radius))
    values = np.asarray(blurred, np.float32)
    return values / max(float(values.max()), 1.0)


def _boxes_map(weights: np.ndarray, boxes: np.ndarray, size: tuple[int, int], crop: Crop) -> np.ndarray:
    """For each pixel the sum of the weights (R,) of the boxes (R, 4) that cover it, divided by the largest sum."""
    left, top, right, bottom = crop
    canvas = np.zeros((size[1], size[0]), np.float32)
    corner, sides = np.array([left, top] * 2), np.array([right - left, bottom - top] * 2)
    for weight, (x, y, far_x, far_y) in zip(weights, np.rint(corner + boxes * sides).astype(int), strict=True):
        canvas[max(y, 0) : max(far_y, y + 1), max(x, 0) : max(far_x, x + 1)] += weight
    return canvas / max(float(canvas.max()), 1e-12)
