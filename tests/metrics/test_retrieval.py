"""Captions are ranked as a loop ranks them, ties share their mean rank, and broken embeddings are refused."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from reference import metrics as reference
from saywhy.errors import UserError
from saywhy.metrics import retrieval as module
from saywhy.metrics.retrieval import EmbedOnce, image_ranks, retrieval, unit_vectors


def random_embeddings(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("block", [1, 7, 512])
def test_ranks_equal_those_of_a_loop(monkeypatch, block: int) -> None:
    monkeypatch.setattr(module, "_BLOCK", block)
    images = random_embeddings(30, 3).round(1)  # few dimensions and coarse values
    images[10:20] = images[:10]  # so that there are ties
    captions = images + random_embeddings(30, 3, seed=1) / 2
    expected = reference.image_ranks(captions.tolist(), images.tolist(), range(30))
    assert image_ranks(captions, images).tolist() == expected
    assert any(rank % 1 for rank in expected), "no ties"


def test_several_captions_of_an_image_are_ranked() -> None:
    images, captions = random_embeddings(6, 4), random_embeddings(15, 4, seed=1)
    image_of = [0, 1, 2, 3, 4, 5] * 2 + [5, 5, 0]
    expected = reference.image_ranks(captions.tolist(), images.tolist(), image_of)
    assert image_ranks(captions, images, image_of).tolist() == expected


def test_captions_equal_to_their_images_find_them_all() -> None:
    images = random_embeddings(40, 8)
    found = retrieval(5 * images, images)
    assert (found.recall, found.median_rank, found.images) == ((1, 1, 1), 1, 40)


def test_recall_counts_ranks_up_to_1_5_and_10() -> None:
    angle = np.linspace(0, 1, 20)
    images = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    found = retrieval(np.tile(images[:1], (20, 1)), images)  # caption i ranks its image i + 1
    assert found.ranks.tolist() == list(range(1, 21))
    assert (found.recall, found.median_rank) == ((1 / 20, 5 / 20, 10 / 20), 10.5)
    assert found.as_dict() == {
        "recall_at_1": 5,
        "recall_at_5": 25,
        "recall_at_10": 50,
        "median_rank": 10.5,
        "images": 20,
    }


def test_a_model_that_embeds_everything_alike_finds_nothing() -> None:
    found = retrieval(np.ones((50, 4)), np.ones((50, 4), np.float32))
    assert (found.recall, found.median_rank) == ((0, 0, 0), 25.5)


def test_rounding_of_single_precision_does_not_break_ties() -> None:
    images = random_embeddings(4, 512).astype(np.float32)
    images[1] = images[0] * (1 + 1e-7)
    assert image_ranks(images, images).tolist() == [1.5, 1.5, 1, 1]


def test_five_thousand_captions_take_seconds(one_thread) -> None:
    vectors = random_embeddings(5000, 256)
    began = time.process_time()
    assert retrieval(vectors, vectors).recall[0] == 1
    assert time.process_time() - began < 15


@pytest.mark.parametrize(
    ("captions", "images", "message"),
    [
        (
            [[1, 0], [np.nan, 1]],
            [[1, 0], [0, 1]],
            "captions: 1 of 2 embeddings are zero or not finite, the first in row 1",
        ),
        ([[1, 0]], [[0, 0]], "images: 1 of 1 embeddings are zero or not finite"),
        ([[np.inf, 0]], [[1, 0]], "not finite"),
        ([[1, 0]], [[1, 0], [0, 1]], "1 captions but 2 images"),
        ([[1, 0]], [[1, 0, 0]], "captions have 2 dimensions and images 3"),
        ([1, 0], [[1, 0]], r"captions of shape \(2,\): give one embedding per row"),
        (np.empty((0, 4)), np.empty((0, 4)), "captions of shape"),
    ],
)
def test_embeddings_that_cannot_be_ranked_are_refused(captions, images, message: str) -> None:
    with pytest.raises(UserError, match=message):
        image_ranks(captions, images)


@pytest.mark.parametrize("image_of", [[0], [0, 2], [-1, 0]])
def test_captions_of_images_that_do_not_exist_are_refused(image_of: list[int]) -> None:
    with pytest.raises(UserError, match="must have the number of an image, below 2"):
        image_ranks(np.eye(2), np.eye(2), image_of)


def test_unit_vectors_have_length_one() -> None:
    assert np.linalg.norm(unit_vectors(random_embeddings(9, 5)), axis=1) == pytest.approx(np.ones(9))


class CountingModel:
    """Embeds a text or path by its length, and records what it was asked for."""

    name, encoder = "counting", "none"

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.images: list[Path] = []

    def embed_texts(self, texts):
        self.texts += texts
        return np.array([[len(text), 1.0] for text in texts])

    def embed_images(self, images, progress=lambda done, total: None):
        self.images += images
        return np.array([[len(str(path)), 2.0] for path in images])


def test_embed_once_asks_for_each_text_and_image_once_and_keeps_their_order():
    model = CountingModel()
    once, plain = EmbedOnce(model), CountingModel()
    for texts in (["a", "dog", "a"], ["dogs", "dog"]):
        np.testing.assert_array_equal(once.embed_texts(texts), plain.embed_texts(texts))
    for images in ([Path("x"), Path("yy")], [Path("yy"), Path("x")]):
        np.testing.assert_array_equal(once.embed_images(images), plain.embed_images(images))
    assert model.texts == ["a", "dog", "dogs"]
    assert model.images == [Path("x"), Path("yy")]
    assert (once.name, once.encoder) == ("counting", "none")
