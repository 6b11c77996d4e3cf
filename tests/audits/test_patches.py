"""Patches, compared with loops over pixels."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tiny
from reference import audits as reference
from saywhy.audits.patches import PATCH, mask_patches, patch_masks, patch_sums, select_highest
from saywhy.explain.occlusion import MEAN


@pytest.mark.parametrize(("side", "patch"), [(16, 8), (20, 8), (7, 3), (5, 8), (6, 1)])
def test_patch_sums_equal_loops_over_pixels(side, patch):
    maps = np.random.default_rng(0).normal(size=(2, 3, side, side))
    sums = patch_sums(maps, patch)
    for row in np.ndindex(2, 3):
        np.testing.assert_allclose(sums[row], reference.patch_sums(maps[row].tolist(), patch), atol=1e-12)
    np.testing.assert_allclose(sums.sum(axis=-1), maps.sum(axis=(-2, -1)))


@pytest.mark.parametrize("side", [32, 28])
def test_masked_images_equal_loops_over_pixels(side):
    count = 4 * 4
    selected = torch.from_numpy(np.random.default_rng(0).random((3, count)) < 0.4)
    pixels = tiny.pixels(3, side)
    before = pixels.clone()
    masked = mask_patches(pixels, selected)
    assert masked.dtype == torch.uint8
    for row in range(3):
        expected = reference.mask_patches(pixels[row].tolist(), selected[row].tolist(), PATCH, MEAN)
        assert masked[row].tolist() == expected
    assert pixels.equal(before)


def test_masking_no_patch_changes_nothing_and_masking_all_leaves_one_colour():
    pixels = tiny.pixels(2, 32)
    assert mask_patches(pixels, torch.zeros(2, 16, dtype=torch.bool)).equal(pixels)
    colours = mask_patches(pixels, torch.ones(2, 16, dtype=torch.bool)).flatten(2)
    assert colours.unique(dim=-1).squeeze(-1).tolist() == [list(MEAN)] * 2


def test_every_pixel_belongs_to_exactly_one_patch():
    masks = patch_masks(torch.eye(16, dtype=torch.bool), 28)
    assert (masks.sum(dim=0) == 1).all()
    assert masks[0].nonzero().tolist() == [[i, j] for i in range(8) for j in range(8)]
    assert masks[7].nonzero().tolist() == [[i, j] for i in range(8, 16) for j in range(24, 28)]


@pytest.mark.parametrize("count", [0, 1, 3, 7, 9])
def test_the_highest_equal_those_selected_one_by_one(count):
    values = np.random.default_rng(1).integers(-2, 3, size=(4, 2, 7)).astype(float)  # with ties
    tie_break = np.random.default_rng(2).random((4, 1, 7))
    selected = select_highest(values, count, tie_break)
    assert selected.dtype == bool
    for row in np.ndindex(4, 2):
        expected = reference.select_highest(values[row].tolist(), count, tie_break[row[0], 0].tolist())
        assert selected[row].tolist() == expected
