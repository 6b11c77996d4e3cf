"""Boxes on the square the encoder sees, and what of a map lies in them."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from reference import audits as reference
from saywhy.audits.boxes import box_mask, points, shares
from saywhy.data.preprocess import Preprocessing

pytestmark = pytest.mark.filterwarnings("error")
FRAMES = [Preprocessing(64), Preprocessing(64, margin=1), Preprocessing(64, "squash")]
SIZES = [(500, 333), (200, 417), (64, 64)]


def some_boxes(seed: int, count: int) -> np.ndarray:
    corners = np.random.default_rng(seed).random((count, 2, 2)).astype(np.float32)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)  # (n, 4)


@pytest.mark.parametrize("frame", FRAMES, ids=["crop", "crop all", "squash"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_mask_is_the_pixels_whose_centres_lie_in_a_box(frame, size, count):
    boxes = some_boxes(7, count)
    mask = box_mask(boxes, size, frame, 23)
    assert mask.dtype == bool
    assert mask.any()
    np.testing.assert_array_equal(mask, reference.box_mask(boxes, size, frame.region(*size), 23))


@pytest.mark.parametrize("frame", FRAMES, ids=["crop", "crop all", "squash"])
def test_a_mask_lies_over_what_is_painted_in_its_boxes(frame):
    pixels = np.zeros((200, 300, 3), np.uint8)
    pixels[60:100, 120:210] = pixels[90:160, 60:140] = 255
    seen = frame(Image.fromarray(pixels))[0] > 127
    boxes = np.array([[120, 60, 210, 100], [60, 90, 140, 160]]) / [300, 200, 300, 200]
    assert (box_mask(boxes, (300, 200), frame, 64) != seen).mean() < 0.01


def test_the_whole_image_is_every_pixel_and_no_box_is_none():
    for frame in FRAMES:
        assert box_mask(np.array([[0, 0, 1, 1]], np.float32), (300, 200), frame, 9).all()
        assert not box_mask(np.zeros((0, 4), np.float32), (300, 200), frame, 9).any()


def test_what_a_crop_cuts_away_is_in_no_mask():
    edge = np.array([[0, 0, 0.1, 1]])
    assert not box_mask(edge, (300, 200), Preprocessing(64), 64).any()
    assert box_mask(edge, (300, 200), Preprocessing(64, "squash"), 64).mean() == pytest.approx(0.1, abs=0.01)


def test_shares_and_points_are_those_of_loops_over_pixels():
    rng = np.random.default_rng(0)
    maps = rng.integers(-3, 4, size=(2, 3, 6, 6)).astype(float)  # with ties
    masks = rng.random((2, 3, 6, 6)) < 0.4
    for mask in (masks[0, 0], masks):
        found, hits = shares(maps, mask), points(maps, mask)
        assert hits.shape == found.positive.shape == found.negative.shape == (2, 3)
        assert hits.dtype == bool
        for row in np.ndindex(2, 3):
            one = mask[row] if mask.ndim == 4 else mask
            wanted = reference.shares(maps[row], one)
            np.testing.assert_allclose([found.positive[row], found.negative[row]], wanted, rtol=1e-12)
            assert hits[row] == reference.points(maps[row], one)


def test_shares_of_one_map_are_one_number_each():
    found = shares(np.array([[1.0, -1.0], [3.0, -1.0]]), np.array([[True, True], [False, False]]))
    assert (float(found.positive), float(found.negative)) == (0.25, 0.5)
    assert bool(points(np.array([[1.0, 2.0], [0.0, 2.0]]), np.eye(2)[::-1].astype(bool)))


def test_a_share_of_what_a_map_has_none_of_is_nan():
    mask = np.eye(2, dtype=bool)
    found = shares(np.stack([np.ones((2, 2)), -np.ones((2, 2)), np.zeros((2, 2))]), mask)
    np.testing.assert_array_equal(found.positive, [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(found.negative, [np.nan, 0.5, np.nan])


def test_the_share_of_an_even_map_is_the_masks_area():
    mask = box_mask(some_boxes(0, 3), (300, 200), FRAMES[0], 50)
    assert float(shares(np.full((50, 50), 1e-30, np.float32), mask).positive) == pytest.approx(mask.mean())
