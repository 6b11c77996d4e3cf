"""Noun phrases of captions with the boxes of the objects they name, to compare explanations with.

    boxes.jsonl[.gz]     Flickr30k Entities (Plummer et al. 2017), one JSON object per line: phrases of the captions
    instances_*.json     COCO (Lin et al. 2014): the names of its 80 categories serve as phrases

Boxes are left, top, right, bottom as shares, 0–1, of the image's width and height.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from saywhy.data.images import names_of
from saywhy.data.region_files import ENTITIES_FILE
from saywhy.data.tokenizer import tokenize
from saywhy.errors import UserError
from saywhy.files import parse_json

_ENTITIES_FILES = (ENTITIES_FILE, ENTITIES_FILE.removesuffix(".gz"))
_COCO_FILE = re.compile(r"instances_[a-z]*(\d*)\.json")
_COCO_KINDS = {"person": "people", "animal": "animals", "vehicle": "vehicles"}
_UNEXPECTED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
PhrasesByImage = dict[str, tuple["Phrase", ...]]


@dataclass(frozen=True)
class Phrase:
    """Words that name an object, and the boxes of the object.

    Attributes:
        words: as the tokeniser gives them.
        kind: people, clothing, bodyparts, animals, vehicles, instruments, scene, other or notvisual.
        boxes: (n, 4) float32, n ≥ 1.
    """

    words: tuple[str, ...]
    kind: str
    boxes: np.ndarray


class Phrases:
    """The phrases of many images, by image name.

    Attributes:
        path: their file, or the folder of several files.
        key: a digest of the uncompressed files.
        are_coco: whether the files are COCO's, whose phrases are names of categories.
    """

    def __init__(self, *files: Path) -> None:
        self.path = files[0] if len(files) == 1 else files[0].parent
        self.are_coco = all(map(_is_coco, files))
        self._phrases: PhrasesByImage = {}
        digest = hashlib.blake2b(digest_size=16)
        for file in files:
            contents = _read_uncompressed(file)
            digest.update(contents)
            phrases = (_read_coco if _is_coco(file) else _read_entities)(file, contents)
            if not phrases:
                raise UserError(f"{file}: this file of phrases has no image; download it again")
            self._phrases |= phrases
        self.key = digest.hexdigest()

    def __contains__(self, name: str) -> bool:
        """Whether the files list an image, with or without boxes."""
        return any(alias in self._phrases for alias in names_of(name))

    def of(self, name: str) -> tuple[Phrase, ...]:
        """The phrases of an image that have boxes, in the order of the file; () if it has none."""
        return next((self._phrases[alias] for alias in names_of(name) if alias in self._phrases), ())


def find_phrases(root: Path, path: Path | None = None) -> Phrases | None:
    """The phrases in the file `path`, or in the data set's folder `root`; None if it has none."""
    if path is not None:
        return Phrases(Path(path))
    for name in _ENTITIES_FILES:
        if (root / name).is_file():
            return Phrases(root / name)
    files = _coco_files(root)
    return Phrases(*files) if files else None


def _coco_files(root: Path) -> list[Path]:
    """COCO's files of the latest year, in the first of the usual folders that has any."""
    for folder in (root, root / "annotations"):
        years = {file: match[1] for file in folder.glob("*.json") if (match := _COCO_FILE.fullmatch(file.name))}
        if years:
            return sorted(file for file, year in years.items() if year == max(years.values()))
    return []


def _is_coco(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".json")


def _read_uncompressed(path: Path) -> bytes:
    try:
        contents = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its name and permissions") from None
    if contents[:2] != b"\x1f\x8b":
        return contents
    try:
        return gzip.decompress(contents)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: damaged or cut short ({error}); download it again") from None


def _read_entities(path: Path, contents: bytes) -> PhrasesByImage:
    by_image: PhrasesByImage = {}
    for number, line in enumerate(contents.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            name, phrases = PurePosixPath(row["image"]), _entity_phrases(row)
        except _UNEXPECTED as error:
            fields = '"image", "width", "height" and "phrases" with "phrase", "type" and "boxes"'
            raise UserError(
                f"{path}, line {number}: not a JSON object with {fields} ({_detail(error)}); download it again, "
                "or give Flickr30k Entities as boxes.jsonl[.gz] or COCO's instances_*.json"
            ) from None
        by_image[str(name)] = phrases
        by_image.setdefault(name.name, phrases)
    return by_image


def _entity_phrases(row: Mapping[str, Any]) -> tuple[Phrase, ...]:
    size = row["width"], row["height"]
    phrases = (
        Phrase(tuple(tokenize(entity["phrase"])), _kind(entity["type"]), _shares(entity["boxes"], *size))
        for entity in row["phrases"]
        if entity.get("boxes")
    )
    return tuple(phrase for phrase in phrases if len(phrase.boxes))


def _kind(kinds: str | Sequence[str]) -> str:
    """The first of a phrase's types.

    >>> _kind("vehicles/scene"), _kind(["bodyparts", "people"])
    ('vehicles', 'bodyparts')
    """
    return (kinds if isinstance(kinds, str) else "/".join(kinds)).split("/")[0]


def _read_coco(path: Path, contents: bytes) -> PhrasesByImage:
    document = parse_json(contents, path, "download it again, or name a file of JSON lines .jsonl")
    try:
        return _coco_phrases(document)
    except _UNEXPECTED as error:
        expected = "images, categories and annotations with bbox, as in COCO's instances_val2017.json"
        raise UserError(f"{path}: unexpected contents ({_detail(error)}); give {expected}") from None


def _coco_phrases(document: Mapping[str, Any]) -> PhrasesByImage:
    """One phrase per category and image, with the boxes of all its instances, crowds included."""
    categories = {category["id"]: category for category in document["categories"]}
    boxes: dict[Any, dict[Any, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for annotation in document["annotations"]:
        x, y, width, height = annotation["bbox"]
        boxes[annotation["image_id"]][annotation["category_id"]].append([x, y, x + width, y + height])
    by_image: PhrasesByImage = {}
    for image in document["images"]:
        phrases = _category_phrases(image, boxes[image["id"]], categories)
        for name in names_of(image["file_name"]):  # one of them is its number, which is the same in all years
            by_image.setdefault(name, phrases)
    return by_image


def _category_phrases(
    image: Mapping[str, Any], boxes: Mapping[Any, list[Any]], categories: Mapping[Any, Mapping[str, str]]
) -> tuple[Phrase, ...]:
    size = image["width"], image["height"]
    phrases = (
        Phrase(tuple(tokenize(category["name"])), _coco_kind(category), _shares(boxes[number], *size))
        for number, category in ((number, categories[number]) for number in boxes)
    )
    return tuple(phrase for phrase in phrases if len(phrase.boxes))


def _coco_kind(category: Mapping[str, str]) -> str:
    return _COCO_KINDS.get(category.get("supercategory", ""), "other")


def _shares(boxes: Iterable[Sequence[float]], width: float, height: float) -> np.ndarray:
    """Boxes in pixels as shares, clipped; those without an area are dropped."""
    if not min(width, height) > 0:
        raise ValueError(f"{width:g} × {height:g} pixels")
    pixels = np.array(list(boxes), float)
    if pixels.shape[1:] != (4,) or not np.isfinite(pixels).all():
        raise ValueError("a box is left, top, right and bottom")
    shares = (pixels / [width, height, width, height]).clip(0, 1).astype(np.float32)
    return shares[(shares[:, 2:] > shares[:, :2]).all(axis=1)]


def _detail(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
