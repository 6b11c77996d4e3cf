"""Features of regions: pooled from an encoder's grid, or precomputed."""

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
from saywhy.encoders.base import Features
from saywhy.errors import UserError

ROWS, COLUMNS = 3, 4


def grid(seed: int = 0) -> Features:
    random = torch.Generator().manual_seed(seed)
    return Features(torch.randn(2, ROWS * COLUMNS, 5, generator=random), (ROWS, COLUMNS))


def cell(row: int, column: int) -> list[float]:
    return [column / COLUMNS, row / ROWS, (column + 1) / COLUMNS, (row + 1) / ROWS]


def test_box_of_one_cell_has_the_vector_of_that_cell():
    boxes = torch.tensor([[cell(row, column) for row in range(ROWS) for column in range(COLUMNS)]]).expand(2, -1, -1)
    regions = grid().in_boxes(boxes)
    torch.testing.assert_close(regions.vectors, grid().vectors)
    assert regions.grid is None
    assert regions.mask.all()


def test_box_of_the_image_has_the_mean_and_box_of_a_row_the_mean_of_the_row():
    boxes = torch.tensor([[[0, 0, 1, 1], [0, 1 / ROWS, 1, 2 / ROWS]]]).expand(2, -1, -1)
    vectors = grid().in_boxes(boxes).vectors
    torch.testing.assert_close(vectors[:, 0], grid().mean())
    torch.testing.assert_close(vectors[:, 1], grid().vectors[:, COLUMNS : 2 * COLUMNS].mean(dim=1))


def test_each_image_has_its_own_boxes():
    boxes = torch.tensor([[cell(0, 0)], [cell(2, 1)]])
    vectors = grid().in_boxes(boxes).vectors
    torch.testing.assert_close(vectors[:, 0], torch.stack([grid().vectors[0, 0], grid().vectors[1, 2 * COLUMNS + 1]]))


def test_box_without_area_is_masked():
    boxes = torch.tensor([[cell(0, 0), [0.0] * 4]]).expand(2, -1, -1)
    regions = grid().in_boxes(boxes)
    assert regions.mask.tolist() == [[True, False]] * 2
    assert regions.vectors.isfinite().all()


def test_gradients_of_regions_reach_the_grid():
    features = grid()
    features.vectors.requires_grad_()
    features.in_boxes(torch.tensor([[cell(1, 1)]] * 2)).vectors.sum().backward()
    touched = features.vectors.grad.abs().sum(dim=-1) > 0
    assert touched[:, COLUMNS + 1].all()
    assert touched.sum() < touched.numel()


def test_encoder_pools_regions_from_its_grid():
    encoder, pixels = tiny.encoder(), tiny.pixels(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0, 0, 0.5, 0.5]]] * 2)
    regions = encoder(pixels, boxes)
    torch.testing.assert_close(regions.vectors[:, 0], encoder(pixels).mean(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(regions.vectors[:, 1], encoder(pixels).vectors[:, 0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(regions.boxes, boxes)


def test_padding_boxes_do_not_change_the_logits():
    captioner, pixels, captions = tiny.sensitive_captioner(), tiny.pixels(2), tiny.captions(2)
    boxes = torch.tensor([[[0, 0, 1, 1], [0.1, 0.2, 0.6, 0.9]]] * 2)
    padded = torch.cat([boxes, torch.zeros(2, 5, 4)], dim=1)
    logits, expected = (captioner(captioner.encode(pixels, rows), captions)[0] for rows in (padded, boxes))
    torch.testing.assert_close(logits, expected)


def test_precomputed_features_are_not_changed():
    encoder = encoders.build("features:6", weights=None)
    vectors, boxes = torch.randn(2, 3, 6), torch.tensor([[[0, 0, 1, 1], [0, 0, 0.5, 1], [0] * 4]] * 2)
    features = encoder(vectors, boxes)
    assert torch.equal(features.vectors, vectors)
    assert features.mask.tolist() == [[True, True, False]] * 2
    assert encoder.width == 6
    assert not list(encoder.parameters())


def test_pixels_and_vectors_of_another_length_are_refused():
    encoder, boxes = encoders.build("features:6", weights=None), torch.ones(2, 3, 4)
    for inputs in ((tiny.pixels(2),), (tiny.pixels(2), boxes), (torch.zeros(2, 3, 6),)):
        with pytest.raises(UserError, match="precomputed region features, not pixels"):
            encoder(*inputs)
    with pytest.raises(UserError, match="have 5 numbers each, this model takes 6"):
        encoder(torch.zeros(2, 3, 5), boxes)
    with pytest.raises(UserError, match="features:2048"):
        encoders.build("features:many", weights=None)


def test_model_of_precomputed_features_saves_and_loads(tmp_path):
    encoder = encoders.build("features:6", weights=None)
    captioner = build("soft-attention", encoder, tiny.WORDS, **tiny.settings("soft-attention")).eval()
    regions = RegionSettings("features", 7)
    SavedModel("f", captioner, tiny.vocabulary(), Preprocessing(), {}, regions).save(tmp_path / "model")
    saved = load(tmp_path / "model")
    assert saved.regions == regions
    assert dataclasses.asdict(saved.captioner.encoder.settings) == dataclasses.asdict(encoder.settings)
    vectors, boxes = torch.randn(2, 3, 6), torch.tensor([[[0, 0, 1, 1]] * 3] * 2).float()
    logits, expected = (
        model(model.encode(vectors, boxes), tiny.captions(2))[0] for model in (saved.captioner, captioner)
    )
    assert torch.equal(logits, expected)
