"""The geometry of the encoder's input, measured on images whose pixels are their own coordinates."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from saywhy.data.preprocess import Preprocessing, boxes_on_image, map_on_image, upsample_grid
from saywhy.errors import UserError

SHAPES = [(120, 80), (80, 120), (90, 90), (250, 60)]


def coordinate_image(width: int, height: int) -> Image.Image:
    """An image whose red is the column, green the row, and blue 7."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return Image.fromarray(np.stack([x, y, np.full_like(x, 7)], axis=-1).astype(np.uint8))


def visible_crop(pixels: np.ndarray) -> tuple[float, float, float, float]:
    """The crop that such pixels show, extrapolated by half a pixel from the pixel centres inside it."""
    ranges = []
    for channel, axis in ((0, 1), (1, 0)):
        profile = pixels[channel].mean(axis=1 - axis)
        n = len(profile)
        inner = slice(n // 4, n - n // 4)  # resampling averages over fewer neighbours at the border
        slope, offset = np.polyfit(np.arange(n)[inner], profile[inner], 1)
        ranges.append((offset - slope / 2 + 0.5, offset + slope * (n - 0.5) + 0.5))
    (left, right), (top, bottom) = ranges
    return left, top, right, bottom


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_crop_is_the_part_whose_pixels_are_in_the_input(fit, shape):
    preprocessing = Preprocessing(64, fit, margin=1.25)
    pixels = preprocessing(coordinate_image(*shape))
    assert pixels.shape == (3, 64, 64)
    assert pixels.dtype == np.uint8
    assert (pixels[2] == 7).all()
    assert visible_crop(pixels) == pytest.approx(preprocessing.crop(*shape), abs=0.6)


@pytest.mark.parametrize("shape", SHAPES)
def test_squash_keeps_the_complete_image_and_crop_a_centred_square(shape):
    width, height = shape
    assert Preprocessing(64, "squash").crop(width, height) == (0, 0, width, height)
    left, top, right, bottom = Preprocessing(64, "crop", margin=1.25).crop(width, height)
    assert right - left == pytest.approx(bottom - top)
    assert right - left == pytest.approx(min(shape) / 1.25)
    assert (left + right, top + bottom) == pytest.approx((width, height))


def test_without_a_margin_the_crop_reaches_two_sides():
    assert Preprocessing(64, "crop", margin=1.0).crop(120, 80) == (20, 0, 100, 80)
    assert Preprocessing(64, "crop", margin=1.0).crop(80, 120) == (0, 20, 80, 100)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_a_canvas_includes_the_margin(shape, fit):
    canvas = Preprocessing(64, fit, margin=1.25).canvas(coordinate_image(*shape), side=72)
    assert canvas.shape == (3, 72, 72)
    assert visible_crop(canvas) == pytest.approx(Preprocessing(64, fit, margin=1.0).crop(*shape), abs=0.6)


def test_an_image_of_the_input_size_is_unchanged():
    noise = np.random.default_rng(0).integers(0, 256, (48, 48, 3), dtype=np.uint8)
    pixels = Preprocessing(48, "crop", margin=1.0)(Image.fromarray(noise))
    assert np.array_equal(pixels, noise.transpose(2, 0, 1))


def test_small_images_are_enlarged_and_large_ones_are_not_aliased():
    assert Preprocessing(64)(coordinate_image(9, 12)).shape == (3, 64, 64)
    stripes = np.zeros((512, 512, 3), np.uint8)
    stripes[:, ::2] = 255
    pixels = Preprocessing(32, "squash")(Image.fromarray(stripes))
    assert abs(pixels.astype(float) - 127.5).max() < 4


@pytest.mark.parametrize("wrong", [{"fit": "crob"}, {"size": 16}, {"margin": 0.9}])
def test_invalid_settings_are_a_user_error(wrong):
    with pytest.raises(UserError):
        Preprocessing(**wrong)


def test_min_side_is_what_the_crop_needs():
    assert Preprocessing(224, "crop").min_side == 256
    assert Preprocessing(224, "squash").min_side == 224


def test_a_grid_is_upsampled_bilinearly():
    cells = np.array([[0.0, 1.0], [2.0, 3.0]])
    expected = Image.fromarray(cells.astype(np.float32)).resize((8, 8), Image.Resampling.BILINEAR)
    np.testing.assert_allclose(upsample_grid(cells, 8), expected, atol=1e-6)
    assert upsample_grid(np.ones((5, 4, 3)), 32).shape == (5, 32, 32)


def test_a_smoothed_constant_grid_stays_constant():
    np.testing.assert_allclose(upsample_grid(np.full((7, 7), 0.25), 64, smooth=True), 0.25, rtol=1e-6)


def test_a_map_is_placed_inside_the_crop():
    on_image = map_on_image(np.ones((64, 64)), (120, 80), (20.0, 0.0, 100.0, 80.0))
    assert on_image.shape == (80, 120)
    assert (on_image[:, 20:100] == 1).all()
    assert on_image.sum() == 80 * 80


def test_the_values_of_boxes_are_spread_evenly_over_them():
    boxes = np.array([[0, 0, 0.5, 1], [0.5, 0.5, 0.5, 0.5]])
    on_image = boxes_on_image(np.array([3.0, 1.0]), boxes, (20, 10), (10.0, 0.0, 20.0, 10.0))
    assert on_image.sum() == pytest.approx(4)
    np.testing.assert_allclose(on_image[:, 10:15], 3 / 50)
    assert on_image[5, 15] == 1, "a box without an area covers one pixel"
