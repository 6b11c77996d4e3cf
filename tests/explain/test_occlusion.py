"""Occlusion equals loops over windows, each of which hides a part of the image from the model itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from saywhy.data.tokenizer import PAD, START, UNK
from saywhy.explain.composites import Composite
from saywhy.explain.methods import attribute
from saywhy.explain.occlusion import MEAN, occlusion, windows
from tracing import assert_close, inputs, make_targets

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("side", [1, 7, 18, 64])
def test_windows_cover_every_pixel_and_are_squares_of_one_size(side):
    masks = windows(side)
    assert masks.any(dim=0).all()
    assert len({int(mask.sum()) for mask in masks}) == 1
    assert masks.any(dim=2).sum(dim=1).tolist() == masks.any(dim=1).sum(dim=1).tolist()


@torch.no_grad()
@pytest.mark.parametrize("with_contrast", [False, True])
def test_maps_equal_loops_over_windows_and_words(with_contrast):
    captioner = tiny.sensitive_captioner("ada-lstm").double()
    pixels, boxes = inputs(captioner, "grid", 2)
    targets = make_targets(tiny.captions(2, length=4)[:, :-1], (0, 2), (6, 9))
    if with_contrast:
        targets = replace(targets, contrast=torch.full_like(targets.words, 8))
    values = occlusion(captioner, pixels, boxes, targets)
    masks = windows(pixels.shape[-1])
    for row in range(2):

        def logits_of(image, k, row=row):
            logits, _ = captioner(captioner.encode(image[None]), targets.tokens[row : row + 1])
            return logits[0, targets.positions[row, k]].float()

        for k in range(2):
            total = torch.zeros(pixels.shape[-2:], dtype=torch.float64)
            for mask in masks:
                hidden = pixels[row].clone()
                for channel, colour in enumerate(MEAN):
                    hidden[channel][mask] = colour
                before, after = (allowed_log_p(logits_of(image, k)) for image in (pixels[row], hidden))
                fall = (before - after)[targets.words[row, k]]
                if with_contrast:
                    fall -= (before - after)[8]
                total[mask] += fall
            assert_close(values[k, row], total / masks.sum(dim=0), within=1e-5)


def allowed_log_p(logits):
    """log p over the words that a caption may contain."""
    return logits.index_fill(0, torch.tensor([PAD, START, UNK]), -torch.inf).log_softmax(-1)


def test_it_runs_only_if_it_is_named_and_without_gradients():
    captioner = tiny.sensitive_captioner("ada-lstm")
    pixels, boxes = inputs(captioner, "grid", 1)
    targets = make_targets(tiny.captions(1, length=4)[:, :-1], (0, 2), (6, 9))
    attributions = attribute(captioner, pixels, boxes, targets, ("lrp", "occlusion"), Composite())
    assert set(attributions.maps) == {"lrp", "occlusion"}
    assert set(attributions.earlier_words) == {"lrp"}
    assert attributions.maps["occlusion"].shape == attributions.maps["lrp"].shape
    assert attributions.maps["occlusion"].std() > 0
