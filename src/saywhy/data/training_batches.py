"""Training batches: which captions are in one batch, and their tensors.

A batch is a list of (image, caption) pairs of indices. An image is loaded and encoded once, however many of its
captions are in the batch. The order depends only on the seed and the epoch, so a resumed run continues with the same
batches as an uninterrupted one.

`Batches` makes the tensors of a batch from files, in worker processes. `ResidentBatches` gathers them from tables in
the device's memory, padded to one shape for all batches, which a GPU needs to run at its speed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
Sampler = Callable[[TokenIds, Sequence[int], int, np.random.Generator], list[list[Pair]]]
"""(token ids, images of the epoch, size, random numbers) ↦ batches. An image may be in an epoch more than once."""
samplers: Registry[Sampler] = Registry("kind of batches")

SIDES = ("left", "right")
"""Words that a horizontal flip makes wrong."""


@samplers.register("images")
def image_batches(
    captions: TokenIds, images: Sequence[int], size: int, random: np.random.Generator
) -> list[list[Pair]]:
    """Batches of `size` images with all their captions, padded to the longest; the last batch may be smaller."""
    order = [images[position] for position in random.permutation(len(images)).tolist()]
    batches = [order[start : start + size] for start in range(0, len(order), size)]
    return [[(image, caption) for image in batch for caption in range(len(captions[image]))] for batch in batches]


@samplers.register("equal-length")
def equal_length_batches(
    captions: TokenIds, images: Sequence[int], size: int, random: np.random.Generator
) -> list[list[Pair]]:
    """Batches of `size` captions of equal length, which need no padding, as in *Show, attend and tell*."""
    by_length: dict[int, list[Pair]] = defaultdict(list)
    for image in images:
        for caption, tokens in enumerate(captions[image]):
            by_length[len(tokens)].append((image, caption))
    batches = []
    for length in sorted(by_length):
        pairs = [by_length[length][i] for i in random.permutation(len(by_length[length]))]
        batches += [sorted(pairs[start : start + size]) for start in range(0, len(pairs), size)]
    return [batches[i] for i in random.permutation(len(batches))]


@samplers.register("one-caption")
def one_caption_batches(
    captions: TokenIds, images: Sequence[int], size: int, random: np.random.Generator
) -> list[list[Pair]]:
    """Batches of `size` images with one of their captions each, drawn anew for every epoch.

    All batches are complete, unless there is only one: the images that are left over are in other epochs.
    """
    order = [images[position] for position in random.permutation(len(images)).tolist()]
    drawn = random.random(len(order)).tolist()
    pairs = [(image, int(share * len(captions[image]))) for image, share in zip(order, drawn, strict=True)]
    complete = max(1, len(pairs) // size) * size
    return [pairs[start : start + size] for start in range(0, min(complete, len(pairs)), size)]


@dataclass(frozen=True)
class Batch:
    """Captions and the images they belong to.

    Attributes:
        inputs: images (P, 3, S, S) uint8, or their features (P, L, D) from a cache or a file of regions.
        may_flip: (P,) whether the captions stay correct if the image is flipped horizontally.
        tokens: (N, T) token ids from `<start>` to `<end>`, padded; the longest captions come first.
        image_index: (N,) which of the P images each caption belongs to.
        unreadable: error lines of images that could not be read; their captions are padding and add nothing to a loss.
        boxes: (P, R, 4) of each image's regions, padded with zeros; None on a grid.
        active: for each of the T − 1 words that are read, how many captions, from the first, predict a word after it;
            at first all N (see `captioners.base.active_rows`).
    """

    inputs: Tensor
    may_flip: Tensor
    tokens: Tensor
    image_index: Tensor
    unreadable: tuple[str, ...] = ()
    boxes: Tensor | None = None
    active: tuple[int, ...] | None = None

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
        inputs: the images or features; None if they are in the device's memory (`ResidentBatches`).
        boxes: the region boxes; None on a grid.
        styles: the style of each image's captions; None for a vocabulary without styles.
        weights: how often each image is in an epoch; None for once.
    """

    def __init__(
        self,
        captions: Sequence[Sequence[Sequence[str]]],
        vocabulary: Vocabulary,
        inputs: Inputs | None,
        boxes: Boxes | None = None,
        styles: Sequence[str] | None = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        styles = styles or [""] * len(captions)
        self.token_ids = [
            [vocabulary.encode(tokens, style) for tokens in image]
            for image, style in zip(captions, styles, strict=True)
        ]
        self.may_flip = [not any(token in SIDES for tokens in image for token in tokens) for image in captions]
        self.inputs = inputs
        self.boxes = boxes
        self.weights = np.array(weights) if weights and set(weights) != {1.0} else None

    def order(self, kind: str, size: int, seed: int, epoch: int) -> list[list[Pair]]:
        """The batches of an epoch."""
        random = np.random.default_rng((seed, epoch))
        return samplers[kind](self.token_ids, self._images(random), size, random)

    def _images(self, random: np.random.Generator) -> Sequence[int]:
        """The images of an epoch: an image of weight 2.3 is in it twice, and with probability 0.3 a third time."""
        count = len(self.token_ids)
        if self.weights is None:
            return range(count)
        times = np.floor(self.weights + random.random(count)).astype(int)
        return np.repeat(np.arange(count), times).tolist()

    def __getitem__(self, pairs: Sequence[Pair]) -> Batch:
        if not pairs:  # a process without a part of a small batch still takes part in the step, with padding only
            padding = self[[(0, 0)]]
            return replace(padding, tokens=torch.full_like(padding.tokens, PAD))
        images = sorted({image for image, _ in pairs})
        row_of = {image: row for row, image in enumerate(images)}
        assert self.inputs is not None, "inputs in the device's memory are gathered there"
        inputs, errors = self.inputs.rows(images)
        captions = [
            [] if errors[row_of[image]] else self.token_ids[image][caption] for image, caption in pairs
        ]  # no words of an unreadable image
        longest_first = sorted(range(len(pairs)), key=lambda row: -len(captions[row]))
        pairs, captions = [pairs[row] for row in longest_first], [captions[row] for row in longest_first]
        width = max(len(self.token_ids[image][caption]) for image, caption in pairs)
        tokens = torch.full((len(pairs), width), PAD)
        for row, caption in enumerate(captions):
            tokens[row, : len(caption)] = torch.tensor(caption, dtype=torch.long)
        return Batch(
            inputs=torch.from_numpy(inputs),
            may_flip=torch.tensor([self.may_flip[image] for image in images]),
            tokens=tokens,
            image_index=torch.tensor([row_of[image] for image, _ in pairs], dtype=torch.long),
            unreadable=tuple(error for error in errors if error),
            boxes=torch.from_numpy(self.boxes.rows(images)) if self.boxes else None,
            active=active_captions(np.array([len(caption) for caption in captions]), width),
        )


def active_captions(lengths: np.ndarray, width: int) -> tuple[int, ...]:
    """`Batch.active` of captions with these numbers of tokens, markers included, in a batch `width` tokens wide.

    >>> active_captions(np.array([5, 4, 3]), 5)
    (3, 3, 2, 1)
    """
    counts = [int((lengths > position).sum()) for position in range(1, width)]
    return (len(lengths), *(max(count, 1) for count in counts[1:]))


class ResidentBatches:
    """Makes a `Batch` from tables in the device's memory, all of one shape.

    A batch is planned on the host (`plan`: which rows of the tables, as numbers) and gathered on the device (`gather`).
    The shape, `images` and `active`, must hold every batch that is planned; `fit` enlarges it. Padding is captions
    without words, which add nothing to a loss.

    Args:
        batches: the captions, and which images may be flipped.
        inputs: the images or features of all images, on the device.
        errors: an error line for each image that could not be read.
    """

    MULTIPLE = 64
    """Numbers of captions are rounded up to multiples of this, so that few batches need a larger shape."""

    def __init__(self, batches: Batches, inputs: Tensor, errors: Mapping[int, str]) -> None:
        self.inputs = inputs
        self.may_flip = torch.tensor(batches.may_flip, device=inputs.device)
        captions = [[] if n in errors else tokens for n, image in enumerate(batches.token_ids) for tokens in image]
        self.lengths = np.array([len(tokens) for tokens in captions] + [0])
        self.first = np.cumsum([0] + [len(image) for image in batches.token_ids])
        table = np.full((len(captions) + 1, self.lengths.max()), PAD)
        for row, tokens in enumerate(captions):
            table[row, : len(tokens)] = tokens
        self.tokens = torch.from_numpy(table).to(inputs.device)
        self.images = 0
        self.active: tuple[int, ...] = ()

    def fit(self, batches: Sequence[Sequence[Pair]]) -> None:
        """Enlarge the shape, where needed, to hold these batches."""
        for pairs in batches:
            images, rows = self._rows(pairs)
            lengths = self.lengths[rows]
            active = [self._rounded(count) for count in active_captions(lengths, max(lengths.max(), 2))]
            self.images = max(self.images, len(np.unique(images)))
            longest = max(len(active), len(self.active))
            both = (np.pad(np.array(counts, int), (0, longest - len(counts))) for counts in (active, self.active))
            self.active = tuple(np.maximum(*both).tolist())

    def _rounded(self, count: int) -> int:
        return -(-count // self.MULTIPLE) * self.MULTIPLE

    def _rows(self, pairs: Sequence[Pair]) -> tuple[np.ndarray, np.ndarray]:
        images, captions = np.array(pairs).T
        return images, self.first[images] + captions

    def plan(self, pairs: Sequence[Pair]) -> np.ndarray:
        """The rows of the tables that a batch needs: its images, its captions, and the image of each caption."""
        images, rows = self._rows(pairs)
        own_images, image_index = np.unique(images, return_inverse=True)
        longest_first = np.argsort(-self.lengths[rows], kind="stable")
        padding = self.active[0] - len(rows)
        return np.concatenate(
            [
                np.pad(own_images, (0, self.images - len(own_images))),
                np.pad(rows[longest_first], (0, padding), constant_values=len(self.lengths) - 1),
                np.pad(image_index[longest_first], (0, padding)),
            ]
        )

    def gather(self, plan: Tensor) -> Batch:
        """The batch of a plan on the device; tensor operations only."""
        images, rows, image_index = plan.split([self.images, self.active[0], self.active[0]])
        return Batch(
            inputs=self.inputs[images],
            may_flip=self.may_flip[images],
            tokens=self.tokens[rows, : len(self.active) + 1],
            image_index=image_index,
            active=self.active,
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
