"""How the relevance of a word is shown on pixels.

With R (S, S) the relevance of pixels, C (L,) that of the features, Ĉ (S, S) its bilinear enlargement to the encoder's
input, and (·)⁺, (·)⁻ the positive and negative parts:

    seen       R                                      what the encoder's filters respond to
    features   C                                      which features: coarse, and its sum is the image's share
    why        a R⁺ Ĉ⁺ − b R⁻ Ĉ⁻                      where the two agree
    apart      R − the mean R of the caption's other words
    centred    why − the mean `why` of the caption's other words

a and b are such that the positive part of `why` adds up to Σ C⁺ and its negative part to Σ C⁻. `why` therefore adds up
to the image's share of the evidence budget, though most of R is absorbed by the encoder. `centred` adds up to that
share less the mean share of the other words.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saywhy.data.preprocess import boxes_on_image, upsample_grid
from saywhy.encoders.base import Features
from saywhy.explain.passes import Relevance

COMPARING = ("apart", "centred")
"""Maps that compare a word with the others of its caption."""


def lrp_map(kind: str, relevance: Relevance, features: Features) -> Tensor:
    """A map of K words of B images, (K, B, S, S); (K, B, L) for "features" and for precomputed features.

    For the maps in `COMPARING`, this is what `less_others` compares.
    """
    if relevance.pixels is None or kind == "features":
        return relevance.features
    if kind in ("seen", "apart"):
        return relevance.pixels
    return why(relevance.pixels, relevance.features, over_pixels(relevance.features, features, relevance.pixels))


def why(pixels: Tensor, features: Tensor, enlarged: Tensor) -> Tensor:
    """`why` of relevance R (…, S, S), C (…, L) and Ĉ (…, S, S): (…, S, S)."""
    positive, negative = (
        _scaled((sign * pixels).clamp(min=0), (sign * enlarged).clamp(min=0), (sign * features).clamp(min=0))
        for sign in (1, -1)
    )
    return positive - negative


def _scaled(fine: Tensor, coarse: Tensor, features: Tensor) -> Tensor:
    """The product of two parts that are not negative, scaled to add up to Σ features.

    Where the product is 0 everywhere, the coarse part alone is scaled; where that is 0 too, a constant.
    """
    total = features.double().sum(dim=-1)[..., None, None]
    scaled = torch.zeros_like(fine)
    is_missing = torch.ones_like(total, dtype=torch.bool)
    for candidate in (_unit(fine) * _unit(coarse), coarse, torch.ones_like(fine)):
        sums = candidate.double().sum(dim=(-2, -1), keepdim=True)
        usable = is_missing & (sums > 0)
        scaled = torch.where(usable, candidate.double() * (total / torch.where(usable, sums, 1)), scaled)
        is_missing = is_missing & ~usable
    return scaled.to(fine)


def _unit(values: Tensor) -> Tensor:
    """Values divided by their maximum, so that products neither vanish nor overflow."""
    highest = values.amax(dim=(-2, -1), keepdim=True)
    return values / torch.where(highest > 0, highest, 1)


def less_others(values: Tensor, positions: Tensor, caption: Tensor, lengths: Sequence[int]) -> Tensor:
    """Maps of words less the mean map of the other words of their captions; unchanged where there is no other.

    Args:
        values: of K words of each of B images, (K, B, …).
        positions: of these words in their captions, (B, K).
        caption: the maps of all words of the captions, (T, B, …).
        lengths: the number of words of each caption.
    """
    images = []
    for row, length in enumerate(lengths):
        words = caption[:length, row]
        others = (words.sum(dim=0) - words) / max(length - 1, 1)  # of each position, (T, …)
        images.append(values[:, row] - others[positions[row].clamp(max=length - 1)])  # positions are padded
    return torch.stack(images, dim=1)


def over_pixels(values: Tensor, features: Features, pixels: Tensor) -> Tensor:
    """Values of features (K, B, L), enlarged to the encoder's input: (K, B, S, S), like `pixels`."""
    S = pixels.shape[-1]
    if features.grid is not None:
        return torch.from_numpy(upsample_grid(values.unflatten(-1, features.grid).cpu().numpy(), S)).to(pixels)
    assert features.boxes is not None
    boxes = features.boxes.float().cpu().numpy()  # (B, L, 4)
    size, crop = (S, S), (0, 0, S, S)
    maps = [
        [torch.from_numpy(boxes_on_image(row, image, size, crop)) for row, image in zip(word, boxes, strict=True)]
        for word in values.cpu().numpy()
    ]
    return torch.stack([torch.stack(word) for word in maps]).to(pixels)
