"""The attention figure of a caption."""

import numpy as np
import pytest
from PIL import Image

from saywhy.decoding import Caption
from saywhy.viz.attention_figure import attention_figure, attention_maps

SIZE, WHOLE_IMAGE = (80, 60), (0, 0, 80, 60)


def caption(alpha: np.ndarray, size: tuple[int, int] = SIZE, text: str = "a dog") -> Caption:
    """A caption over a grid of 2 × 2 features, whose crop is the whole image."""
    words = tuple(text.split())
    image = Image.new("RGB", size, "white")
    return Caption(words, (-0.1,) * len(words), -0.5, alpha, None, (2, 2), image=image, crop=(0, 0, *size))


def test_a_map_is_bright_where_attention_is_high():
    alpha = np.array([[1, 0, 0, 0], [0, 0, 0, 1]], np.float32)  # top left, then bottom right
    first, second = attention_maps(caption(alpha), SIZE, WHOLE_IMAGE)
    assert first.shape == (60, 80)
    assert first[5, 5] > 0.6 > 0.1 > first[55, 75]
    assert second[55, 75] > 0.6 > 0.1 > second[5, 5]


def test_a_map_is_dark_outside_the_crop():
    alpha = np.full((1, 4), 0.25, np.float32)
    (attention,) = attention_maps(caption(alpha, text="dog"), (300, 60), (120, 0, 180, 60))
    assert attention[30, 150] > 0.7
    assert attention[30, 5] == 0
    assert attention[30, 295] == 0


def test_heads_are_averaged():
    alpha = np.zeros((1, 3, 4), np.float32)
    alpha[:, :, 0] = 1
    (attention,) = attention_maps(caption(alpha, text="dog"), SIZE, WHOLE_IMAGE)
    assert attention[5, 5] > 0.6 > attention[55, 75]


@pytest.mark.parametrize("size", [(640, 427), (200, 900), (900, 90), (8, 8)])
def test_every_word_has_a_panel_whatever_the_shape_of_the_image(size):
    alpha = np.full((7, 4), 0.25, np.float32)
    short = attention_figure(caption(alpha[:2], size))
    long = attention_figure(caption(alpha, size, "a dog runs over the green grass"))
    assert long.height > short.height
    assert np.asarray(long).std() > 0


def test_a_caption_without_its_image_cannot_be_drawn():
    without_image = Caption(("dog",), (-0.1,), -0.1, np.full((1, 4), 0.25), None, (2, 2))
    with pytest.raises(ValueError, match="carries no image"):
        without_image.show()


def test_regions_are_drawn_as_boxes_with_the_sum_of_their_attention():
    boxes = np.array([[0, 0, 1, 1], [0, 0, 0.5, 1], [0.25, 0.5, 0.75, 1]], np.float32)
    alpha = np.array([[0.2, 0.6, 0.2], [0.0, 0.0, 1.0]], np.float32)
    image, crop = Image.new("RGB", (120, 40), "white"), (20, 0, 100, 40)
    over_regions = Caption(("a", "dog"), (-0.1, -0.1), -0.5, alpha, None, None, boxes, image=image, crop=crop)
    first, second = attention_maps(over_regions, image.size, crop)
    assert first.shape == (40, 120)
    pixels = {"outside the crop": (10, 5), "first box": (10, 90), "two left boxes": (10, 25)}
    pixels |= {"all boxes": (30, 45), "first and last box": (30, 75)}
    expected = {
        "outside the crop": 0,
        "first box": 0.2,
        "two left boxes": 0.8,
        "all boxes": 1,
        "first and last box": 0.4,
    }
    assert {name: round(float(first[pixel]), 3) for name, pixel in pixels.items()} == expected
    assert second[30, 60] == 1
    assert second[10, 60] == 0
    assert attention_figure(over_regions).width > 400
