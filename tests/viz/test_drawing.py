"""Colours of maps, and text in figures."""

import numpy as np
import pytest
from PIL import Image

from saywhy.viz.drawing import map_layer, normalise_map, overlay_map, wrap


def test_extreme_pixels_do_not_hide_the_rest_of_a_map():
    values = np.full((100, 100), 0.01)
    values[0, 0] = 5.0
    assert normalise_map(values, signed=True)[50, 50] == 1
    assert normalise_map(1000 * values, signed=True)[50, 50] == 1


def test_a_map_with_a_single_nonzero_pixel_keeps_it():
    values = np.zeros((100, 100))
    values[3, 3] = -0.02
    assert normalise_map(values, signed=True)[3, 3] == -1


def test_small_values_are_raised_by_a_power_of_0_7():
    values = np.array([[-1.0, 1.0, 0.25]])
    assert normalise_map(values, signed=True)[0, 2] == pytest.approx(0.25**0.7, rel=1e-2)


def test_a_signed_layer_is_blue_then_transparent_then_red():
    layer = map_layer(np.array([[-1.0, 0.0, 1.0]]), signed=True, levels=62)
    negative, zero, positive = np.asarray(layer.convert("RGBA"))[0].tolist()
    assert zero[3] == 0
    assert negative[3] == positive[3] == 255
    assert negative[2] > negative[0]
    assert positive[0] > positive[2]


def test_an_unsigned_map_keeps_the_image_where_it_is_1_and_darkens_it_where_it_is_0():
    image = Image.new("RGB", (2, 1), (200, 100, 50))
    bright, dark = np.asarray(overlay_map(image, np.array([[1.0, 0.0]]), signed=False))[0]
    assert bright.tolist() == [200, 100, 50]
    assert dark.max() < 40


def test_long_text_is_wrapped_without_losing_a_word():
    text = "a man in a red shirt is riding a bike on a dirt road with a dog and a woman"
    lines = wrap(text, 300, 27)
    assert len(lines) > 2
    assert " ".join(lines) == text
