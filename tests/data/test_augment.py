"""Augmentation, on canvases whose pixels are their own coordinates."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tiny
from saywhy.data.augment import Augmentation
from saywhy.errors import UserError

PLAIN = Augmentation(scale=(1.0, 1.0), stretch=1.0, flip=0.0)
YES, NO = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)


def coordinates(count: int = 4, side: int = 72) -> torch.Tensor:
    """Canvases: red is the column, green the row."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([x, y, torch.zeros_like(x)]).to(torch.uint8).expand(count, 3, side, side)


def extents(crops: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Signed width and height (B,) of each crop, from the coordinates in its pixels."""
    n = crops.shape[-1]
    x, y = crops[:, 0, n // 2], crops[:, 1, :, n // 2]
    low, high = n // 4, 3 * n // 4
    return (x[:, high] - x[:, low]) * n / (high - low), (y[:, high] - y[:, low]) * n / (high - low)


def test_without_augmentation_canvases_of_the_input_size_are_unchanged():
    pixels = tiny.pixels(4)
    torch.testing.assert_close(PLAIN(pixels, tiny.SIDE, YES), pixels.float(), rtol=0, atol=0.01)


def test_without_augmentation_canvases_are_resized():
    expected = F.interpolate(coordinates().float(), size=64, mode="bilinear", align_corners=False)
    torch.testing.assert_close(PLAIN(coordinates(), 64, YES), expected, rtol=0, atol=0.01)


def test_images_that_may_not_be_flipped_never_are():
    always = Augmentation(scale=(0.5, 1.0), flip=1.0)
    for seed in range(5):
        torch.manual_seed(seed)
        assert (extents(always(coordinates(), 64, NO))[0] > 0).all()
    mixed = torch.tensor([True, False, False, True])
    assert ((extents(always(coordinates(), 64, mixed))[0] < 0) == mixed).all()


def test_a_flip_is_an_exact_mirror_image():
    pixels = tiny.pixels(4)
    flipped = Augmentation(scale=(1.0, 1.0), stretch=1.0, flip=1.0)(pixels, tiny.SIDE, YES)
    torch.testing.assert_close(flipped, pixels.flip(-1).float(), rtol=0, atol=0.01)


def test_half_of_the_images_are_flipped_by_default():
    torch.manual_seed(0)
    width, height = extents(Augmentation()(coordinates(400), 32, torch.ones(400, dtype=torch.bool)))
    assert 150 < (width < 0).sum() < 250
    assert (height > 0).all(), "a vertical flip"


def test_crops_have_the_area_and_aspect_ratio_of_the_settings():
    torch.manual_seed(0)
    width, height = extents(Augmentation((0.3, 0.5), 1.5, 0.0)(coordinates(300), 64, torch.ones(300, dtype=torch.bool)))
    area, ratio = (width / 72) * (height / 72), width / height
    assert area.min() == pytest.approx(0.3, abs=0.02)
    assert area.max() == pytest.approx(0.5, abs=0.02)
    assert ratio.min() == pytest.approx(1 / 1.5, abs=0.03)
    assert ratio.max() == pytest.approx(1.5, abs=0.03)


def test_crops_are_within_the_canvas_and_reach_its_borders():
    torch.manual_seed(0)
    crops = Augmentation((0.4, 0.6), 1.2, 0.0)(coordinates(300), 64, torch.ones(300, dtype=torch.bool))
    left, right = crops[:, 0, 32, 0], crops[:, 0, 32, -1]
    assert (right - left > 30).all(), "pixels were reflected at the border"
    assert left.min() < 3
    assert right.max() > 68


def test_crops_depend_on_the_seed_and_differ_between_images():
    noisy, pixels = Augmentation(colour=0.4), coordinates()
    torch.manual_seed(1)
    first = noisy(pixels, 32, YES)
    second = noisy(pixels, 32, YES)
    torch.manual_seed(1)
    assert torch.equal(noisy(pixels, 32, YES), first)
    assert not torch.equal(second, first)
    assert not torch.equal(first[0], first[1])


@pytest.mark.parametrize("colour", [0.0, 0.2, 0.99])
def test_crops_are_floats_in_0_to_255_of_the_given_size(colour):
    crops = Augmentation(colour=colour)(tiny.pixels(4), 48, YES)
    assert crops.shape == (4, 3, 48, 48)
    assert crops.dtype == torch.float32
    assert crops.min() >= 0
    assert crops.max() <= 255


def test_colours_vary_within_the_setting():
    grey = torch.full((200, 3, 40, 40), 100, dtype=torch.uint8)
    may_flip = torch.ones(200, dtype=torch.bool)
    torch.testing.assert_close(PLAIN(grey, 40, may_flip), grey.float())
    torch.manual_seed(0)
    shades = Augmentation((1.0, 1.0), 1.0, 0.0, colour=0.3)(grey, 40, may_flip)[:, 0, 0, 0]
    assert 70 <= shades.min() < 75
    assert 125 < shades.max() <= 130


@pytest.mark.parametrize(
    "wrong", [{"scale": (1.0, 0.5)}, {"scale": (0.0, 1.0)}, {"stretch": 0.0}, {"flip": 2.0}, {"colour": 1.0}]
)
def test_a_setting_out_of_range_is_named(wrong):
    with pytest.raises(UserError, match=f"augmentation.{next(iter(wrong))}"):
        Augmentation(**wrong)


def painted(boxes: torch.Tensor, side: int = 72) -> torch.Tensor:
    """One canvas per box (B, 4) in shares: white in the box, black elsewhere."""
    centres = (torch.arange(side) + 0.5) / side
    x, y = ((centres >= boxes[:, None, n]) & (centres < boxes[:, None, n + 2]) for n in (0, 1))  # (B, side)
    return (255 * (y[:, :, None] & x[:, None, :])).to(torch.uint8)[:, None].expand(-1, 3, -1, -1)


def test_boxes_move_with_the_pixels():
    torch.manual_seed(0)
    corners = torch.rand(200, 2, 2).sort(dim=1).values
    boxes = torch.cat([corners[:, 0], (corners[:, 1] + 0.2).clamp(max=1)], dim=1)
    full = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(200, 4)
    may_flip = torch.ones(200, dtype=torch.bool)
    crops, cropped = Augmentation((0.3, 0.9), 1.3, 0.5).with_boxes(
        painted(boxes), 64, may_flip, torch.stack([full, boxes, 0 * boxes], dim=1)
    )
    assert torch.equal(cropped[:, 0], full)
    assert not cropped[:, 2].any(), "padding became a region"
    remains = cropped[:, 1].any(dim=1)
    assert 100 < remains.sum() < 200
    for crop, box in zip(crops[remains, 0] > 127, cropped[remains, 1] * 64, strict=True):
        y, x = crop.nonzero().T
        white = torch.stack([x.min(), y.min(), x.max() + 1, y.max() + 1]).float()
        torch.testing.assert_close(white, box, rtol=0, atol=1.8)  # a canvas pixel covers several of the crop
    visible = crops[~remains, 0].mean(dim=(1, 2)) / 255
    area = (boxes[~remains, 2] - boxes[~remains, 0]) * (boxes[~remains, 3] - boxes[~remains, 1])
    assert (visible * 0.3 < 0.11 * area + 0.02).all(), "a visible box was dropped"


def test_boxes_do_not_change_the_pixels():
    torch.manual_seed(3)
    alone = Augmentation(colour=0.2)(coordinates(), 32, YES)
    torch.manual_seed(3)
    with_boxes, _ = Augmentation(colour=0.2).with_boxes(coordinates(), 32, YES, torch.ones(4, 3, 4))
    assert torch.equal(with_boxes, alone)
