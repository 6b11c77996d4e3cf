"""Which captions come together, and the tensors they become."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from saywhy.data.batches import Batches, samplers, share
from saywhy.data.loading import CachedImages, ImageFiles, in_order
from saywhy.data.preprocess import Preprocessing
from saywhy.data.vocabulary import END, PAD, START, Vocabulary
from saywhy.errors import UserError
from saywhy.training.objectives import LogLikelihood

RANDOM = np.random.default_rng(0)
CAPTIONS = [[["a"] * int(RANDOM.integers(1, 5)) for _ in range(int(RANDOM.integers(1, 6)))] for _ in range(23)]
PAIRS = [(image, n) for image, own in enumerate(CAPTIONS) for n in range(len(own))]
VOCABULARY = Vocabulary.build([["a", "dog", "runs", "left", "b"]])


class Numbers:
    """Inputs that say which image they are; some are broken."""

    def __init__(self, *broken: int) -> None:
        self.broken = broken

    def rows(self, images):
        values = np.stack([np.full((3, 2, 2), image, np.uint8) for image in images])
        return values, [f"{image}.jpg: damaged" if image in self.broken else "" for image in images]


def batches(captions=CAPTIONS, *broken: int) -> Batches:
    return Batches(captions, VOCABULARY, Numbers(*broken))


@pytest.fixture(params=list(samplers))
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def test_equal_length_batches_hold_every_caption_once_an_epoch():
    order = batches().order("equal-length", 4, seed=0, epoch=0)
    assert Counter(pair for chunk in order for pair in chunk) == Counter(PAIRS)
    assert max(map(len, order)) == 4


def test_equal_length_batches_are_of_one_length_and_need_no_padding():
    made = batches()
    for chunk in made.order("equal-length", 4, seed=0, epoch=0):
        assert len({len(CAPTIONS[image][n]) for image, n in chunk}) == 1
        assert (made[chunk].words != PAD).all()


def test_image_batches_hold_every_caption_once_with_all_captions_of_a_image_together():
    order = batches().order("images", 5, seed=0, epoch=0)
    assert [len({image for image, _ in chunk}) for chunk in order] == [5, 5, 5, 5, 3]
    assert Counter(pair for chunk in order for pair in chunk) == Counter(PAIRS)


def test_fewer_images_than_a_batch_are_one_batch():
    (chunk,) = batches().order("images", 64, seed=0, epoch=0)
    assert sorted(chunk) == PAIRS


def test_the_order_depends_on_seed_and_epoch_alone(kind):
    first = batches().order(kind, 4, seed=1, epoch=2)
    np.random.seed(9)
    torch.manual_seed(9)
    assert batches().order(kind, 4, seed=1, epoch=2) == first
    assert batches().order(kind, 4, seed=1, epoch=3) != first
    assert batches().order(kind, 4, seed=2, epoch=2) != first
    assert batches().order(kind, 4, seed=2, epoch=1) != first


def test_an_unknown_kind_of_batches_is_a_users_error():
    with pytest.raises(UserError, match='did you mean "images"'):
        batches().order("image", 4, 0, 0)


@pytest.mark.parametrize("processes", [1, 2, 3, 7])
def test_the_shares_of_all_processes_are_the_batches(kind, processes):
    order = batches().order(kind, 5, seed=0, epoch=0)
    shares = [share(order, rank, processes) for rank in range(processes)]
    assert [len(part) for part in shares] == [len(order)] * processes
    for number, chunk in enumerate(order):
        parts = [part[number] for part in shares]
        assert Counter(pair for part in parts for pair in part) == Counter(chunk)
        images = [{image for image, _ in part} for part in parts]
        assert sum(map(len, images)) == len(set().union(*images)), "an image is encoded by two processes"


def test_a_batch_loads_each_image_once_and_says_whose_each_caption_is():
    captions = [[["a", "dog"]], [["a"], ["dog", "runs", "b"]], [["b"]]]
    batch = batches(captions)[[(2, 0), (1, 1), (0, 0), (1, 0)]]
    shown = batch.inputs[:, 0, 0, 0]
    assert sorted(shown.tolist()) == [0, 1, 2]
    assert shown[batch.owner].tolist() == [2, 1, 0, 1]
    number = VOCABULARY.numbers
    assert batch.words.tolist() == [
        [START, number["b"], END, PAD, PAD],
        [START, number["dog"], number["runs"], number["b"], END],
        [START, number["a"], number["dog"], END, PAD],
        [START, number["a"], END, PAD, PAD],
    ]
    assert batch.broken == ()


@pytest.mark.parametrize("side", ["left", "right"])
def test_captions_that_say_left_or_right_forbid_mirroring_their_image(side):
    captions = [[["a", "dog"]], [["a"], ["dog", side]], [["b"]]]
    batch = batches(captions)[[(0, 0), (1, 0), (2, 0)]]
    assert batch.mirror[batch.owner].tolist() == [True, False, True]


def test_a_share_of_nothing_is_padding_alone():
    batch = batches()[[]]
    assert (batch.words == PAD).all()
    assert len(batch.inputs) == len(batch.owner) == 1


def test_a_broken_image_is_named_and_its_captions_are_padding():
    captions = [[["a", "dog"]], [["a"], ["dog", "runs", "b"]], [["b"]]]
    batch = batches(captions, 1)[[(0, 0), (1, 0), (1, 1), (2, 0)]]
    assert batch.broken == ("1.jpg: damaged",)
    assert (batch.words != PAD).any(dim=1).tolist() == [True, False, False, True]


def test_a_broken_image_adds_nothing_to_the_loss(tmp_path: Path):
    paths = tiny.image_files(tmp_path, 3)
    captions = [[["a", "dog"]], [["a"], ["dog", "runs"]], [["b"]]]
    files = ImageFiles(paths, (3, 64, 64), Preprocessing(64), 64)
    objective = LogLikelihood(tiny.captioner(words=len(VOCABULARY)), 64, smoothing=0.1, penalty=1.0)
    made = Batches(captions, VOCABULARY, files)

    def sums(pairs):
        batch = made[pairs]
        with torch.no_grad():
            return [float(each) for each in objective(batch.inputs, batch.mirror, batch.words, batch.owner, None)]

    whole = sums([(0, 0), (2, 0)])
    paths[1].write_bytes(b"not an image")
    assert sums([(0, 0), (1, 0), (1, 1), (2, 0)]) == pytest.approx(whole, rel=1e-5)
    assert sums([(1, 0)]) == [0, 0, 0, 0]


@pytest.fixture
def files(tmp_path: Path) -> ImageFiles:
    (tmp_path / "images").mkdir()
    paths = tiny.image_files(tmp_path / "images", 5)
    paths[1].write_bytes(b"not an image")
    paths[3].unlink()
    paths[4].write_bytes(paths[0].read_bytes())
    return ImageFiles(paths, (3, 48, 48), Preprocessing(48), 48)


def test_image_files_prepare_each_image_and_name_the_broken(files: ImageFiles):
    rows, faults = files.rows([2, 1, 0, 3])
    for row, image in ((0, 2), (2, 0)):
        assert np.array_equal(rows[row], Preprocessing(48)(Image.open(files.paths[image])))
        assert faults[row] == ""
    for row, image in ((1, 1), (3, 3)):
        assert (rows[row] == 128).all()
        assert faults[row].startswith(str(files.paths[image]))


def test_kept_images_are_the_images_the_first_time_and_ever_after(files: ImageFiles, tmp_path: Path):
    opened = []
    prepare = files.prepare
    files.prepare = lambda image: opened.append(image) or prepare(image)  # type: ignore[func-returns-value]
    kept = CachedImages(files, tmp_path / "cache", {"size": 48})
    for images in ([2, 1, 0, 3], [0, 1, 2, 3, 4], [4, 3, 2]):
        rows, faults = kept.rows(images)
        expected, named = files.rows(images)
        assert np.array_equal(rows, expected)
        assert faults == named
    opened.clear()
    again = CachedImages(files, tmp_path / "cache", {"size": 48})
    again.rows([0, 1, 2, 3, 4])
    assert opened == [], "a kept image was decoded again"
    CachedImages(files, tmp_path / "cache", {"size": 49}).rows([0])
    assert len(opened) == 1, "images prepared otherwise are other images"


def test_a_mended_image_is_read_anew(files: ImageFiles, tmp_path: Path):
    kept = CachedImages(files, tmp_path / "cache", {})
    assert kept.rows([1])[1][0]
    files.paths[1].write_bytes(files.paths[2].read_bytes())
    rows, faults = kept.rows([1, 2])
    assert faults == ["", ""]
    assert np.array_equal(rows[0], rows[1])


def test_images_in_order_come_once_each_with_their_faults(files: ImageFiles):
    numbers, faults = [], []
    for some, rows, lines in in_order(files, batch=2, workers=0):
        assert np.array_equal(rows, files.rows(some)[0])
        numbers += some
        faults += lines
    assert numbers == [0, 1, 2, 3, 4]
    assert [bool(line) for line in faults] == [False, True, False, True, False]
