"""Caption a whole split and score it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from saywhy.captioners.base import Captioner
from saywhy.data.datasets import CaptionedImage
from saywhy.data.loading import ImageFiles, SizedInputs, default_workers, in_order
from saywhy.data.preprocess import Preprocessing
from saywhy.data.region_inputs import GivenRegions, RegionBoxes, RegionVectors
from saywhy.data.vocabulary import Vocabulary
from saywhy.decoding import Caption, Decoding, decode
from saywhy.errors import UserError


@dataclass(frozen=True)
class Captioned:
    """Captions of a split, by the image's name, and the images that could not be read."""

    captions: dict[str, Caption]
    broken: tuple[str, ...]


def caption_split(
    captioner: Captioner,
    vocabulary: Vocabulary,
    preprocessing: Preprocessing,
    images: Sequence[CaptionedImage],
    decoding: Decoding,
    *,
    batch: int = 32,
    workers: int | None = None,
    regions: GivenRegions | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Captioned:
    """Freely decoded captions of all images: nothing of a reference is shown to the model.

    With oracle regions (see `data.region_tables`) its boxes are: what is then said is said of parts people chose.
    """
    inputs, boxes = _looked_at(captioner, preprocessing, images, regions)
    was_training = captioner.training
    captioner.eval()
    captions: dict[str, Caption] = {}
    broken: list[str] = []
    for numbers, rows, faults in in_order(inputs, batch, default_workers() if workers is None else workers):
        broken += [fault for fault in faults if fault]
        whole = [row for row, fault in enumerate(faults) if not fault]
        if whole:
            with torch.inference_mode():
                # of one size: a new one costs a GPU seconds
                pixels = _filled_up(rows[whole], min(batch, len(images)))
                where = None
                if boxes:
                    there = torch.from_numpy(boxes.rows([numbers[row] for row in whole]))
                    where = _filled_up(there, len(pixels)).to(captioner.device)
                features = captioner.encode(pixels.to(captioner.device), where)
                found = decode(captioner, features, decoding)
            for place, row in enumerate(whole):
                name = images[numbers[row]].name
                captions[name] = Caption.of(found[place], vocabulary, features, place, source=name)
        progress(numbers[-1] + 1, len(images))
    captioner.train(was_training)
    if not captions:
        raise UserError(f"none of the {len(images)} images could be read; the first: {broken[0]}")
    return Captioned(captions, tuple(broken))


def _looked_at(
    captioner: Captioner, preprocessing: Preprocessing, images: Sequence[CaptionedImage], regions: GivenRegions | None
) -> tuple[SizedInputs, RegionBoxes | None]:
    """Pixels or, where regions come with their vectors, those; and boxes, where there are regions."""
    side = preprocessing.size
    names, paths = [each.name for each in images], [Path(each.path) for each in images]
    files = ImageFiles(paths, (3, side, side), preprocessing, preprocessing.at_least)
    if regions is None:
        return files, None
    if regions.are_features:
        return RegionVectors(regions, names, captioner.encoder.width), RegionBoxes(regions, names, paths, None)
    return files, RegionBoxes(regions, names, paths, preprocessing)


def _filled_up(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Rows (P, …) and the first of them again, until there are `count`."""
    return torch.cat([rows, rows[:1].expand(count - len(rows), *rows.shape[1:])])
