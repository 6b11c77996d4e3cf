"""The data of a training run: one data set, or several with a weight and a style each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.tokenizer import STYLE_MARKER
from saywhy.errors import UserError, did_you_mean


@dataclass(frozen=True)
class DataSettings:
    """One data set of a recipe that names several.

    Attributes:
        name: under which it is given, `--data NAME=DIR`.
        weight: how often an epoch goes through it; 0.5 is half of its images, drawn anew for every epoch.
        style: the style of its captions; data sets of one style share its name. Its own name if empty.
    """

    name: str = ""
    weight: float = 1.0
    style: str = ""

    def __post_init__(self) -> None:
        for key, text in (("name", self.name), ("style", self.style or self.name)):
            if not STYLE_MARKER.fullmatch(f"<style:{text}>"):
                raise UserError(f"data.{key} = {text!r}: use letters, digits, '.', '-' and '_'")
        if not 0 < self.weight <= 1000:
            raise UserError(
                f"data.weight = {self.weight} of {self.name} is out of range: use more than 0, at most 1000"
            )


@dataclass(frozen=True)
class Part:
    """One data set of a run: its two splits, and how it is used."""

    train: Dataset
    dev: Dataset
    weight: float = 1.0
    style: str = ""

    @property
    def name(self) -> str:
        """The data set's name."""
        return self.train.name

    def record(self, with_style: bool) -> dict[str, Any]:
        """What run.json says of the data set."""
        record = {"name": self.name, "train": len(self.train), "dev": len(self.dev), "weight": self.weight}
        return {**record, "style": self.style} if with_style else record


@dataclass(frozen=True)
class Mixture:
    """All data sets of a run."""

    parts: tuple[Part, ...]

    @classmethod
    def of(cls, data: Dataset | Mapping[str, Dataset], settings: Sequence[DataSettings] = ()) -> Mixture:
        """The data of a recipe with these settings; a `UserError` unless the names are the recipe's."""
        if isinstance(data, Dataset):
            if settings:
                raise UserError(f"the recipe names {_listed(settings)}: give each with --data NAME=DIR")
            return cls((Part(*data.train_and_dev()),))
        if not settings:
            raise UserError("the recipe has no [[data]] tables: give one data set, with --data DIR")
        for name in data:
            if name not in {part.name for part in settings}:
                known = did_you_mean(name, [part.name for part in settings])
                raise UserError(f"--data {name}=…: the recipe has no such data set: {known}")
        parts = []
        for part in settings:
            if part.name not in data:
                raise UserError(f"the recipe names {_listed(settings)}: --data {part.name}=DIR is missing")
            parts.append(Part(*data[part.name].train_and_dev(), part.weight, part.style or part.name))
        return cls(tuple(parts))

    @property
    def styles(self) -> tuple[str, ...]:
        """The styles of captions, the first data set's first; empty where there is only one."""
        styles = tuple(dict.fromkeys(part.style for part in self.parts))
        return styles if len(styles) > 1 else ()

    @property
    def images(self) -> list[CaptionedImage]:
        """The training images of all data sets."""
        return [image for part in self.parts for image in part.train.images]

    def per_image(self, attribute: str) -> list:
        """The weight or style of each training image's data set."""
        return [getattr(part, attribute) for part in self.parts for _ in part.train.images]

    @property
    def name(self) -> str:
        """The names of the data sets."""
        return " + ".join(part.name for part in self.parts)


def check_settings(settings: Sequence[DataSettings]) -> None:
    """Raise a `UserError` where a recipe names a data set twice."""
    names = [part.name for part in settings]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"[[data]] names {name!r} twice: give it once, with a larger weight")


def parse_data(arguments: Sequence[str], named: bool) -> dict[str, Path]:
    """The data sets of a command line: `NAME=DIR` each where the recipe names them, else one `DIR`, named ""."""
    if not named:
        if len(arguments) > 1:
            raise UserError("--data is given more than once, and the recipe has no [[data]] tables to name them")
        return {"": Path(arguments[0])}
    folders: dict[str, Path] = {}
    for argument in arguments:
        name, equals, folder = argument.partition("=")
        if not (name and equals and folder):
            raise UserError(f"--data {argument}: the recipe names its data sets; write NAME=DIR")
        if name in folders:
            raise UserError(f"--data {name}=… is given twice: {folders[name]} and {folder}")
        folders[name] = Path(folder)
    return folders


def _listed(settings: Sequence[DataSettings]) -> str:
    return ", ".join(part.name for part in settings)
