"""Explanations by the shipped model depend on the word and follow objects that move.

Randomised weights, rank correlations between words and shifted inputs are measured by the sanity audit.
"""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import saywhy
from saywhy.explain import METHODS, Explanation

pytestmark = pytest.mark.usefixtures("one_thread")

PHOTOGRAPH = Path(__file__).parents[2] / "examples" / "images" / "astronaut.jpg"
DOGS = {"1107246521_d16a476380.jpg": (12, 51, 259, 207), "1267711451_e2a754b4f8.jpg": (0, 7, 221, 250)}
FACE = (150, 20, 350, 280)
WIDTH, HEIGHT, GREY = 320, 240, (128, 128, 128)


@pytest.fixture(scope="module")
def model() -> saywhy.Model:
    return saywhy.load(device="cpu")


@pytest.fixture(scope="module")
def explained(model) -> Explanation:
    return model.explain(PHOTOGRAPH)


@pytest.mark.parametrize("method", METHODS)
def test_two_words_of_a_caption_have_different_maps(explained, method):
    peaks = [np.abs(values).max() for values in explained.maps[method]]  # Grad-CAM of a word may be zero everywhere
    maps = [values / peak for values, peak in zip(explained.maps[method], peaks, strict=True) if peak]
    assert len(maps) > 4
    for one, other in combinations(maps, 2):
        assert np.abs(one - other).max() > 0.01


def test_two_words_of_a_caption_have_different_weights_of_earlier_words(explained):
    last, before = explained.words[-1], explained.words[-2]
    for method in last.earlier_words:
        one, other = (np.array(word.earlier_words[method][: before.position]) for word in (last, before))
        assert np.abs(one - other).max() > 0.01 * np.abs(one).max(), method


@pytest.fixture(scope="module", params=DOGS)
def dog(request: pytest.FixtureRequest, flickr8k: Path) -> Image.Image:
    return Image.open(flickr8k / "Images" / request.param).convert("RGB").crop(DOGS[request.param])


def scaled(image: Image.Image, side: int) -> Image.Image:
    return image.resize([round(side * length / max(image.size)) for length in image.size])


def scene(*objects: tuple[Image.Image, float, float]) -> Image.Image:
    """Objects on grey, each with its centre at fractions of the width and height."""
    canvas = Image.new("RGB", (WIDTH, HEIGHT), GREY)
    for image, x, y in objects:
        canvas.paste(image, (round(x * WIDTH - image.width / 2), round(y * HEIGHT - image.height / 2)))
    return canvas


def centres(model: saywhy.Model, image: Image.Image) -> dict[str, np.ndarray]:
    """By method, the centre of the positive part of the map of "dog", as fractions of the width and height."""
    explanation = model.explain(image, caption="a dog", word="dog")
    points = {}
    for method in METHODS:
        positive = explanation.map(0, method).clip(min=0)
        y, x = (np.indices(positive.shape) * positive).sum(axis=(1, 2)) / positive.sum()
        points[method] = np.array([x / WIDTH, y / HEIGHT])
    return points


@pytest.mark.data
def test_relevance_of_a_dog_moves_with_the_dog(model, dog):
    dog = scaled(dog, 100)
    left, right, top, bottom = (
        centres(model, scene((dog, x, y))) for x, y in ((0.2, 0.5), (0.8, 0.5), (0.5, 0.22), (0.5, 0.78))
    )
    for method in METHODS:
        assert left[method][0] < 0.4, method
        assert right[method][0] > 0.6, method
        assert top[method][1] < 0.4, method
        assert bottom[method][1] > 0.6, method


@pytest.fixture(scope="module")
def beside_a_face(model, dog) -> list[dict[str, np.ndarray]]:
    """A dog on the left of a face, then on its right."""
    dog, face = scaled(dog, 130), scaled(Image.open(PHOTOGRAPH).convert("RGB").crop(FACE), 130)
    return [centres(model, scene((dog, x, 0.5), (face, 1 - x, 0.5))) for x in (0.24, 0.76)]


@pytest.mark.data
@pytest.mark.parametrize("method", ["lrp", "gradcam", "guided-gradcam"])
def test_relevance_of_a_dog_is_on_the_dog_beside_a_face(beside_a_face, method):
    left, right = (points[method][0] for points in beside_a_face)
    assert left < 0.45
    assert right > 0.55
    assert right - left > 0.2
