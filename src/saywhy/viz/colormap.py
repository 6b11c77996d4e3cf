"""The colours of a map, the same in a figure and on a page.

A map is scaled by its own robust maximum, so that a few pixels do not hide the rest. A signed map is red where it
supports the word and blue where it speaks against it, over the image in pale grey; small values are lifted by a
power of 0.7, as in the LRP paper's figures. A map that is never negative is light on the image in the dark.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

QUANTILE, GAMMA = 0.995, 0.7
DARKNESS = 0.16  # how much of the light is left where a map is 0
PALE = 0.58  # how much of a grey image is left under a signed map; the rest is white
RED, BLUE = ((238, 66, 52), (158, 4, 22)), ((58, 112, 240), (10, 26, 150))
"""Colours of a signed map, from weak to strong."""


@dataclass(frozen=True)
class Look:
    """How a method's maps are shown.

    Attributes:
        name: what people call the method.
        signed: its values may speak against a word.
        about: one sentence of what the map is.
    """

    name: str
    signed: bool
    about: str


LOOKS = {
    "lrp": Look("LRP", True, "The logit, passed back layer by layer to the pixels that it came from."),
    "gradcam": Look("Grad-CAM", False, "Where more of what the encoder found would raise the logit."),
    "guided-gradcam": Look("Guided Grad-CAM", True, "Guided backprop, where Grad-CAM is high."),
    "guided-backprop": Look("Guided backprop", True, "The gradient of the logit through positive paths only."),
    "gradient-input": Look("Gradient × input", True, "What each pixel is worth to the logit, to first order."),
    "attention": Look("Attention", False, "Where the model looked. That it looked there is not why it said the word."),
}


def look(method: str) -> Look:
    """How a method's maps are shown."""
    return LOOKS.get(method) or Look(method, True, "")


def strength(values: np.ndarray, signed: bool) -> np.ndarray:
    """A map (height, width), scaled to −1 … 1, or to 0 … 1 if it is never negative.

    >>> strength(np.array([[-4.0, 0.0, 4.0]]), signed=True).tolist()
    [[-1.0, 0.0, 1.0]]
    """
    size = np.abs(values)
    most = float(np.quantile(size, QUANTILE)) or float(size.max()) or 1.0
    scaled = np.clip(values / most, -1 if signed else 0, 1)
    return np.sign(scaled) * np.abs(scaled) ** GAMMA if signed else scaled


def blurred(values: np.ndarray, sigma: float) -> np.ndarray:
    """A map (height, width), its single pixels spread by a Gaussian so far that an eye can see them."""
    down, across = (_gaussian(side, sigma) for side in values.shape)
    return down @ values @ across.T


def _gaussian(side: int, sigma: float) -> np.ndarray:
    """The linear map that blurs along one side, (side, side)."""
    at = np.arange(side, dtype=np.float32)
    weights = np.exp(-0.5 * ((at[:, None] - at) / sigma) ** 2)
    return weights / weights.sum(axis=1, keepdims=True)


def overlay(strengths: np.ndarray, signed: bool, levels: int = 255) -> Image.Image:
    """What is laid over the image: an image of few colours, each with its own transparency."""
    half = levels // 2
    numbers = np.rint(half + strengths * half if signed else strengths * levels)
    image = Image.fromarray(numbers.astype(np.uint8))
    image.putpalette(palette(signed, levels).tobytes(), "RGBA")
    return image


def palette(signed: bool, levels: int) -> np.ndarray:
    """The colours of an overlay, (levels + 1, 4): red, green, blue and opacity."""
    if not signed:
        dark = (1 - DARKNESS) * (1 - np.linspace(0, 1, levels + 1))[:, None]
        return np.rint(np.hstack([np.zeros((levels + 1, 3)), 255 * dark])).astype(np.uint8)
    s = (np.arange(levels + 1) / (levels // 2) - 1).clip(-1, 1)[:, None]
    ends = np.where(s[..., None] > 0, np.array(RED), np.array(BLUE)).astype(float)  # (levels + 1, 2, 3)
    colours = ends[:, 0] + np.abs(s) * (ends[:, 1] - ends[:, 0])
    return np.rint(np.hstack([colours, 255 * np.abs(s)])).astype(np.uint8)


def shown(image: Image.Image, strengths: np.ndarray, signed: bool) -> Image.Image:
    """The image under a map (height, width) of its own size."""
    base, over = pale(image) if signed else image, overlay(strengths, signed)
    return Image.alpha_composite(base.convert("RGBA"), over.convert("RGBA")).convert("RGB")


def pale(image: Image.Image) -> Image.Image:
    """The image in pale grey."""
    return Image.blend(Image.new("RGB", image.size, "white"), image.convert("L").convert("RGB"), PALE)
