"""Regions cut out of an encoder's grid, and vectors that need no encoder."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import tiny
from saywhy import encoders
from saywhy.captioners import build
from saywhy.captioners.model_folder import SavedModel, load
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSettings
from saywhy.encoders.features import Features
from saywhy.encoders.region_pooling import cut_regions
from saywhy.errors import UserError

ROWS, COLUMNS = 3, 4


def grid(seed: int = 0) -> Features:
    random = torch.Generator().manual_seed(seed)
    return Features(torch.randn(2, ROWS * COLUMNS, 5, generator=random), (ROWS, COLUMNS))


def cell(row: int, column: int) -> list[float]:
    return [column / COLUMNS, row / ROWS, (column + 1) / COLUMNS, (row + 1) / ROWS]


def test_a_box_that_is_one_cell_has_that_cells_vector():
    boxes = torch.tensor([[cell(row, column) for row in range(ROWS) for column in range(COLUMNS)]]).expand(2, -1, -1)
    found = cut_regions(grid(), boxes)
    torch.testing.assert_close(found.vectors, grid().vectors)
    assert found.grid is None
    assert found.mask.all()


def test_the_whole_image_has_the_mean_and_a_row_has_its_own():
    boxes = torch.tensor([[[0, 0, 1, 1], [0, 1 / ROWS, 1, 2 / ROWS]]]).expand(2, -1, -1)
    found = cut_regions(grid(), boxes).vectors
    torch.testing.assert_close(found[:, 0], grid().mean())
    torch.testing.assert_close(found[:, 1], grid().vectors[:, COLUMNS : 2 * COLUMNS].mean(dim=1))


def test_each_image_is_cut_by_its_own_boxes():
    boxes = torch.tensor([[cell(0, 0)], [cell(2, 1)]])
    found = cut_regions(grid(), boxes).vectors
    torch.testing.assert_close(found[:, 0], torch.stack([grid().vectors[0, 0], grid().vectors[1, 2 * COLUMNS + 1]]))


def test_a_box_without_an_area_is_no_region():
    boxes = torch.tensor([[cell(0, 0), [0.0] * 4]]).expand(2, -1, -1)
    found = cut_regions(grid(), boxes)
    assert found.mask.tolist() == [[True, False]] * 2
    assert found.vectors.isfinite().all()


def test_regions_carry_gradients_to_the_grid():
    features = grid()
    features.vectors.requires_grad_()
    cut_regions(features, torch.tensor([[cell(1, 1)]] * 2)).vectors.sum().backward()
    touched = features.vectors.grad.abs().sum(dim=-1) > 0
    assert touched[:, COLUMNS + 1].all()
    assert touched.sum() < touched.numel()


def test_an_encoder_gives_the_regions_of_its_grid():
    encoder, pixels = tiny.encoder(), tiny.pixels(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0, 0, 0.5, 0.5]]] * 2)
    found = encoder(pixels, boxes)
    torch.testing.assert_close(found.vectors[:, 0], encoder(pixels).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.vectors[:, 1], encoder(pixels).vectors[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.boxes, boxes)


def test_absent_regions_change_nothing_of_what_is_said():
    captioner, pixels, words = tiny.opinionated(), tiny.pixels(2), tiny.captions(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9]]] * 2)
    longer = torch.cat([boxes, torch.zeros(2, 5, 4)], dim=1)
    one, other = (captioner(captioner.encode(pixels, each), words)[0] for each in (boxes, longer))
    torch.testing.assert_close(one, other)


def test_given_features_pass_as_they_are():
    encoder = encoders.build("features:6", weights=None)
    vectors, boxes = torch.randn(2, 3, 6), torch.tensor([[[0, 0, 1, 1], [0, 0, 0.5, 1], [0] * 4]] * 2)
    found = encoder(vectors, boxes)
    assert torch.equal(found.vectors, vectors)
    assert found.mask.tolist() == [[True, True, False]] * 2
    assert encoder.width == 6
    assert not list(encoder.parameters())


def test_given_features_are_no_pixels_and_have_one_length():
    encoder, boxes = encoders.build("features:6", weights=None), torch.ones(2, 3, 4)
    for wrong in ((tiny.pixels(2),), (tiny.pixels(2), boxes), (torch.zeros(2, 3, 6),)):
        with pytest.raises(UserError, match="given region features, not at pixels"):
            encoder(*wrong)
    with pytest.raises(UserError, match="have 5 numbers each, this model looks at 6"):
        encoder(torch.zeros(2, 3, 5), boxes)
    with pytest.raises(UserError, match="features:2048"):
        encoders.build("features:many", weights=None)


def test_a_model_of_features_saves_and_loads(tmp_path):
    encoder = encoders.build("features:6", weights=None)
    captioner = build("soft-attention", encoder, tiny.WORDS, **tiny.settings("soft-attention")).eval()
    wanted = RegionSettings("features", 7)
    SavedModel("f", captioner, tiny.vocabulary(), Preprocessing(), {}, wanted).save(tmp_path / "model")
    saved = load(tmp_path / "model")
    assert saved.regions == wanted
    assert dataclasses.asdict(saved.captioner.encoder.settings) == dataclasses.asdict(encoder.settings)
    vectors, boxes = torch.randn(2, 3, 6), torch.tensor([[[0, 0, 1, 1]] * 3] * 2).float()
    words = tiny.captions(2)
    one, other = (each(each.encode(vectors, boxes), words)[0] for each in (captioner, saved.captioner))
    assert torch.equal(one, other)
