"""The figure of what a model looked at."""

import numpy as np
import pytest
from PIL import Image

from saywhy.decoding import Caption
from saywhy.viz.attention_figure import attention_figure, attention_maps, lit


def caption(alpha: np.ndarray, size: tuple[int, int], region: tuple[float, ...], words: str = "a dog") -> Caption:
    said = tuple(words.split())
    return Caption(
        said, (-0.1,) * len(said), -0.5, alpha, None, (2, 2), image=Image.new("RGB", size, "white"), region=region
    )


def test_light_falls_where_the_attention_was():
    alpha = np.array([[1, 0, 0, 0], [0, 0, 0, 1]], np.float32)  # top left, then bottom right
    first, second = attention_maps(caption(alpha, (80, 60), (0, 0, 80, 60)))
    assert first.shape == (60, 80)
    assert first[5, 5] > 0.6 > 0.1 > first[55, 75]
    assert second[55, 75] > 0.6 > 0.1 > second[5, 5]


def test_what_a_crop_cut_away_stays_darker_than_what_was_seen():
    alpha = np.full((1, 4), 0.25, np.float32)
    (light,) = attention_maps(caption(alpha, (300, 60), (120, 0, 180, 60), "dog"))
    assert light[30, 150] > 0.7
    assert light[30, 5] == 0
    assert light[30, 295] == 0


def test_heads_are_averaged():
    alpha = np.zeros((1, 3, 4), np.float32)
    alpha[:, :, 0] = 1
    (light,) = attention_maps(caption(alpha, (80, 60), (0, 0, 80, 60), "dog"))
    assert light[5, 5] > 0.6 > light[55, 75]


def test_a_lit_place_keeps_its_colour_and_a_dark_one_does_not():
    image = Image.new("RGB", (2, 1), (200, 100, 50))
    shown = np.asarray(lit(image, np.array([[1.0, 0.0]])))
    assert shown[0, 0].tolist() == [200, 100, 50]
    assert shown[0, 1].max() < 40


@pytest.mark.parametrize("size", [(640, 427), (200, 900), (900, 90), (8, 8)])
def test_every_word_has_a_panel_whatever_the_images_shape(size):
    alpha = np.full((7, 4), 0.25, np.float32)
    few = attention_figure(caption(alpha[:2], size, (0, 0, *size)))
    many = attention_figure(caption(alpha, size, (0, 0, *size), "a dog runs over the green grass"))
    assert many.height > few.height
    assert np.asarray(many).std() > 0


def test_a_caption_without_its_image_cannot_be_drawn():
    bare = Caption(("dog",), (-0.1,), -0.1, np.full((1, 4), 0.25), None, (2, 2))
    with pytest.raises(ValueError, match="image"):
        bare.show()


def test_regions_are_lit_as_boxes_by_the_sum_of_their_attention():
    boxes = np.array([[0, 0, 1, 1], [0, 0, 0.5, 1], [0.25, 0.5, 0.75, 1]], np.float32)
    alpha = np.array([[0.2, 0.6, 0.2], [0.0, 0.0, 1.0]], np.float32)
    said = Caption(
        ("a", "dog"), (-0.1, -0.1), -0.5, alpha, None, None, boxes,
        image=Image.new("RGB", (120, 40), "white"), region=(20, 0, 100, 40),
    )  # fmt: skip
    first, second = attention_maps(said)
    assert first.shape == (40, 120)
    places = {"cut away": (10, 5), "whole": (10, 90), "left": (10, 25), "both": (30, 45), "right": (30, 75)}
    light = {name: round(float(first[place]), 3) for name, place in places.items()}
    assert light == {"cut away": 0, "whole": 0.2, "left": 0.8, "both": 1, "right": 0.4}
    assert second[30, 60] == 1
    assert second[10, 60] == 0
    assert attention_figure(said).width > 400
