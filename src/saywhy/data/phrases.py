"""Noun phrases of captions and the boxes of what they name, to hold explanations against.

    boxes.jsonl[.gz]     Flickr30k Entities (Plummer et al. 2017), a JSON object a line: the phrases people wrote
    instances_*.json     COCO (Lin et al. 2014): the names of 80 categories stand for phrases

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

from saywhy.data.region_files import BESIDE
from saywhy.data.region_tables import names_of
from saywhy.data.regions import has_area
from saywhy.data.tokenizer import tokenize
from saywhy.errors import UserError

_USUAL = (BESIDE, BESIDE.removesuffix(".gz"))
_INSTANCES = re.compile(r"instances_[a-z]*(\d*)\.json")
_KINDS_IN_COCO = {"person": "people", "animal": "animals", "vehicle": "vehicles"}
_WRONG = (ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True)
class Phrase:
    """Words that name something, and where it is.

    Attributes:
        words: as the metrics cut them.
        kind: people, clothing, bodyparts, animals, vehicles, instruments, scene, other or notvisual.
        boxes: (n, 4) float32, n ≥ 1.
    """

    words: tuple[str, ...]
    kind: str
    boxes: np.ndarray


class Phrases:
    """Phrases by the name of an image.

    Attributes:
        path: the file they are from, or the folder where they are from several.
        key: a digest of what the files hold, packed or not.
    """

    def __init__(self, *files: Path) -> None:
        self.path = files[0] if len(files) == 1 else files[0].parent
        self._phrases: dict[str, tuple[Phrase, ...]] = {}
        digest = hashlib.blake2b(digest_size=16)
        for file in files:
            contents = _contents(file)
            digest.update(contents)
            found = (_of_coco if _is_coco(file) else _of_entities)(file, contents)
            if not found:
                raise UserError(f"{file}: not one image in this file of phrases; download it again")
            self._phrases |= found
        self.key = digest.hexdigest()

    def of(self, name: str) -> tuple[Phrase, ...]:
        """The phrases of an image that have boxes, in the order of the file; () where it has none."""
        return next((self._phrases[each] for each in names_of(name) if each in self._phrases), ())


def find_phrases(root: Path, given: Path | None = None) -> Phrases | None:
    """The phrases in the file that was given or beside the data in `root`; None where there are none."""
    if given is not None:
        return Phrases(Path(given))
    if usual := next((root / name for name in _USUAL if (root / name).is_file()), None):
        return Phrases(usual)
    files = _instances(root)
    return Phrases(*files) if files else None


def _instances(root: Path) -> list[Path]:
    """COCO's files of the latest year, in the first of the usual folders that has any."""
    for folder in (root, root / "annotations"):
        years = {file: match[1] for file in folder.glob("*.json") if (match := _INSTANCES.fullmatch(file.name))}
        if years:
            return sorted(file for file, year in years.items() if year == max(years.values()))
    return []


def _is_coco(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith(".json")


def _contents(path: Path) -> bytes:
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


def _of_entities(path: Path, contents: bytes) -> dict[str, tuple[Phrase, ...]]:
    found: dict[str, tuple[Phrase, ...]] = {}
    for number, line in enumerate(contents.split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            name, phrases = PurePosixPath(row["image"]), _written(row)
        except _WRONG as error:
            wanted = '"image", "width", "height" and "phrases" with "phrase", "type" and "boxes"'
            raise UserError(
                f"{path}, line {number}: not a JSON object with {wanted} ({_detail(error)}); download it again, "
                "or give Flickr30k Entities as boxes.jsonl[.gz] or COCO's instances_*.json"
            ) from None
        found[str(name)] = phrases
        found.setdefault(name.name, phrases)
    return found


def _written(row: Mapping[str, Any]) -> tuple[Phrase, ...]:
    size = row["width"], row["height"]
    every = (
        Phrase(tuple(tokenize(each["phrase"])), _kind(each["type"]), _shares(each["boxes"], *size))
        for each in row["phrases"]
        if each.get("boxes")
    )
    return tuple(phrase for phrase in every if len(phrase.boxes))


def _kind(kinds: str | Sequence[str]) -> str:
    """One of the types of a phrase: the first, of "vehicles/scene" the vehicles.

    >>> _kind("vehicles/scene"), _kind(["bodyparts", "people"])
    ('vehicles', 'bodyparts')
    """
    return (kinds if isinstance(kinds, str) else "/".join(kinds)).split("/")[0]


def _of_coco(path: Path, contents: bytes) -> dict[str, tuple[Phrase, ...]]:
    try:
        return _categorised(json.loads(contents))
    except json.JSONDecodeError as error:
        hint = "download it again, or name a file of JSON lines .jsonl"
        raise UserError(f"{path}, line {error.lineno}: malformed JSON ({error.msg}); {hint}") from None
    except _WRONG as error:
        wanted = "images, categories and annotations with bbox, as in COCO's instances_val2017.json"
        raise UserError(f"{path}: not the contents expected ({_detail(error)}); give {wanted}") from None


def _categorised(held: Mapping[str, Any]) -> dict[str, tuple[Phrase, ...]]:
    """One phrase for each category in an image, with the boxes of all its instances, crowds among them."""
    categories = {each["id"]: each for each in held["categories"]}
    boxes: dict[Any, dict[Any, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for each in held["annotations"]:
        x, y, width, height = each["bbox"]
        boxes[each["image_id"]][each["category_id"]].append([x, y, x + width, y + height])
    found: dict[str, tuple[Phrase, ...]] = {}
    for image in held["images"]:
        phrases = _named(image, boxes[image["id"]], categories)
        for name in names_of(image["file_name"]):  # among them its number, which all years share
            found.setdefault(name, phrases)
    return found


def _named(
    image: Mapping[str, Any], boxes: Mapping[Any, list[Any]], categories: Mapping[Any, Mapping[str, str]]
) -> tuple[Phrase, ...]:
    size = image["width"], image["height"]
    every = (
        Phrase(tuple(tokenize(category["name"])), _kind_in_coco(category), _shares(boxes[number], *size))
        for number, category in ((number, categories[number]) for number in boxes)
    )
    return tuple(phrase for phrase in every if len(phrase.boxes))


def _kind_in_coco(category: Mapping[str, str]) -> str:
    return _KINDS_IN_COCO.get(category.get("supercategory", ""), "other")


def _shares(boxes: Iterable[Sequence[float]], width: float, height: float) -> np.ndarray:
    """Boxes in pixels as shares, clipped; those without an area are left out."""
    if not min(width, height) > 0:
        raise ValueError(f"{width:g} × {height:g} pixels")
    pixels = np.array(list(boxes), float)
    if pixels.shape[1:] != (4,) or not np.isfinite(pixels).all():
        raise ValueError("a box is left, top, right and bottom")
    shares = (pixels / [width, height, width, height]).clip(0, 1).astype(np.float32)
    return shares[has_area(shares)]


def _detail(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
