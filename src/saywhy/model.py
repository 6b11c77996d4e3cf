"""A captioner ready to use: `saywhy.load()`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from saywhy.captioners.saving import CONFIG, SavedModel
from saywhy.captioners.saving import load as load_saved
from saywhy.data.pictures import open_picture
from saywhy.decoding import Caption, Decoding, decode
from saywhy.errors import BrokenPicture

SHIPPED = "soft-attention-flickr8k"
Source = str | Path | Image.Image


class Model:
    """A captioner with its vocabulary, preprocessing and usual way of decoding."""

    def __init__(self, saved: SavedModel) -> None:
        self.name = saved.name
        self.captioner = saved.captioner
        self.vocabulary = saved.vocabulary
        self.preprocessing = saved.preprocessing
        self.decoding = Decoding(**saved.decoding)

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

    def _open(
        self, sources: Iterable[Source], on_broken: Callable[[BrokenPicture], None] | None
    ) -> Iterator[tuple[str, Image.Image]]:
        for source in sources:
            if isinstance(source, Image.Image):
                yield "", source.convert("RGB")
                continue
            try:
                yield str(source), open_picture(source)
            except BrokenPicture as error:
                if on_broken is None:
                    raise
                on_broken(error)

    def _caption_batch(self, opened: list[tuple[str, Image.Image]], rules: Decoding) -> Iterator[Caption]:
        pixels = np.stack([self.preprocessing(picture) for _, picture in opened])
        with torch.inference_mode():
            annotations = self.captioner.encode(torch.from_numpy(pixels).to(self.captioner.device))
            found = decode(self.captioner, annotations, rules)
        for (image, picture), hypothesis in zip(opened, found, strict=True):
            region = self.preprocessing.region(*picture.size)
            about = {"image": image, "model": self.name, "picture": picture, "region": region}
            yield Caption.of(hypothesis, self.vocabulary, annotations.grid, **about)


def load(model: str | Path | None = None, device: str | torch.device | None = None) -> Model:
    """A model by name or folder; without one, the model that ships with saywhy.

    >>> model = load()
    >>> len(model.caption(Image.new("RGB", (300, 200), "green")).words) > 0
    True
    """
    return Model(load_saved(locate(model), device or best_device()))


def locate(model: str | Path | None) -> Path:
    """The folder of a shipped model's name, or the folder itself."""
    inside = Path(str(files("saywhy"))) / "models" / str(model or SHIPPED)
    return inside if (inside / CONFIG).is_file() else Path(model or inside)


def shipped() -> list[str]:
    """Names of the models inside the package."""
    return sorted(path.parent.name for path in Path(str(files("saywhy"))).glob(f"models/*/{CONFIG}"))


def best_device() -> torch.device:
    """A GPU where there is one."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
