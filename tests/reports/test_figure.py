"""The figure of what a model looked at."""

import numpy as np
import pytest
from PIL import Image

from saywhy.decoding import Caption
from saywhy.reports.figure import attention_figure, attention_maps, lit


def caption(alpha: np.ndarray, size: tuple[int, int], region: tuple[float, ...], words: str = "a dog") -> Caption:
    said = tuple(words.split())
    return Caption(
        said, (-0.1,) * len(said), -0.5, alpha, None, (2, 2), picture=Image.new("RGB", size, "white"), region=region
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
    picture = Image.new("RGB", (2, 1), (200, 100, 50))
    shown = np.asarray(lit(picture, np.array([[1.0, 0.0]])))
    assert shown[0, 0].tolist() == [200, 100, 50]
    assert shown[0, 1].max() < 40


@pytest.mark.parametrize("size", [(640, 427), (200, 900), (900, 90), (8, 8)])
def test_every_word_has_a_panel_whatever_the_pictures_shape(size):
    alpha = np.full((7, 4), 0.25, np.float32)
    few = attention_figure(caption(alpha[:2], size, (0, 0, *size)))
    many = attention_figure(caption(alpha, size, (0, 0, *size), "a dog runs over the green grass"))
    assert many.height > few.height
    assert np.asarray(many).std() > 0


def test_a_caption_without_its_picture_cannot_be_drawn():
    bare = Caption(("dog",), (-0.1,), -0.1, np.full((1, 4), 0.25), None, (2, 2))
    with pytest.raises(ValueError, match="picture"):
        bare.show()
