"""The dev images of a judge's training: in the device's memory, with the first caption of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from saywhy.data.datasets import Dataset
from saywhy.data.loading import ImageFiles
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import Vocabulary, tokenize
from saywhy.errors import UserError
from saywhy.judges.dual_encoder import DualEncoder
from saywhy.judges.judging import CaptionMatch, embed_captions, embed_pixels
from saywhy.training.resident import load_resident

BATCH = 100  # images that are encoded together
LEAST_IMAGES = 2  # with one image there is nothing to confuse it with


@dataclass(frozen=True)
class DevSplit:
    """Images (N, 3, S, S) of one data set, and the words of the first caption of each."""

    name: str
    pixels: Tensor
    captions: list[list[str]]

    def match(self, model: DualEncoder, vocabulary: Vocabulary) -> CaptionMatch:
        """How well the captions fit their images."""
        images = embed_pixels(model, self.pixels, BATCH)
        return CaptionMatch.of(embed_captions(model, vocabulary, self.captions), images)


class DevImages:
    """Up to `most` images of each dev split, evenly spaced.

    Attributes:
        unreadable: one line for each image that could not be read; it is left out.
    """

    def __init__(
        self, splits: Sequence[Dataset], preprocessing: Preprocessing, most: int, device: torch.device, workers: int
    ) -> None:
        self.unreadable: list[str] = []
        self.splits = [self._load(split.evenly_spaced(most), preprocessing, device, workers) for split in splits]

    def _load(self, split: Dataset, preprocessing: Preprocessing, device: torch.device, workers: int) -> DevSplit:
        paths, side = [image.path for image in split.images], preprocessing.size
        files = ImageFiles(paths, (3, side, side), preprocessing, preprocessing.min_side)
        pixels, errors = load_resident(files, device, workers, None, lambda event: None)
        self.unreadable += errors.values()
        rows = [row for row in range(len(paths)) if row not in errors]
        if len(rows) < LEAST_IMAGES:
            raise UserError(f"{split.root}: fewer than {LEAST_IMAGES} dev images can be read, such as {paths[0]}")
        captions = [tokenize(split.images[row].captions[0]) for row in rows]
        return DevSplit(split.name, pixels[torch.tensor(rows, device=device)], captions)

    @property
    def counts(self) -> dict[str, int]:
        """The number of images of each data set."""
        return {split.name: len(split.captions) for split in self.splits}

    def scores(self, model: DualEncoder, vocabulary: Vocabulary) -> dict[str, Any]:
        """Recall, median rank and similarity; their means, if there are several data sets."""
        matches = {split.name: split.match(model, vocabulary) for split in self.splits}
        mean = CaptionMatch.mean(list(matches.values())).as_dict()
        if len(matches) == 1:
            return dict(mean)
        return {**mean, "data": {name: match.as_dict() for name, match in matches.items()}}
