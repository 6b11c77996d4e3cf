"""Training batches: which captions are in one batch, and their tensors.

A batch is a list of (image, caption) pairs of indices. An image is loaded and encoded once, however many of its
captions are in the batch. The order depends only on the seed and the epoch, so a resumed run continues with the same
batches as an uninterrupted one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from saywhy.data.tokenizer import PAD, Vocabulary
from saywhy.registry import Registry

Pair = tuple[int, int]
"""Index of an image, and of one of its captions."""
TokenIds = Sequence[Sequence[Sequence[int]]]
"""Token ids of all captions, by image, caption and position."""
Sampler = Callable[[TokenIds, int, np.random.Generator], list[list[Pair]]]
samplers: Registry[Sampler] = Registry("kind of batches")

SIDES = ("left", "right")
"""Words that a horizontal flip makes wrong."""


@samplers.register("images")
def image_batches(captions: TokenIds, size: int, random: np.random.Generator) -> list[list[Pair]]:
    """Batches of `size` images with all their captions, padded to the longest; the last batch may be smaller."""
    order = random.permutation(len(captions)).tolist()
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    return [[(image, caption) for image in batch for caption in range(len(captions[image]))] for batch in batches]


@samplers.register("equal-length")
def equal_length_batches(captions: TokenIds, size: int, random: np.random.Generator) -> list[list[Pair]]:
    """Batches of `size` captions of equal length, which need no padding, as in *Show, attend and tell*."""
    by_length: dict[int, list[Pair]] = defaultdict(list)
    for image, image_captions in enumerate(captions):
        for caption, tokens in enumerate(image_captions):
            by_length[len(tokens)].append((image, caption))
    batches = []
    for length in sorted(by_length):
        pairs = [by_length[length][i] for i in random.permutation(len(by_length[length]))]
        batches += [sorted(pairs[start : start + size]) for start in range(0, len(pairs), size)]
    return [batches[i] for i in random.permutation(len(batches))]


@dataclass(frozen=True)
class Batch:
    """Captions and the images they belong to.

    Attributes:
        inputs: images (P, 3, S, S) uint8, or their features (P, L, D) from a cache or a file of regions.
        may_flip: (P,) whether the captions stay correct if the image is flipped horizontally.
        tokens: (N, T) token ids from `<start>` to `<end>`, padded.
        image_index: (N,) which of the P images each caption belongs to.
        unreadable: error lines of images that could not be read; their captions are padding and add nothing to a loss.
        boxes: (P, R, 4) of each image's regions, padded with zeros; None on a grid.
    """

    inputs: Tensor
    may_flip: Tensor
    tokens: Tensor
    image_index: Tensor
    unreadable: tuple[str, ...] = ()
    boxes: Tensor | None = None

    def to(self, device: torch.device) -> Self:
        """The same batch on another device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """The same batch in pinned memory, for faster copies to a GPU; the data loader calls it."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Self:
        tensors: dict[str, Any] = {
            name: function(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **tensors)


class Inputs(Protocol):
    """A source of images, or of their features, by index."""

    def rows(self, indices: Sequence[int], /) -> tuple[np.ndarray, list[str]]:
        """The inputs of these images (P, …), and an error line for each ("" for a readable one)."""


class Boxes(Protocol):
    """A source of region boxes, by index."""

    def rows(self, indices: Sequence[int], /) -> np.ndarray:
        """The boxes of these images, (P, R, 4)."""


class Batches(TorchDataset):
    """Makes a `Batch` from a list of pairs.

    Args:
        captions: tokens of all captions, by image, caption and position.
        vocabulary: their token ids.
        inputs: the images or features.
        boxes: the region boxes; None on a grid.
    """

    def __init__(
        self,
        captions: Sequence[Sequence[Sequence[str]]],
        vocabulary: Vocabulary,
        inputs: Inputs,
        boxes: Boxes | None = None,
    ) -> None:
        self.token_ids = [[vocabulary.encode(tokens) for tokens in image] for image in captions]
        self.may_flip = [not any(token in SIDES for tokens in image for token in tokens) for image in captions]
        self.inputs = inputs
        self.boxes = boxes

    def order(self, kind: str, size: int, seed: int, epoch: int) -> list[list[Pair]]:
        """The batches of an epoch."""
        return samplers[kind](self.token_ids, size, np.random.default_rng((seed, epoch)))

    def __getitem__(self, pairs: Sequence[Pair]) -> Batch:
        if not pairs:  # a process without a part of a small batch still takes part in the step, with padding only
            padding = self[[(0, 0)]]
            return replace(padding, tokens=torch.full_like(padding.tokens, PAD))
        images = sorted({image for image, _ in pairs})
        row_of = {image: row for row, image in enumerate(images)}
        inputs, errors = self.inputs.rows(images)
        captions = [self.token_ids[image][caption] for image, caption in pairs]
        tokens = torch.full((len(pairs), max(map(len, captions))), PAD)
        for row, ((image, _), caption) in enumerate(zip(pairs, captions, strict=True)):
            if not errors[row_of[image]]:
                tokens[row, : len(caption)] = torch.tensor(caption)
        return Batch(
            inputs=torch.from_numpy(inputs),
            may_flip=torch.tensor([self.may_flip[image] for image in images]),
            tokens=tokens,
            image_index=torch.tensor([row_of[image] for image, _ in pairs], dtype=torch.long),
            unreadable=tuple(error for error in errors if error),
            boxes=torch.from_numpy(self.boxes.rows(images)) if self.boxes else None,
        )


def split_batches(batches: list[list[Pair]], rank: int, processes: int) -> list[list[Pair]]:
    """The part of every batch that process `rank` computes, divided by image; together the parts are the batches."""
    if processes == 1:
        return batches
    parts = []
    for pairs in batches:
        images = sorted({image for image, _ in pairs})
        own_images = set(images[rank::processes])
        parts.append([pair for pair in pairs if pair[0] in own_images])
    return parts
