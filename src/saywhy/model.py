"""A captioner ready to use: `saywhy.load()`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saywhy.captioners.saving import CONFIG, SavedModel
from saywhy.captioners.saving import load as load_saved
from saywhy.data.pictures import as_picture, open_picture
from saywhy.decoding import Caption, Decoding, decode
from saywhy.errors import BrokenPicture, UserError

SHIPPED = "soft-attention-flickr8k"
SHOWN = 1024
"""Longest side of the picture a caption keeps for `show`, so that a batch of photographs fits in memory."""

Source = str | Path | Image.Image


@dataclass(frozen=True)
class _Opened:
    """A picture on its way to the encoder."""

    image: str
    pixels: np.ndarray  # (3, S, S), what the encoder sees
    shown: Image.Image


class Model:
    """A captioner with its vocabulary, preprocessing and usual way of decoding."""

    def __init__(self, saved: SavedModel) -> None:
        self.name = saved.name
        self.captioner = saved.captioner
        self.vocabulary = saved.vocabulary
        self.preprocessing = saved.preprocessing
        try:
            self.decoding = Decoding(**saved.decoding)
        except TypeError as error:
            raise UserError(
                f"model {saved.name}: {CONFIG} says how to decode in words unknown here ({error})"
            ) from None

    def caption(self, picture: Source, **decoding: Any) -> Caption:
        """Caption one picture: a path or a Pillow image. Keywords change how it decodes, as in `beam=5`."""
        return next(self.captions([picture], **decoding))

    def captions(
        self,
        pictures: Iterable[Source],
        batch: int = 16,
        on_broken: Callable[[BrokenPicture], None] | None = None,
        **decoding: Any,
    ) -> Iterator[Caption]:
        """Caption many pictures, a batch at a time, in their order.

        A picture that cannot be read raises `BrokenPicture`; with `on_broken` it is told of and left out instead.
        """
        rules = replace(self.decoding, **decoding)
        opened = self._open(pictures, on_broken)
        while some := list(islice(opened, batch)):
            yield from self._caption_batch(some, rules)

    def _open(self, sources: Iterable[Source], on_broken: Callable[[BrokenPicture], None] | None) -> Iterator[_Opened]:
        for source in sources:
            if isinstance(source, Image.Image):
                yield self._prepared("", as_picture(source))
                continue
            try:
                # as large as evaluation opens them, so that both say the same
                yield self._prepared(str(source), open_picture(source, at_least=self.preprocessing.at_least))
            except BrokenPicture as error:
                if on_broken is None:
                    raise
                on_broken(error)

    def _prepared(self, image: str, picture: Image.Image) -> _Opened:
        pixels = self.preprocessing(picture)
        picture.thumbnail((SHOWN, SHOWN))  # ours to shrink: converting and opening both made a copy
        return _Opened(image, pixels, picture)

    def _caption_batch(self, opened: list[_Opened], rules: Decoding) -> Iterator[Caption]:
        pixels = np.stack([each.pixels for each in opened])
        with torch.inference_mode():
            annotations = self.captioner.encode(torch.from_numpy(pixels).to(self.captioner.device))
            found = decode(self.captioner, annotations, rules)
        for row, (each, hypothesis) in enumerate(zip(opened, found, strict=True)):
            region = self.preprocessing.region(*each.shown.size)
            about = {"image": each.image, "model": self.name, "picture": each.shown, "region": region}
            yield Caption.of(hypothesis, self.vocabulary, annotations, row, **about)


def load(model: str | Path | None = None, device: str | torch.device | None = None) -> Model:
    """A model by name or folder; without one, the model that ships with saywhy.

    >>> model = load()
    >>> len(model.caption(Image.new("RGB", (300, 200), "green")).words) > 0
    True
    """
    return Model(load_saved(locate(model), choose_device(device)))


def locate(model: str | Path | None) -> Path:
    """The folder of a shipped model's name, or the folder itself."""
    inside = Path(str(files("saywhy"))) / "models" / str(model or SHIPPED)
    return inside if (inside / CONFIG).is_file() else Path(model or inside)


def shipped() -> list[str]:
    """Names of the models inside the package."""
    return sorted(path.parent.name for path in Path(str(files("saywhy"))).glob(f"models/*/{CONFIG}"))


def choose_device(wanted: str | torch.device | None = None) -> torch.device:
    """The device that was asked for; without one, or with "auto", a GPU where there is one.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    if wanted is None or wanted == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wanted)
    except RuntimeError:
        raise UserError(f"unknown device {wanted!r}: use auto, cpu, cuda or mps") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type) or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise UserError(f"device {str(wanted)!r} is not to be had on this machine: use auto or cpu")
    return device
