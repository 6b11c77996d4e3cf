"""Files of generated captions. Three forms are read, recognised by content:

- one JSON object per line, as `saywhy caption --json` prints them: `{"image": "1.jpg", "caption": "a dog"}`,
  or with `"words": ["a", "dog"]`, which are then not tokenised again;
- COCO's results: `[{"image_id": 42, "caption": "a dog"}, …]`;
- COCO's annotations: `{"images": [{"id": 42, "file_name": "1.jpg"}, …], "annotations": [{"image_id": 42, …}, …]}`.

An image is found in the dataset by the end of its path. An `image_id` is found by the file's own table of images, or
by file names such as 42.jpg, 000000000042.jpg and COCO_val2014_000000000042.jpg.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from saywhy.data.datasets import Dataset
from saywhy.data.tokenizer import as_text, tokenize
from saywhy.errors import UserError
from saywhy.files import is_unicode, parse_json, read_text, write_text

COCO_NAME = re.compile(r"(?:COCO_\w+_)?0*(\d+)")


def read_captions(path: Path, data: Dataset) -> dict[str, Sequence[str]]:
    """The words of each image's caption; every image of the dataset must have exactly one caption."""
    names = {image.name for image in data.images}
    ids = _names_by_id(names)
    captions: dict[str, Sequence[str]] = {}
    for image, words in _entries(path):
        name = _name_in(names, image) if isinstance(image, str) else None
        name = name or ids.get(str(image))
        if name in captions:
            raise UserError(f"{path}: two captions for {name}; leave one")
        if name is not None:
            captions[name] = words
    if missing := [name for name in names if name not in captions]:
        raise UserError(f"{path}: no caption for {len(missing)} of {len(names)} images, such as {min(missing)}")
    return {image.name: captions[image.name] for image in data.images}


def write_captions(path: Path, captions: Mapping[str, Sequence[str]]) -> None:
    """Write one JSON object per line, with the image's name, its caption and the caption's words."""
    lines = [
        json.dumps({"image": name, "caption": as_text(words), "words": list(words)}) for name, words in captions.items()
    ]
    write_text(path, "\n".join(lines) + "\n")


def _name_in(names: set[str], image: str) -> str | None:
    """The name in the dataset of an image at this path, whatever folder it is in."""
    parts = PurePosixPath(image).parts
    ends = ("/".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if end in names), None)


def _names_by_id(names: set[str]) -> dict[str, str]:
    """COCO's image ids, as the file names hold them."""
    matches = {name: COCO_NAME.fullmatch(PurePosixPath(name).stem) for name in names}
    return {match[1]: name for name, match in matches.items() if match}


def _entries(path: Path) -> Iterator[tuple[str | int, Sequence[str]]]:
    """The image (a path or an id) and the words of each caption in a file."""
    for where, entry, file_names in _objects(path):
        try:
            image, words = _entry(entry, file_names)
        except (KeyError, TypeError, AttributeError):
            raise UserError(
                f'{path}, {where}: not a JSON object with "image" (or "image_id") and "caption" (or "words")'
            ) from None
        if not all(map(is_unicode, words)):
            raise UserError(f"{path}, {where}: half of a surrogate pair (such as \\ud800); correct it")
        yield image, words


def _objects(path: Path) -> Iterator[tuple[str, Any, dict[Any, str]]]:
    """The JSON objects of a file, one per caption: where each is, the object, and file names by image id."""
    text = read_text(path)
    try:
        contents = json.loads(text)
    except RecursionError:
        raise UserError(f"{path}: JSON nested too deeply; correct or replace it") from None
    except ValueError:  # several objects: one per line
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                yield f"line {number}", parse_json(line, f"{path}, line {number}"), {}
        return
    file_names: dict[Any, str] = {}
    if isinstance(contents, dict) and "annotations" in contents:
        file_names, contents = _file_names(path, contents), contents["annotations"]
    entries = contents if isinstance(contents, list) else [contents]
    for number, entry in enumerate(entries, start=1):
        yield f"entry {number}", entry, file_names


def _file_names(path: Path, contents: dict[str, Any]) -> dict[Any, str]:
    try:
        return {image["id"]: str(image["file_name"]) for image in contents.get("images") or ()}
    except (KeyError, TypeError):
        raise UserError(f'{path}: an entry of "images" has no "id" or no "file_name"') from None


def _entry(entry: dict[str, Any], file_names: dict[Any, str]) -> tuple[str | int, Sequence[str]]:
    image = entry["image"] if "image" in entry else file_names.get(entry["image_id"], entry["image_id"])
    if not isinstance(image, str | int):
        raise TypeError
    if not entry.get("words"):
        return image, tokenize(_text(entry["caption"]))
    return image, [_text(word["word"] if isinstance(word, dict) else word) for word in entry["words"]]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
