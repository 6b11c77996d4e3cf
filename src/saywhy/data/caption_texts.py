"""Captions without images, the training text of language models.

A source is recognised by its name and contents:

    FILE.txt           one caption per line
    FILE.tsv           columns separated by tabs: the first is the image, the last is the caption
    FILE.json          COCO's captions: `images` and `annotations`
    a data set         its folder, or its captions file (Karpathy's JSON, Flickr8k's captions.txt): the train split

A text file may be compressed (.gz).

A text corpus may contain captions of images on which captioners are evaluated: Flickr30k contains Flickr8k, and
COCO's own training and validation sets contain Karpathy's dev and test images. `image_key` finds an image under its
different names, so that its captions can be left out.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from saywhy.data.datasets import Dataset, read
from saywhy.errors import UserError
from saywhy.files import parse_json, read_text

_COCO = re.compile(r"(?:COCO_\w+?_)?0*(\d+)")  # 42, 000000000042, COCO_val2014_000000000042
_FLICKR = re.compile(r"0*(\d+)_[0-9a-f]{6,}(?:_\w+)?")  # 1000092795_ab12cd34ef
EVALUATION = ("dev", "test")


@dataclass(frozen=True)
class CaptionText:
    """One caption, and the name of its image; "" where the source does not say it."""

    image: str
    caption: str


def image_key(name: str) -> str:
    """The same key for the names that data sets give to one image: Flickr's and COCO's image numbers.

    >>> image_key("1000092795_ab12cd34ef.jpg") == image_key("1000092795")
    True
    >>> image_key("train2017/000000000042.jpg") == image_key("COCO_val2014_000000000042.jpg")
    True
    >>> image_key("my-dog.jpg")
    'my-dog'
    """
    path = PurePosixPath(name.strip())
    stem = path.stem if path.suffix.lower() in (".jpg", ".jpeg", ".png") else path.name
    match = _COCO.fullmatch(stem) or _FLICKR.fullmatch(stem)
    return match[1] if match else stem


def read_caption_texts(path: str | Path) -> list[CaptionText]:
    """The captions of a source; of a data set, those of its train split."""
    path = Path(path)
    if not path.exists():
        raise UserError(f"{path}: no such file or folder; check the spelling")
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = next((suffix for suffix in reversed(suffixes) if suffix != ".gz"), "")
    if path.is_dir():
        texts = _train_split(read(path))
    elif kind == ".tsv":
        texts = [CaptionText(columns[0] if columns[1:] else "", columns[-1]) for columns in _columns(path)]
    elif kind == ".json":
        texts = _json_captions(path)
    elif kind == ".txt":
        texts = _train_split(read(path)) if _is_flickr8k(path) else [CaptionText("", line) for line in _lines(path)]
    else:
        raise UserError(f"{path}: captions are read from .txt, .tsv (also .gz), COCO's .json, or a data set's folder")
    texts = [text for text in texts if text.caption.strip()]
    if not texts:
        raise UserError(f"{path}: it has no caption")
    return texts


def evaluation_images(data: Dataset) -> set[str]:
    """Keys of the images of the dev and test splits."""
    return {image_key(image.name) for image in data.images if image.split in EVALUATION}


def read_exclusions(path: str | Path, read_names: Callable[[Path], Sequence[str]]) -> set[str]:
    """Keys of the images to leave out: a data set's dev and test images, or the names of a list."""
    path = Path(path)
    if path.is_dir() or path.suffix == ".json":
        keys = evaluation_images(read(path))
        if not keys:
            raise UserError(f"{path}: this data set has no dev or test image to leave out")
        return keys
    return {image_key(name) for name in read_names(path)}


def without_images(texts: Sequence[CaptionText], keys: Collection[str]) -> list[CaptionText]:
    """The captions of other images; captions whose image is unknown are kept."""
    return [text for text in texts if not text.image or image_key(text.image) not in keys]


def _train_split(data: Dataset) -> list[CaptionText]:
    return [CaptionText(image.name, caption) for image in data.split("train").images for caption in image.captions]


def _is_flickr8k(path: Path) -> bool:
    return next(_lines(path), "").strip().lower() == "image,caption"


def _columns(path: Path) -> Iterator[list[str]]:
    return (line.split("\t") for line in _lines(path) if line.strip())


def _lines(path: Path) -> Iterator[str]:
    return iter(_text(path).splitlines())


def _text(path: Path) -> str:
    if path.suffix.lower() != ".gz":
        return read_text(path)
    try:
        return gzip.decompress(path.read_bytes()).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as gzip ({error}); download it again") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None


def _json_captions(path: Path) -> list[CaptionText]:
    contents = parse_json(_text(path), path, "correct it or download it again")
    images = contents.get("images") if isinstance(contents, dict) else None
    if isinstance(images, list) and any(isinstance(image, dict) and "sentences" in image for image in images[:1]):
        return _train_split(read(path))  # Karpathy's splits
    try:
        names = {image["id"]: str(image["file_name"]) for image in contents["images"]}
        return [
            CaptionText(names.get(entry["image_id"], str(entry["image_id"])), str(entry["caption"]))
            for entry in contents["annotations"]
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path}: not COCO's captions ({error!r}); expected images with file_name and annotations with caption"
        ) from None
