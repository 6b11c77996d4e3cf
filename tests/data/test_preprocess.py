"""The square an encoder sees, measured on images whose every pixel says where it stands."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from saywhy.data.preprocess import Preprocessing
from saywhy.errors import UserError

SHAPES = [(120, 80), (80, 120), (90, 90), (250, 60)]


def map_of(width: int, height: int) -> Image.Image:
    """Red is the column, green the row, blue 7."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return Image.fromarray(np.stack([x, y, np.full_like(x, 7)], axis=-1).astype(np.uint8))


def seen(pixels: np.ndarray) -> tuple[float, float, float, float]:
    """The region that an array of a map covers, extrapolated by half a pixel from the centres inside it."""
    found = []
    for channel, axis in ((0, 1), (1, 0)):
        profile = pixels[channel].mean(axis=1 - axis)
        n = len(profile)
        inner = slice(n // 4, n - n // 4)  # at the rim the resampling has no neighbours to mean over
        slope, offset = np.polyfit(np.arange(n)[inner], profile[inner], 1)
        found.append((offset - slope / 2 + 0.5, offset + slope * (n - 0.5) + 0.5))
    (left, right), (top, bottom) = found
    return left, top, right, bottom


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_region_is_the_one_whose_pixels_are_seen(fit, shape):
    how = Preprocessing(64, fit, margin=1.25)
    pixels = how(map_of(*shape))
    assert pixels.shape == (3, 64, 64)
    assert pixels.dtype == np.uint8
    assert (pixels[2] == 7).all()
    assert seen(pixels) == pytest.approx(how.region(*shape), abs=0.6)


@pytest.mark.parametrize("shape", SHAPES)
def test_squash_sees_all_and_crop_a_square_in_the_middle(shape):
    width, height = shape
    assert Preprocessing(64, "squash").region(width, height) == (0, 0, width, height)
    left, top, right, bottom = Preprocessing(64, "crop", margin=1.25).region(width, height)
    assert right - left == pytest.approx(bottom - top)
    assert right - left == pytest.approx(min(shape) / 1.25)
    assert (left + right, top + bottom) == pytest.approx((width, height))


def test_without_a_margin_the_crop_reaches_two_sides():
    assert Preprocessing(64, "crop", margin=1.0).region(120, 80) == (20, 0, 100, 80)
    assert Preprocessing(64, "crop", margin=1.0).region(80, 120) == (0, 20, 80, 100)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("fit", "whole"), [("crop", Preprocessing(64, "crop", 1.0)), ("squash", None)])
def test_a_canvas_holds_the_margin_too(shape, fit, whole):
    how = Preprocessing(64, fit, margin=1.25)
    canvas = how.canvas(map_of(*shape), side=72)
    assert canvas.shape == (3, 72, 72)
    assert seen(canvas) == pytest.approx((whole or how).region(*shape), abs=0.6)


def test_a_image_of_the_right_size_passes_unchanged():
    noise = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    pixels = Preprocessing(48, "crop", margin=1.0)(Image.fromarray(noise))
    assert np.array_equal(pixels, noise.transpose(2, 0, 1))


def test_small_images_grow_and_large_ones_are_not_aliased():
    assert Preprocessing(64)(map_of(9, 12)).shape == (3, 64, 64)
    stripes = np.zeros((512, 512, 3), np.uint8)
    stripes[:, ::2] = 255
    pixels = Preprocessing(32, "squash")(Image.fromarray(stripes))
    assert abs(pixels.astype(float) - 127.5).max() < 4


@pytest.mark.parametrize("wrong", [{"fit": "crob"}, {"size": 16}, {"margin": 0.9}])
def test_what_makes_no_sense_is_a_users_error(wrong):
    with pytest.raises(UserError):
        Preprocessing(**wrong)


def test_a_image_keeps_as_many_pixels_as_its_crop_needs():
    assert Preprocessing(224, "crop").at_least == 256
    assert Preprocessing(224, "squash").at_least == 224
