"""Caption a whole split and score it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from saywhy.captioners.base import Captioner
from saywhy.data.datasets import Picture
from saywhy.data.inputs import PictureFiles, default_workers, in_order
from saywhy.data.preprocess import Preprocessing
from saywhy.data.vocabulary import Vocabulary
from saywhy.decoding import Caption, Decoding, decode
from saywhy.errors import UserError


@dataclass(frozen=True)
class Captioned:
    """Captions of a split, by the picture's name, and the pictures that could not be read."""

    captions: dict[str, Caption]
    broken: tuple[str, ...]


def caption_split(
    captioner: Captioner,
    vocabulary: Vocabulary,
    preprocessing: Preprocessing,
    pictures: Sequence[Picture],
    decoding: Decoding,
    *,
    batch: int = 32,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Captioned:
    """Freely decoded captions of all pictures: nothing of a reference is shown to the model."""
    side = preprocessing.size
    files = PictureFiles([Path(each.path) for each in pictures], (3, side, side), preprocessing, preprocessing.at_least)
    was_training = captioner.training
    captioner.eval()
    captions: dict[str, Caption] = {}
    broken: list[str] = []
    for numbers, rows, faults in in_order(files, batch, default_workers() if workers is None else workers):
        broken += [fault for fault in faults if fault]
        whole = [row for row, fault in enumerate(faults) if not fault]
        if whole:
            with torch.inference_mode():
                pixels = torch.zeros(min(batch, len(pictures)), *rows.shape[1:], dtype=torch.uint8)
                pixels[: len(whole)] = torch.as_tensor(rows)[whole]  # of one size: a new one costs a GPU seconds
                annotations = captioner.encode(pixels.to(captioner.device))
                found = decode(captioner, annotations, decoding)
            for place, row in enumerate(whole):
                name = pictures[numbers[row]].name
                captions[name] = Caption.of(found[place], vocabulary, annotations, place, image=name)
        progress(numbers[-1] + 1, len(pictures))
    captioner.train(was_training)
    if not captions:
        raise UserError(f"none of the {len(pictures)} pictures could be read; the first: {broken[0]}")
    return Captioned(captions, tuple(broken))
