"""What the readers share: text that is read with care, places to look, captions gathered by image."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.splits import SPLITS
from saywhy.errors import UserError

Spoken = tuple[str, str]
"""An image's name and one caption of it."""


def gather(
    root: Path,
    spoken: Iterable[Spoken],
    *,
    split: Callable[[str], str],
    place: Callable[[str], Path],
    notes: Iterable[str] = (),
) -> Dataset:
    """Gather captions by image, in the order of first mention; blank ones are dropped and counted."""
    said: dict[str, list[str]] = {}
    for name, caption in spoken:
        said.setdefault(name, []).append(" ".join(caption.split()))
    kept = {name: tuple(filter(None, captions)) for name, captions in said.items()}
    images = tuple(
        CaptionedImage(name, place(name), captions, split(name)) for name, captions in kept.items() if captions
    )
    if not images:
        raise UserError(f"{root}: not one caption in this data set; check its captions file")
    return Dataset(root.resolve().name, root, images, (*notes, *_oddities(said, kept)))


def _oddities(said: Mapping[str, Sequence[str]], kept: Mapping[str, Sequence[str]]) -> list[str]:
    blank = sum(len(said[name]) - len(kept[name]) for name in said)
    repeated = sum(len(captions) - len(set(captions)) for captions in kept.values())
    silent = sum(not captions for captions in kept.values())
    counted = {
        "blank captions dropped": blank,
        "captions that repeat another of the same image (kept)": repeated,
        "images dropped, having only blank captions": silent,
    }
    return [f"{what}: {count}" for what, count in counted.items() if count]


def find_image_folder(root: Path, image_folder: Path | None, usual: Iterable[str], names: Iterable[str | Path]) -> Path:
    """Choose the folder that holds the images: the one given, or the usual one that has most of a few."""
    if image_folder is not None:
        return image_folder
    probes = list(islice(names, 20))
    folders = [folder for folder in (root / name for name in usual) if folder.is_dir()]
    return max(folders, key=lambda folder: sum((folder / name).is_file() for name in probes), default=root)


def listed_splits(lists: Mapping[str, Path], names: Iterable[str]) -> tuple[dict[str, str], list[str]]:
    """Read files that list a split's images, a name a line; returns name → split, and notes.

    An image on two lists goes to the later split of train, dev, test, so that nothing that is
    evaluated on is trained on.
    """
    known = set(names)
    splits: dict[str, str] = {}
    notes = []
    for split in (name for name in SPLITS if name in lists):
        listed = {line.strip() for line in read_text(lists[split]).splitlines()} - {""}
        if unknown := listed - known:
            notes.append(f"{lists[split].name}: {len(unknown)} of {len(listed)} names have no captions")
        if twice := sorted(listed & splits.keys()):
            notes.append(f"{lists[split].name}: {len(twice)} names also on an earlier list, now only {split}")
        splits.update(dict.fromkeys(listed, split))
    return splits, notes


def read_text(path: Path) -> str:
    """Read a text file as UTF-8, with or without a byte order mark; one line if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check its permissions") from None


def read_json(path: Path) -> Any:
    """Read a JSON file; one line that names the place if it is malformed."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise UserError(f"{path}: malformed JSON at {where} ({error.msg}); download it again") from None


def opening(path: Path, characters: int = 65536) -> str:
    """Read a file's beginning, to recognise by; "" if it cannot be read."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            return file.read(characters)
    except OSError:
        return ""


def unexpected(path: Path, error: Exception, wanted: str) -> UserError:
    """Say that a JSON file is well formed but holds something else."""
    detail = f"no {error}" if isinstance(error, KeyError) else str(error)
    return UserError(f"{path}: not the contents expected ({detail}); wanted {wanted}")
