"""The shipped model's explanations answer to the image, to the word and to the weights."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import saywhy
from saywhy.explain import METHODS, Explanation

pytestmark = pytest.mark.usefixtures("one_thread")

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"
PHOTOGRAPH = EXAMPLES / "astronaut.png"
CELL = 8


@pytest.fixture(scope="module")
def model() -> saywhy.Model:
    return saywhy.load(device="cpu")


@pytest.fixture(scope="module")
def explained(model) -> Explanation:
    return model.explain(PHOTOGRAPH)


def rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's ρ of two maps."""
    ranks = [each.ravel().argsort(kind="stable").argsort(kind="stable") for each in (one, other)]
    return float(np.corrcoef(ranks)[0, 1])


def by_cell(maps: np.ndarray) -> np.ndarray:
    """Maps over pixels (K, S, S) summed over squares of 8 × 8, so that one pixel more or less decides nothing."""
    if maps.shape[-1] < 20 * CELL:
        return maps
    cells = maps.shape[-1] // CELL
    parts = maps[:, : cells * CELL, : cells * CELL].reshape(len(maps), cells, CELL, cells, CELL)
    return parts.sum(axis=(2, 4))


# How alike the maps of two words may be at most, by rank correlation over the pairs of a caption. Guided
# backpropagation hardly asks which word it is (Adebayo et al. 2018, https://arxiv.org/abs/1810.03292), and of LRP what
# z⁺ carries through many layers is much the same for all (Sixt et al. 2020, https://arxiv.org/abs/1912.09818).
ALIKE = {
    "lrp": 0.9,
    "gradcam": 0.5,
    "guided-gradcam": 0.9,
    "guided-backprop": 0.999,
    "gradient-input": 0.3,
    "attention": 0.97,
}


@pytest.mark.parametrize("method", METHODS)
def test_two_words_of_one_caption_are_explained_differently(explained, method):
    maps = by_cell(explained.maps[method])
    assert len(maps) > 4
    pairs = list(combinations(maps, 2))
    assert np.mean([rank_correlation(one, other) for one, other in pairs]) < ALIKE[method]
    for one, other in pairs:
        scaled = one / np.abs(one).max(), other / np.abs(other).max()
        assert np.abs(scaled[0] - scaled[1]).max() > 0.01


def test_two_words_of_one_caption_rest_on_other_earlier_words(explained):
    last, before = explained.words[-1], explained.words[-2]
    for method in last.earlier:
        one, other = (np.array(each.earlier[method][: before.position]) for each in (last, before))
        assert np.abs(one - other).max() > 0.01 * np.abs(one).max(), method


def shuffle(parts: Iterable[nn.Module], seed: int) -> None:
    """Put every number of these parts in another place of its tensor: the same numbers, and nothing learnt."""
    random = torch.Generator().manual_seed(seed)
    for part in parts:
        for values in [*part.parameters(), *part.buffers()]:
            mixed = values.data.flatten()[torch.randperm(values.numel(), generator=random)]
            values.data.copy_(mixed.view_as(values))


@pytest.fixture(scope="module")
def cascade(explained) -> list[dict[str, float]]:
    """Rank correlation, by method, of maps with those of the trained model as it is unlearnt from the top down."""
    model = saywhy.load(device="cpu")
    captioner, body = model.captioner, model.captioner.encoder.body
    late, early = body.blocks[len(body.blocks) // 2 :], body.blocks[: len(body.blocks) // 2]
    stages: list[list[nn.Module]] = [
        [part for name, part in captioner.named_children() if name != "encoder"],
        [body.conv_head, body.bn2, *late],
        [body.conv_stem, body.bn1, *early],
    ]
    found = []
    for seed, parts in enumerate(stages):
        shuffle(parts, seed)
        changed = model.explain(PHOTOGRAPH, caption=explained.caption)
        found.append({method: likeness(explained, changed, method) for method in METHODS})
    return found


def likeness(one: Explanation, other: Explanation, method: str) -> float:
    """The mean rank correlation of two explanations' maps, word by word; of how strong they are, whatever the sign."""
    pairs = zip(by_cell(one.maps[method]), by_cell(other.maps[method]), strict=True)
    return float(np.mean([rank_correlation(np.abs(a), np.abs(b)) for a, b in pairs]))


@pytest.mark.parametrize("method", METHODS)
def test_maps_of_a_model_that_has_unlearnt_everything_are_others(cascade, method):
    assert cascade[-1][method] < 0.5


@pytest.mark.parametrize("method", ["gradcam", "attention"])
def test_maps_over_places_change_as_soon_as_the_decoder_has_unlearnt(cascade, method):
    assert cascade[0][method] < 0.5


@pytest.mark.parametrize("method", METHODS)
def test_the_more_is_unlearnt_the_less_alike_are_the_maps(cascade, method):
    assert cascade[-1][method] < max(cascade[0][method], 0.25)


DOGS = {"1107246521_d16a476380.jpg": (12, 51, 259, 207), "1267711451_e2a754b4f8.jpg": (0, 7, 221, 250)}
WIDTH, HEIGHT, SIDE, GREY = 320, 240, 130, (128, 128, 128)


@pytest.fixture(scope="module", params=DOGS)
def dog(request: pytest.FixtureRequest, flickr8k: Path) -> Image.Image:
    image = Image.open(flickr8k / "Images" / request.param).convert("RGB")
    return small(image.crop(DOGS[request.param]))


def small(image: Image.Image, side: int = SIDE) -> Image.Image:
    return image.resize([round(side * each / max(image.size)) for each in image.size])


def scene(*pasted: tuple[Image.Image, float, float]) -> Image.Image:
    """Things pasted on grey, each with its centre at shares of the width and height."""
    whole = Image.new("RGB", (WIDTH, HEIGHT), GREY)
    for thing, x, y in pasted:
        whole.paste(thing, (round(x * WIDTH - thing.width / 2), round(y * HEIGHT - thing.height / 2)))
    return whole


def centres(model: saywhy.Model, image: Image.Image) -> dict[str, np.ndarray]:
    """Where what supports "dog" has its centre, by method: shares of the width and height."""
    told = model.explain(image, caption="a dog", word="dog")
    found = {}
    for method in METHODS:
        supports = told.map(0, method).clip(min=0)
        y, x = (np.indices(supports.shape) * supports).sum(axis=(1, 2)) / supports.sum()
        found[method] = np.array([x / WIDTH, y / HEIGHT])
    return found


@pytest.mark.data
def test_relevance_moves_with_what_is_pasted_elsewhere(model, dog):
    dog = small(dog, 100)
    left, right, up, down = (
        centres(model, scene((dog, x, y))) for x, y in ((0.2, 0.5), (0.8, 0.5), (0.5, 0.22), (0.5, 0.78))
    )
    for method in METHODS:
        assert left[method][0] < 0.4, method
        assert right[method][0] > 0.6, method
        assert up[method][1] < 0.4, method
        assert down[method][1] > 0.6, method


@pytest.mark.data
@pytest.mark.parametrize("method", ["lrp", "gradcam", "guided-gradcam"])
def test_relevance_of_a_dog_follows_the_dog_when_it_changes_places_with_a_face(both_ways, method):
    left, right = (each[method][0] for each in both_ways)
    assert left < 0.45
    assert right > 0.55
    assert right - left > 0.2


@pytest.fixture(scope="module")
def both_ways(model, dog) -> list[dict[str, np.ndarray]]:
    face = small(Image.open(PHOTOGRAPH).convert("RGB").crop((150, 20, 350, 280)))
    return [centres(model, scene((dog, x, 0.5), (face, 1 - x, 0.5))) for x in (0.24, 0.76)]
