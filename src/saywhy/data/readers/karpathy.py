"""Karpathy's splits of Flickr8k, Flickr30k and COCO (Karpathy and Fei-Fei 2015).

One file, `dataset_flickr8k.json`, `dataset_flickr30k.json` or `dataset_coco.json`: a list `images`, each with
`filename`, `filepath` (COCO only: `train2014` or `val2014`), `split` and `sentences`, whose `raw` is the caption.
`val` is our dev. `restval`, COCO's validation images outside val and test, is trained on, as is usual.
"""

from __future__ import annotations

import re
from pathlib import Path

from saywhy.data.datasets import Dataset, readers, split_name
from saywhy.data.readers.common import find_image_folder, group_by_image, read_beginning, unexpected_contents
from saywhy.errors import UserError
from saywhy.files import read_json

_IMAGE_FOLDERS = ("", "Images", "images", "imgs", "Flicker8k_Dataset", "flickr30k-images", "flickr30k_images")
_FIELDS = re.compile(r'"(sentids|sentences)"\s*:')


@readers.register("karpathy")
class Karpathy:
    """All captions of an image are kept (five; in COCO a few images have six or seven)."""

    layout = "dataset_flickr8k.json, dataset_flickr30k.json or dataset_coco.json by Karpathy"

    def recognises(self, root: Path, captions: Path | None = None) -> bool:
        """By field names at the beginning of the file, which can have 150 MB."""
        path = captions or _captions_file(root)
        return path is not None and path.suffix == ".json" and bool(_FIELDS.search(read_beginning(path)))

    def read(self, root: Path, captions: Path | None = None, image_folder: Path | None = None) -> Dataset:
        """Read all images in the order of the file."""
        captions = captions or _captions_file(root)
        if captions is None:
            raise UserError(f"{root}: not Karpathy's splits; expected {self.layout}")
        try:
            entries = {entry["filename"]: entry for entry in read_json(captions, "download it again")["images"]}
            paths = {name: Path(entry.get("filepath", ""), name) for name, entry in entries.items()}
            splits = {name: split_name(entry["split"]) for name, entry in entries.items()}
            pairs = [(name, sentence["raw"]) for name, entry in entries.items() for sentence in entry["sentences"]]
            if not all(isinstance(caption, str) for _, caption in pairs):
                raise TypeError("a caption that is not text")
        except (KeyError, TypeError, AttributeError) as error:
            raise unexpected_contents(captions, error, "images with filename, split and sentences") from None
        folder = find_image_folder(root, image_folder, _IMAGE_FOLDERS, paths.values())
        return group_by_image(root, pairs, split=splits.__getitem__, path=lambda name: folder / paths[name])


def _captions_file(root: Path) -> Path | None:
    return next(iter(sorted(root.glob("dataset*.json"))), None)
