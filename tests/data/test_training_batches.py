"""Training batches: which captions are together, and their tensors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from saywhy.data.loading import CachedImages, ImageFiles
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import END, PAD, START, Vocabulary
from saywhy.data.training_batches import Batches, samplers, split_batches
from saywhy.errors import UserError
from saywhy.inference.batches import read_ahead
from saywhy.training.objectives import CaptionLoss

RANDOM = np.random.default_rng(0)
CAPTIONS = [[["a"] * int(RANDOM.integers(1, 5)) for _ in range(int(RANDOM.integers(1, 6)))] for _ in range(23)]
PAIRS = [(image, caption) for image, captions in enumerate(CAPTIONS) for caption in range(len(captions))]
VOCABULARY = Vocabulary.build([["a", "dog", "runs", "left", "b"]])


class IndexInputs:
    """Inputs whose pixels are the image's index; some are unreadable."""

    def __init__(self, *unreadable: int) -> None:
        self.unreadable = unreadable

    def rows(self, indices):
        values = np.stack([np.full((3, 2, 2), index, np.uint8) for index in indices])
        return values, [f"{index}.jpg: damaged" if index in self.unreadable else "" for index in indices]


def make_batches(captions=CAPTIONS, *unreadable: int) -> Batches:
    return Batches(captions, VOCABULARY, IndexInputs(*unreadable))


@pytest.fixture(params=list(samplers))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_equal_length_batches_have_every_caption_once_per_epoch():
    order = make_batches().order("equal-length", 4, seed=0, epoch=0)
    assert Counter(pair for pairs in order for pair in pairs) == Counter(PAIRS)
    assert max(map(len, order)) == 4


def test_equal_length_batches_are_of_one_length_and_need_no_padding():
    batches = make_batches()
    for pairs in batches.order("equal-length", 4, seed=0, epoch=0):
        assert len({len(CAPTIONS[image][caption]) for image, caption in pairs}) == 1
        assert (batches[pairs].tokens != PAD).all()


def test_image_batches_have_all_captions_of_an_image_together():
    order = make_batches().order("images", 5, seed=0, epoch=0)
    assert [len({image for image, _ in pairs}) for pairs in order] == [5, 5, 5, 5, 3]
    assert Counter(pair for pairs in order for pair in pairs) == Counter(PAIRS)


def test_fewer_images_than_a_batch_are_one_batch():
    (pairs,) = make_batches().order("images", 64, seed=0, epoch=0)
    assert sorted(pairs) == PAIRS


def test_the_order_depends_only_on_seed_and_epoch(kind):
    first = make_batches().order(kind, 4, seed=1, epoch=2)
    np.random.seed(9)
    torch.manual_seed(9)
    assert make_batches().order(kind, 4, seed=1, epoch=2) == first
    assert make_batches().order(kind, 4, seed=1, epoch=3) != first
    assert make_batches().order(kind, 4, seed=2, epoch=2) != first
    assert make_batches().order(kind, 4, seed=2, epoch=1) != first


def test_an_unknown_kind_of_batches_is_a_user_error():
    with pytest.raises(UserError, match='did you mean "images"'):
        make_batches().order("image", 4, 0, 0)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_the_parts_of_all_processes_are_the_batches(kind, processes):
    order = make_batches().order(kind, 5, seed=0, epoch=0)
    by_process = [split_batches(order, rank, processes) for rank in range(processes)]
    assert [len(batches) for batches in by_process] == [len(order)] * processes
    for number, pairs in enumerate(order):
        parts = [batches[number] for batches in by_process]
        assert Counter(pair for part in parts for pair in part) == Counter(pairs)
        images = [{image for image, _ in part} for part in parts]
        assert sum(map(len, images)) == len(set().union(*images)), "an image is encoded by two processes"


def test_a_batch_has_each_image_once_and_its_longest_captions_first():
    captions = [[["a", "dog"]], [["a"], ["dog", "runs", "b"]], [["b"]]]
    batch = make_batches(captions)[[(2, 0), (1, 1), (0, 0), (1, 0)]]
    images = batch.inputs[:, 0, 0, 0]
    assert sorted(images.tolist()) == [0, 1, 2]
    assert images[batch.image_index].tolist() == [1, 0, 2, 1]
    ids = VOCABULARY.ids
    assert batch.tokens.tolist() == [
        [START, ids["dog"], ids["runs"], ids["b"], END],
        [START, ids["a"], ids["dog"], END, PAD],
        [START, ids["b"], END, PAD, PAD],
        [START, ids["a"], END, PAD, PAD],
    ]
    assert batch.active == (4, 4, 2, 1)
    assert batch.unreadable == ()


@pytest.mark.parametrize("side", ["left", "right"])
def test_images_whose_captions_say_left_or_right_are_not_flipped(side):
    captions = [[["a", "dog"]], [["a"], ["dog", side]], [["b"]]]
    batch = make_batches(captions)[[(0, 0), (1, 0), (2, 0)]]
    assert batch.may_flip[batch.image_index].tolist() == [True, False, True]


def test_a_batch_without_captions_is_padding():
    batch = make_batches()[[]]
    assert (batch.tokens == PAD).all()
    assert len(batch.inputs) == len(batch.image_index) == 1


def test_an_unreadable_image_is_reported_and_its_captions_are_padding():
    captions = [[["a", "dog"]], [["a"], ["dog", "runs", "b"]], [["b"]]]
    batch = make_batches(captions, 1)[[(0, 0), (1, 0), (1, 1), (2, 0)]]
    assert batch.unreadable == ("1.jpg: damaged",)
    assert (batch.tokens != PAD).any(dim=1).tolist() == [True, True, False, False]


def test_an_unreadable_image_adds_nothing_to_the_loss(tmp_path: Path):
    paths = tiny.image_files(tmp_path, 3)
    captions = [[["a", "dog"]], [["a"], ["dog", "runs"]], [["b"]]]
    files = ImageFiles(paths, (3, 64, 64), Preprocessing(64), 64)
    objective = CaptionLoss(tiny.captioner(words=len(VOCABULARY)), 64, smoothing=0.1, penalty=1.0)
    batches = Batches(captions, VOCABULARY, files)

    def sums(pairs):
        batch = batches[pairs]
        with torch.no_grad():
            return [
                float(value) for value in objective(batch.inputs, batch.may_flip, batch.tokens, batch.image_index, None)
            ]

    expected = sums([(0, 0), (2, 0)])
    paths[1].write_bytes(b"not an image")
    assert sums([(0, 0), (1, 0), (1, 1), (2, 0)]) == pytest.approx(expected, rel=1e-5)
    assert sums([(1, 0)]) == [0, 0, 0, 0]


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    (tmp_path / "images").mkdir()
    paths = tiny.image_files(tmp_path / "images", 5)
    paths[1].write_bytes(b"not an image")
    paths[3].unlink()
    paths[4].write_bytes(paths[0].read_bytes())
    return ImageFiles(paths, (3, 48, 48), Preprocessing(48), 48)


def test_image_files_are_prepared_and_unreadable_ones_are_grey(files: ImageFiles):
    rows, errors = files.rows([2, 1, 0, 3])
    for row, index in ((0, 2), (2, 0)):
        assert np.array_equal(rows[row], Preprocessing(48)(Image.open(files.paths[index])))
        assert errors[row] == ""
    for row, index in ((1, 1), (3, 3)):
        assert (rows[row] == 128).all()
        assert errors[row].startswith(str(files.paths[index]))


def test_cached_images_equal_the_files_and_are_decoded_once(files: ImageFiles, tmp_path: Path):
    decoded = []
    prepare = files.prepare
    files.prepare = lambda image: decoded.append(image) or prepare(image)  # type: ignore[func-returns-value]
    cached = CachedImages(files, tmp_path / "cache", {"size": 48})
    for indices in ([2, 1, 0, 3], [0, 1, 2, 3, 4], [4, 3, 2]):
        rows, errors = cached.rows(indices)
        expected, expected_errors = files.rows(indices)
        assert np.array_equal(rows, expected)
        assert errors == expected_errors
    decoded.clear()
    again = CachedImages(files, tmp_path / "cache", {"size": 48})
    again.rows([0, 1, 2, 3, 4])
    assert decoded == [], "a cached image was decoded again"
    CachedImages(files, tmp_path / "cache", {"size": 49}).rows([0])
    assert len(decoded) == 1, "other preprocessing must not use the same items"


def test_a_repaired_image_is_read_again(files: ImageFiles, tmp_path: Path):
    cached = CachedImages(files, tmp_path / "cache", {})
    assert cached.rows([1])[1][0]
    files.paths[1].write_bytes(files.paths[2].read_bytes())
    rows, errors = cached.rows([1, 2])
    assert errors == ["", ""]
    assert np.array_equal(rows[0], rows[1])


def test_a_damaged_cache_item_is_decoded_again(files: ImageFiles, tmp_path: Path):
    cached = CachedImages(files, tmp_path / "cache", {})
    expected = cached.rows([2])[0]
    (path,) = tmp_path.glob("cache/*/*/*.npz")
    contents = bytearray(path.read_bytes())
    contents[1000] ^= 0xFF
    path.write_bytes(contents)
    for _ in range(2):
        rows, errors = cached.rows([2])
        assert errors == [""]
        assert np.array_equal(rows, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_user_errors_of_worker_processes_are_raised_without_a_traceback(workers):
    class Failing(torch.utils.data.Dataset):
        def __getitem__(self, key):
            if key == 2:
                raise UserError("a full disk")
            return key

    items = read_ahead(Failing(), [0, 1, 2], workers)
    assert [next(items), next(items)] == [0, 1]
    with pytest.raises(UserError, match=r"^a full disk$"):
        next(items)


def test_one_caption_of_each_image_is_drawn_anew_for_every_epoch():
    batches = make_batches([[["a"], ["b"], ["c"]]] * 10)
    epochs = [batches.order("one-caption", 4, seed=0, epoch=epoch) for epoch in range(3)]
    for order in epochs:
        assert [len(pairs) for pairs in order] == [4, 4], "all batches are complete"
        assert len({image for pairs in order for image, _ in pairs}) == 8
        assert {caption for pairs in order for _, caption in pairs} <= {0, 1, 2}
    assert epochs[0] != epochs[1]
    assert epochs[0] == batches.order("one-caption", 4, seed=0, epoch=0)
    assert [len(pairs) for pairs in batches.order("one-caption", 16, seed=0, epoch=0)] == [10]
