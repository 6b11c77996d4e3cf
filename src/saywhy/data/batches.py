"""Training batches: which captions come together, and the tensors they become.

A batch is a list of (image, caption) pairs. An image is loaded and encoded once, however many of its captions
are in the batch. Order depends on the seed and the epoch alone, so a resumed run sees what an unbroken one sees.
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

from saywhy.data.vocabulary import PAD, Vocabulary
from saywhy.registry import Registry

Pair = tuple[int, int]
Encoded = Sequence[Sequence[Sequence[int]]]  # numbers of each word of each caption of each image
Sampler = Callable[[Encoded, int, np.random.Generator], list[list[Pair]]]
samplers: Registry[Sampler] = Registry("kind of batches")

SIDES = ("left", "right")  # a mirror image makes these words false


@samplers.register("images")
def image_batches(captions: Encoded, size: int, random: np.random.Generator) -> list[list[Pair]]:
    """Batches of `size` images with all their captions, padded to the longest; the last one may be smaller."""
    order = random.permutation(len(captions)).tolist()
    chunks = [order[start : start + size] for start in range(0, len(order), size)]
    return [[(image, n) for image in chunk for n in range(len(captions[image]))] for chunk in chunks]


@samplers.register("equal-length")
def equal_length_batches(captions: Encoded, size: int, random: np.random.Generator) -> list[list[Pair]]:
    """Batches of `size` captions of one length, so that nothing is padded: the trick of Show, attend and tell."""
    by_length: dict[int, list[Pair]] = defaultdict(list)
    for image, own in enumerate(captions):
        for n, words in enumerate(own):
            by_length[len(words)].append((image, n))
    batches = []
    for length in sorted(by_length):
        pairs = [by_length[length][i] for i in random.permutation(len(by_length[length]))]
        batches += [sorted(pairs[start : start + size]) for start in range(0, len(pairs), size)]
    return [batches[i] for i in random.permutation(len(batches))]


@dataclass(frozen=True)
class Batch:
    """Captions and the images they belong to.

    Attributes:
        inputs: images (P, 3, S, S) uint8, or their features (P, L, D) where a cache or a dump holds them.
        mirror: (P,) whether a mirror image still fits the captions.
        words: (N, T) numbers, from `<start>` to `<end>`, padded.
        owner: (N,) which of the P images each caption belongs to.
        broken: images that could not be read. Their captions are all padding, so they teach nothing.
        boxes: (P, R, 4) of each image's regions, padded with zeros; None where there is a grid.
    """

    inputs: Tensor
    mirror: Tensor
    words: Tensor
    owner: Tensor
    broken: tuple[str, ...] = ()
    boxes: Tensor | None = None

    def to(self, device: torch.device) -> Self:
        """The same batch on another device."""
        return self._each(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        """For faster copies to a GPU; the data loader calls it."""
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        parts: dict[str, Any] = {name: change(part) for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **parts)


class Inputs(Protocol):
    """Where a batch's images, or their features, come from."""

    def rows(self, images: Sequence[int]) -> tuple[np.ndarray, list[str]]:
        """The inputs of these images (P, …), and the lines of those that are broken ("" for the others)."""


class Boxes(Protocol):
    """Where a batch's boxes come from."""

    def rows(self, images: Sequence[int]) -> np.ndarray:
        """The boxes of these images, (P, R, 4)."""


class Batches(TorchDataset):
    """Turns lists of pairs into batches; give the lists to a `DataLoader` as its sampler, with batch_size=None."""

    def __init__(
        self,
        captions: Sequence[Sequence[Sequence[str]]],
        vocabulary: Vocabulary,
        inputs: Inputs,
        boxes: Boxes | None = None,
    ) -> None:
        self.encoded = [[vocabulary.encode(words) for words in own] for own in captions]
        self.mirror = [not any(word in SIDES for words in own for word in words) for own in captions]
        self.inputs = inputs
        self.boxes = boxes

    def order(self, kind: str, size: int, seed: int, epoch: int) -> list[list[Pair]]:
        """An epoch's batches."""
        return samplers[kind](self.encoded, size, np.random.default_rng((seed, epoch)))

    def __getitem__(self, pairs: Sequence[Pair]) -> Batch:
        if not pairs:  # a process with no share in a small batch still takes part in the step, with padding alone
            padding = self[[(0, 0)]]
            return replace(padding, words=torch.full_like(padding.words, PAD))
        images = sorted({image for image, _ in pairs})
        place = {image: row for row, image in enumerate(images)}
        inputs, faults = self.inputs.rows(images)
        numbers = [self.encoded[image][n] for image, n in pairs]
        words = torch.full((len(pairs), max(map(len, numbers))), PAD)
        for row, ((image, _), each) in enumerate(zip(pairs, numbers, strict=True)):
            if not faults[place[image]]:
                words[row, : len(each)] = torch.tensor(each)
        return Batch(
            inputs=torch.from_numpy(inputs),
            mirror=torch.tensor([self.mirror[image] for image in images]),
            words=words,
            owner=torch.tensor([place[image] for image, _ in pairs], dtype=torch.long),
            broken=tuple(fault for fault in faults if fault),
            boxes=torch.from_numpy(self.boxes.rows(images)) if self.boxes else None,
        )


def share(batches: list[list[Pair]], rank: int, of: int) -> list[list[Pair]]:
    """Process `rank`'s part of every batch, cut between images; together the parts are the batches."""
    if of == 1:
        return batches
    parts = []
    for pairs in batches:
        images = sorted({image for image, _ in pairs})
        mine = set(images[rank::of])
        parts.append([pair for pair in pairs if pair[0] in mine])
    return parts
