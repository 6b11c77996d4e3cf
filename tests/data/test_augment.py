"""Training crops, on canvases whose every pixel says where it stands."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import tiny
from saywhy.data.augment import Augmentation
from saywhy.errors import UserError

PLAIN = Augmentation(scale=(1.0, 1.0), stretch=1.0, flip=0.0)
YES, NO = torch.ones(4, dtype=torch.bool), torch.zeros(4, dtype=torch.bool)


def maps(count: int = 4, side: int = 72) -> torch.Tensor:
    """Red is the column, green the row."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return torch.stack([x, y, torch.zeros_like(x)]).to(torch.uint8).expand(count, 3, side, side)


def extents(crops: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Signed width and height (B,) of the part of a map that each crop shows."""
    n = crops.shape[-1]
    x, y = crops[:, 0, n // 2], crops[:, 1, :, n // 2]
    low, high = n // 4, 3 * n // 4
    return (x[:, high] - x[:, low]) * n / (high - low), (y[:, high] - y[:, low]) * n / (high - low)


def test_with_all_switched_off_canvases_of_the_right_size_pass_unchanged():
    pixels = tiny.pixels(4)
    torch.testing.assert_close(PLAIN(pixels, tiny.SIDE, YES), pixels.float(), rtol=0, atol=0.01)


def test_with_all_switched_off_it_is_a_plain_resize():
    expected = F.interpolate(maps().float(), size=64, mode="bilinear", align_corners=False)
    torch.testing.assert_close(PLAIN(maps(), 64, YES), expected, rtol=0, atol=0.01)


def test_what_may_not_be_mirrored_never_is():
    always = Augmentation(scale=(0.5, 1.0), flip=1.0)
    for seed in range(5):
        torch.manual_seed(seed)
        assert (extents(always(maps(), 64, NO))[0] > 0).all()
    mixed = torch.tensor([True, False, False, True])
    assert ((extents(always(maps(), 64, mixed))[0] < 0) == mixed).all()


def test_a_flip_is_the_exact_mirror_image():
    pixels = tiny.pixels(4)
    flipped = Augmentation(scale=(1.0, 1.0), stretch=1.0, flip=1.0)(pixels, tiny.SIDE, YES)
    torch.testing.assert_close(flipped, pixels.flip(-1).float(), rtol=0, atol=0.01)


def test_half_of_the_images_are_flipped_by_default():
    torch.manual_seed(0)
    width, height = extents(Augmentation()(maps(400), 32, torch.ones(400, dtype=torch.bool)))
    assert 150 < (width < 0).sum() < 250
    assert (height > 0).all(), "nothing stands on its head"


def test_crops_keep_the_share_and_the_shape_they_are_told():
    torch.manual_seed(0)
    width, height = extents(Augmentation((0.3, 0.5), 1.5, 0.0)(maps(300), 64, torch.ones(300, dtype=torch.bool)))
    share, shape = (width / 72) * (height / 72), width / height
    assert share.min() == pytest.approx(0.3, abs=0.02)
    assert share.max() == pytest.approx(0.5, abs=0.02)
    assert shape.min() == pytest.approx(1 / 1.5, abs=0.03)
    assert shape.max() == pytest.approx(1.5, abs=0.03)


def test_crops_lie_within_the_canvas_and_reach_its_rims():
    torch.manual_seed(0)
    crops = Augmentation((0.4, 0.6), 1.2, 0.0)(maps(300), 64, torch.ones(300, dtype=torch.bool))
    left, right = crops[:, 0, 32, 0], crops[:, 0, 32, -1]
    assert (right - left > 30).all(), "a reflected rim would fold the map"
    assert left.min() < 3
    assert right.max() > 68


def test_the_seed_decides_and_images_differ():
    noisy, pixels = Augmentation(colour=0.4), maps()
    torch.manual_seed(1)
    one = noisy(pixels, 32, YES)
    other = noisy(pixels, 32, YES)
    torch.manual_seed(1)
    assert torch.equal(noisy(pixels, 32, YES), one)
    assert not torch.equal(other, one)
    assert not torch.equal(one[0], one[1])


@pytest.mark.parametrize("colour", [0.0, 0.2, 0.99])
def test_pixels_stay_between_0_and_255_in_floats_of_the_size_asked_for(colour):
    crops = Augmentation(colour=colour)(tiny.pixels(4), 48, YES)
    assert crops.shape == (4, 3, 48, 48)
    assert crops.dtype == torch.float32
    assert crops.min() >= 0
    assert crops.max() <= 255


def test_colours_vary_no_further_than_told_and_not_at_all_without():
    grey = torch.full((200, 3, 40, 40), 100, dtype=torch.uint8)
    every = torch.ones(200, dtype=torch.bool)
    torch.testing.assert_close(PLAIN(grey, 40, every), grey.float())
    torch.manual_seed(0)
    shades = Augmentation((1.0, 1.0), 1.0, 0.0, colour=0.3)(grey, 40, every)[:, 0, 0, 0]
    assert 70 <= shades.min() < 75
    assert 125 < shades.max() <= 130


@pytest.mark.parametrize(
    "wrong", [{"scale": (1.0, 0.5)}, {"scale": (0.0, 1.0)}, {"stretch": 0.0}, {"flip": 2.0}, {"colour": 1.0}]
)
def test_a_setting_out_of_range_is_named(wrong):
    with pytest.raises(UserError, match=f"augmentation.{next(iter(wrong))}"):
        Augmentation(**wrong)


def painted(boxes: torch.Tensor, side: int = 72) -> torch.Tensor:
    """A canvas a box (B, 4) in shares: white in the box, black elsewhere."""
    middles = (torch.arange(side) + 0.5) / side
    x, y = ((middles >= boxes[:, None, n]) & (middles < boxes[:, None, n + 2]) for n in (0, 1))  # (B, side)
    return (255 * (y[:, :, None] & x[:, None, :])).to(torch.uint8)[:, None].expand(-1, 3, -1, -1)


def test_boxes_move_with_the_pixels():
    torch.manual_seed(0)
    corners = torch.rand(200, 2, 2).sort(dim=1).values
    boxes = torch.cat([corners[:, 0], (corners[:, 1] + 0.2).clamp(max=1)], dim=1)
    whole = torch.tensor([0.0, 0.0, 1.0, 1.0]).expand(200, 4)
    every = torch.ones(200, dtype=torch.bool)
    crops, moved = Augmentation((0.3, 0.9), 1.3, 0.5).with_boxes(
        painted(boxes), 64, every, torch.stack([whole, boxes, 0 * boxes], dim=1)
    )
    assert torch.equal(moved[:, 0], whole)
    assert not moved[:, 2].any(), "an absent region comes to be"
    stays = moved[:, 1].any(dim=1)
    assert 100 < stays.sum() < 200
    for crop, box in zip(crops[stays, 0] > 127, moved[stays, 1] * 64, strict=True):
        y, x = crop.nonzero().T
        found = torch.stack([x.min(), y.min(), x.max() + 1, y.max() + 1]).float()
        torch.testing.assert_close(found, box, rtol=0, atol=1.8)  # a pixel of the canvas is more than one of the crop
    lost = crops[~stays, 0].mean(dim=(1, 2)) / 255
    area = (boxes[~stays, 2] - boxes[~stays, 0]) * (boxes[~stays, 3] - boxes[~stays, 1])
    assert (lost * 0.3 < 0.11 * area + 0.02).all(), "a box vanished that the crop shows"


def test_boxes_do_not_change_the_pixels():
    torch.manual_seed(3)
    alone = Augmentation(colour=0.2)(maps(), 32, YES)
    torch.manual_seed(3)
    with_boxes, _ = Augmentation(colour=0.2).with_boxes(maps(), 32, YES, torch.ones(4, 3, 4))
    assert torch.equal(with_boxes, alone)
