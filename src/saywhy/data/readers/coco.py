"""COCO Captions (Chen et al. 2015), or any JSON file in its form.

    {"images": [{"id": 1, "file_name": "dog.jpg"}, …],
     "annotations": [{"id": 7, "image_id": 1, "caption": "A dog runs."}, …]}

The split of an image is, in this order: the one in the file's name (`captions_val2017.json` is our dev,
`captions_test.json` our test); the field `split` of the image; or, if the file names no split at all, whichever split
is asked for. COCO has no test split of its own, because it does not publish the captions of its test images; the usual
test split is in Karpathy's `dataset_coco.json`.

Of COCO's own files the first five captions of each image by annotation id are kept: a few images have six or seven,
and every image should weigh the same in training and have as many references.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from pathlib import Path
from typing import Any

from saywhy.data.datasets import ANY_SPLIT, Dataset, readers, split_name
from saywhy.data.readers.common import TABLE_NAMES, find_image_folder, group_by_image, unexpected_contents
from saywhy.errors import UserError
from saywhy.files import read_json

CAPTIONS_PER_IMAGE = 5

_SPLIT_FILE = re.compile(r"captions_(?:train|val|dev|test)(\d*)\.json")
_OWN_FILE = re.compile(r"captions_(?:train|val)20\d\d\.json")
_FIELDS = [re.compile(rb'"' + name + rb'"\s*:') for name in (b"annotations", b"file_name", b"caption")]


@readers.register("coco")
class Coco:
    """In a folder with files of several years, the latest year is read."""

    layout = "annotations/captions_train2014.json and captions_val2014.json (or 2017) by COCO, or a JSON file like them"

    def recognises(self, root: Path, captions: Path | None = None) -> bool:
        """By the file's name, or by its fields."""
        if captions is not None:
            return bool(_SPLIT_FILE.fullmatch(captions.name)) or _has_coco_fields(captions)
        return bool(_caption_files(root))

    def read(self, root: Path, captions: Path | None = None, image_folder: Path | None = None) -> Dataset:
        """Read the file that was named, or all files of the latest year."""
        files = [captions] if captions else _caption_files(root)
        if not files:
            raise UserError(f"{root}: not COCO; expected {self.layout}")
        if len(files) > 1 and not all(_SPLIT_FILE.fullmatch(file.name) for file in files):
            names = ", ".join(file.name for file in files)
            raise UserError(f"{root}: several captions files ({names}); give one of them instead of the folder")
        pairs, splits, paths, notes = [], {}, {}, []
        for file in files:
            captions_of, splits_of = _read_file(file)
            folder = _image_folder(file, root, image_folder, captions_of)
            notes += _notes(file, captions_of, splits_of)
            limit = CAPTIONS_PER_IMAGE if _OWN_FILE.fullmatch(file.name) else None
            pairs += [(name, caption) for name, texts in captions_of.items() for caption in texts[:limit]]
            splits.update(splits_of)
            paths.update({name: folder / name for name in captions_of})
        return group_by_image(root, pairs, split=splits.__getitem__, path=paths.__getitem__, notes=dict.fromkeys(notes))


def _caption_files(root: Path) -> list[Path]:
    """Files of the latest year whose names say their split, train first; else any file in COCO's form."""
    files = [file for folder in (root, root / "annotations") for file in sorted(folder.glob("*.json"))]
    years = {file: match[1] for file in files if (match := _SPLIT_FILE.fullmatch(file.name))}
    if years:
        return [file for file, year in years.items() if year == max(years.values())]
    if any((root / name).is_file() for name in TABLE_NAMES):  # those are read by `folder`
        return []
    return [file for file in files if _has_coco_fields(file)]


def _has_coco_fields(path: Path) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
            return path.suffix == ".json" and all(field.search(contents) for field in _FIELDS)
    except (OSError, ValueError):  # ValueError: an empty file cannot be mapped
        return False


def _image_folder(file: Path, root: Path, image_folder: Path | None, names: dict[str, list[str]]) -> Path:
    folder = file.stem.removeprefix("captions_")  # train2014
    usual = (folder, f"images/{folder}", "images", "Images", "")
    return find_image_folder(image_folder or root, None, usual, names)


def _notes(file: Path, captions: dict[str, list[str]], splits: dict[str, str]) -> list[str]:
    notes = []
    if ANY_SPLIT in splits.values():
        notes.append(f"{file.name} names no split: its images serve every split that is asked for")
    if _OWN_FILE.fullmatch(file.name):
        notes.append("COCO has no test captions of its own; val is dev")
        if extra := sum(max(0, len(texts) - CAPTIONS_PER_IMAGE) for texts in captions.values()):
            notes.append(f"{file.name}: captions beyond {CAPTIONS_PER_IMAGE} per image dropped: {extra}")
    return notes


def _read_file(file: Path) -> tuple[dict[str, list[str]], dict[str, str]]:
    """The captions of each image in the order of their ids, and its split; images in the order of the file."""
    contents = read_json(file, "correct it or download it again")
    try:
        captions: dict[Any, list[str]] = {image["id"]: [] for image in contents["images"]}
        for annotation in sorted(contents["annotations"], key=lambda annotation: annotation.get("id", 0)):
            if not isinstance(annotation["caption"], str):
                raise TypeError(f"a caption that is not text: {annotation['caption']!r}")
            captions.setdefault(annotation["image_id"], []).append(annotation["caption"])
        by_name = {str(image["file_name"]): captions[image["id"]] for image in contents["images"]}
        return by_name, _splits(file, contents["images"])
    except (KeyError, TypeError, AttributeError) as error:
        raise unexpected_contents(file, error, "images with file_name and annotations with caption") from None


def _splits(file: Path, images: list[dict[str, Any]]) -> dict[str, str]:
    split = _split_in_name(file)
    if split is None and not any("split" in image for image in images):
        split = ANY_SPLIT
    return {str(image["file_name"]): split or split_name(str(image.get("split") or "")) for image in images}


def _split_in_name(file: Path) -> str | None:
    """The only split that the file's name contains as a word.

    >>> _split_in_name(Path("captions_val2017.json")), _split_in_name(Path("captions.json"))
    ('dev', None)
    """
    splits = set()
    for word in re.findall("[a-z]+", file.stem.lower()):
        with contextlib.suppress(UserError):
            splits.add(split_name(word))
    return splits.pop() if len(splits) == 1 else None
