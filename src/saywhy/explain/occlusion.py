"""Occlusion: how much less likely each word becomes when a part of the image is hidden.

Zeiler and Fergus 2014 (https://arxiv.org/abs/1311.2901). A square window slides over the encoder's input and hides what
is under it by the mean colour; the caption stays the same. The value of a pixel is the mean fall of log p of the word
(with a contrast: of the difference of the two words' log p) over the windows that cover the pixel. All words of a
caption share the forward passes, one for each window: several times the cost of LRP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from operator import itemgetter

import torch
from torch import Tensor

from saywhy.captioners.base import Captioner
from saywhy.explain.targets import Targets

WINDOW, STRIDE = 1 / 6, 1 / 18
"""The side of the window and its step, as shares of the input's side: 48 and 16 of 288 pixels."""
MEAN = (124, 116, 104)
"""The colour of what is hidden: the mean of ImageNet's training images in RGB, on which the encoders were trained."""
FORWARD_BATCH = {"cpu": 16, "cuda": 256}
"""Images per forward pass; larger batches are slower on a CPU, because they exceed its caches."""


@torch.no_grad()
def occlusion(captioner: Captioner, pixels: Tensor, boxes: Tensor | None, targets: Targets) -> Tensor:
    """The maps of K words of images (B, 3, S, S): (K, B, S, S)."""
    masks = windows(pixels.shape[-1]).to(pixels.device)  # (W, S, S)
    coverage = masks.sum(dim=0).to(torch.float64)  # at least 1 everywhere
    maps = []
    for row in range(len(pixels)):
        one = _map_tensors(targets, itemgetter(slice(row, row + 1)))
        image_boxes = None if boxes is None else boxes[row : row + 1]
        before = _log_p(captioner, pixels[row : row + 1], image_boxes, one)  # (1, K)
        after = _masked_log_p(captioner, pixels[row], image_boxes, one, masks)  # (W, K)
        falls = (before - after).double()
        maps.append(torch.einsum("wk,wyx->kyx", falls, masks.double()) / coverage)
    return torch.stack(maps, dim=1).to(pixels.dtype if pixels.is_floating_point() else torch.float32)


def windows(side: int) -> Tensor:
    """The positions of the window on a square of this side, as masks (W, side, side) bool, that cover all of it.

    >>> windows(36).sum(dim=0).min().item()
    1
    """
    width, step = max(1, round(side * WINDOW)), max(1, round(side * STRIDE))
    starts = [*range(0, side - width, step), side - width]
    spans = torch.zeros(len(starts), side, dtype=torch.bool)
    for span, start in zip(spans, starts, strict=True):
        span[start : start + width] = True
    return (spans[:, None, :, None] & spans[None, :, None, :]).flatten(0, 1)


def _masked_log_p(
    captioner: Captioner, pixels: Tensor, boxes: Tensor | None, targets: Targets, masks: Tensor
) -> Tensor:
    """The scores of one image's words for every window, (W, K)."""
    mean = torch.tensor(MEAN, dtype=pixels.dtype, device=pixels.device).view(3, 1, 1)
    parts = []
    for part in masks.split(FORWARD_BATCH.get(pixels.device.type, 64)):
        masked = torch.where(part[:, None], mean, pixels)
        parts.append(_log_p(captioner, masked, boxes, targets))
    return torch.cat(parts)


def _log_p(captioner: Captioner, pixels: Tensor, boxes: Tensor | None, targets: Targets) -> Tensor:
    """log p of the words of one image's caption, given several images: (N, K)."""
    count = len(pixels)
    boxes = None if boxes is None else boxes.expand(count, *boxes.shape[1:])
    several = _map_tensors(targets, lambda part: part.expand(count, -1))
    logits, _ = captioner(captioner.encode(pixels, boxes), several.tokens)
    return several.log_p(logits, captioner.styles)


def _map_tensors(targets: Targets, change: Callable[[Tensor], Tensor]) -> Targets:
    """Targets with a function applied to each of their tensors."""
    names = ("tokens", "positions", "words", "contrast")
    subwords = targets.subwords
    if subwords is not None:
        subwords = replace(subwords, lengths=change(subwords.lengths), word_of=change(subwords.word_of))
    return replace(targets, **{name: change(getattr(targets, name)) for name in names}, labels=(), subwords=subwords)
