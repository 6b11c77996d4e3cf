"""Patches against loops over pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from reference import audits as reference
from saywhy.audits.patches import MEAN, PATCH, highest, masked, masks, patch_sums


@pytest.mark.parametrize(("side", "patch"), [(16, 8), (20, 8), (7, 3), (5, 8), (6, 1)])
def test_patch_sums_are_those_of_loops_over_pixels(side, patch):
    maps = np.random.default_rng(0).normal(size=(2, 3, side, side))
    found = patch_sums(maps, patch)
    for row in np.ndindex(2, 3):
        np.testing.assert_allclose(found[row], reference.patch_sums(maps[row].tolist(), patch), atol=1e-12)
    np.testing.assert_allclose(found.sum(axis=-1), maps.sum(axis=(-2, -1)))


@pytest.mark.parametrize("side", [32, 28])
def test_a_masked_image_is_that_of_loops_over_pixels(side):
    count = 4 * 4
    chosen = torch.from_numpy(np.random.default_rng(0).random((3, count)) < 0.4)
    pixels = tiny.pixels(3, side)
    before = pixels.clone()
    found = masked(pixels, chosen)
    assert found.dtype == torch.uint8
    for row in range(3):
        slow = reference.masked(pixels[row].tolist(), chosen[row].tolist(), PATCH, MEAN)
        assert found[row].tolist() == slow
    assert pixels.equal(before)


def test_masking_nothing_changes_nothing_and_masking_all_leaves_one_colour():
    pixels = tiny.pixels(2, 32)
    assert masked(pixels, torch.zeros(2, 16, dtype=torch.bool)).equal(pixels)
    colours = masked(pixels, torch.ones(2, 16, dtype=torch.bool)).flatten(2)
    assert colours.unique(dim=-1).squeeze(-1).tolist() == [list(MEAN)] * 2


def test_each_patch_covers_its_own_pixels_and_together_they_cover_all():
    found = masks(torch.eye(16, dtype=torch.bool), 28)
    assert (found.sum(dim=0) == 1).all()
    assert found[0].nonzero().tolist() == [[i, j] for i in range(8) for j in range(8)]
    assert found[7].nonzero().tolist() == [[i, j] for i in range(8, 16) for j in range(24, 28)]


@pytest.mark.parametrize("count", [0, 1, 3, 7, 9])
def test_the_highest_are_those_that_one_finds_one_after_another(count):
    values = np.random.default_rng(1).integers(-2, 3, size=(4, 2, 7)).astype(float)  # with ties
    chance = np.random.default_rng(2).random((4, 1, 7))
    found = highest(values, count, chance)
    assert found.dtype == bool
    for row in np.ndindex(4, 2):
        assert found[row].tolist() == reference.highest(values[row].tolist(), count, chance[row[0], 0].tolist())
