"""COCO Captions (Chen et al. 2015) in its own layout: `annotations/captions_{train,val}{2014,2017}.json`.

The train file is our train, the val file our dev. There is no test: COCO keeps the captions of its test
images to itself. For the customary test split use Karpathy's `dataset_coco.json`.

A few images have six or seven captions; the first five by annotation id are kept, so that every image
counts the same in training and has as many references as the next.
"""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from saywhy.data.datasets import Dataset, readers
from saywhy.data.readers.common import find_image_folder, gather, read_json, unexpected
from saywhy.errors import UserError

CAPTIONS_PER_IMAGE = 5

_FILE = re.compile(r"captions_(train|val)(\d*)\.json")


@readers.register("coco")
class Coco:
    """Of a folder with the files of several years the latest year is read."""

    layout = "annotations/captions_train2014.json and captions_val2014.json (or 2017) by COCO"

    def recognises(self, root: Path, captions: Path | None = None) -> bool:
        """Go by the files' names."""
        return bool(_FILE.fullmatch(captions.name) if captions else _caption_files(root))

    def read(self, root: Path, captions: Path | None = None, image_folder: Path | None = None) -> Dataset:
        """Read train and val, or the one file that was named."""
        files = [captions] if captions else _caption_files(root)
        if not files:
            raise UserError(f"{root}: not COCO; wanted {self.layout}")
        spoken, splits, places, notes = [], {}, {}, ["COCO has no test captions of its own; val is dev"]
        for file in files:
            said = _captions_of(file)
            folder = _folder_of(file, root, image_folder, said)
            cut = sum(max(0, len(captions) - CAPTIONS_PER_IMAGE) for captions in said.values())
            notes += [f"{file.name}: captions beyond five an image left out: {cut}"] if cut else []
            for name, captions_of in said.items():
                spoken += [(name, caption) for caption in captions_of[:CAPTIONS_PER_IMAGE]]
                splits[name], places[name] = _split_of(file), folder / name
        return gather(root, spoken, split=splits.__getitem__, place=places.__getitem__, notes=notes)


def _caption_files(root: Path) -> list[Path]:
    """Find the latest year's files, train before val."""
    matches = [
        (match[2], file)
        for folder in (root, root / "annotations")
        for file in sorted(folder.glob("captions_*.json"))
        if (match := _FILE.fullmatch(file.name))
    ]
    latest = max((year for year, _ in matches), default="")
    return [file for year, file in matches if year == latest]


def _split_of(file: Path) -> str:
    return "dev" if "_val" in file.name else "train"


def _folder_of(file: Path, root: Path, image_folder: Path | None, names: dict[str, list[str]]) -> Path:
    folder = file.stem.removeprefix("captions_")  # train2014
    usual = (folder, f"images/{folder}", "images", "")
    return find_image_folder(image_folder or root, None, usual, names)


def _captions_of(file: Path) -> dict[str, list[str]]:
    """Read the captions of each image in the order of their ids; images in the order of the file."""
    contents = read_json(file)
    by_image: dict[Any, list[tuple[int, str]]] = defaultdict(list)
    try:
        for annotation in contents["annotations"]:
            by_image[annotation["image_id"]].append((annotation["id"], annotation["caption"]))
        return {
            image["file_name"]: [caption for _, caption in sorted(by_image[image["id"]])]
            for image in contents["images"]
        }
    except (KeyError, TypeError) as error:
        raise unexpected(file, error, "images with file_name and annotations with caption") from None
