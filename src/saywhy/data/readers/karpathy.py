"""Karpathy's splits of Flickr8k, Flickr30k and COCO (Karpathy and Fei-Fei 2015).

One file, `dataset_flickr8k.json`, `dataset_flickr30k.json` or `dataset_coco.json`: a list `images`, each
with `filename`, `filepath` (COCO only: `train2014` or `val2014`), `split` and `sentences`, whose `raw` is the
caption. `val` is our dev. `restval`, COCO's validation images outside val and test, is trained on, as is
the custom.
"""

from __future__ import annotations

import re
from pathlib import Path

from saywhy.data.datasets import Dataset, readers
from saywhy.data.readers.common import find_image_folder, gather, opening, read_json, unexpected
from saywhy.data.splits import split_name
from saywhy.errors import UserError

_IMAGE_FOLDERS = ("", "Images", "images", "imgs", "Flicker8k_Dataset", "flickr30k-images", "flickr30k_images")
_MARKS = re.compile(r'"(sentids|sentences)"\s*:')


@readers.register("karpathy")
class Karpathy:
    """COCO keeps all captions of an image (five, rarely six or seven)."""

    layout = "dataset_flickr8k.json, dataset_flickr30k.json or dataset_coco.json by Karpathy"

    def recognises(self, root: Path, captions: Path | None = None) -> bool:
        """Look into the file's beginning, since the whole may be 150 MB."""
        there = captions or _captions(root)
        return there is not None and there.suffix == ".json" and bool(_MARKS.search(opening(there)))

    def read(self, root: Path, captions: Path | None = None, image_folder: Path | None = None) -> Dataset:
        """Read all images in the order of the file."""
        captions = captions or _captions(root)
        if captions is None:
            raise UserError(f"{root}: not Karpathy's splits; wanted {self.layout}")
        try:
            entries = {entry["filename"]: entry for entry in read_json(captions)["images"]}
            places = {name: Path(entry.get("filepath", ""), name) for name, entry in entries.items()}
            splits = {name: split_name(entry["split"]) for name, entry in entries.items()}
            spoken = [(name, each["raw"]) for name, entry in entries.items() for each in entry["sentences"]]
        except (KeyError, TypeError, AttributeError) as error:
            raise unexpected(captions, error, "images with filename, split and sentences") from None
        folder = find_image_folder(root, image_folder, _IMAGE_FOLDERS, places.values())
        return gather(root, spoken, split=splits.__getitem__, place=lambda name: folder / places[name])


def _captions(root: Path) -> Path | None:
    return next(iter(sorted(root.glob("dataset*.json"))), None)
