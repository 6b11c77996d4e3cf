"""Why each word was said: one rich object."""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np
from PIL import Image

from saywhy.data.preprocess import Region, enlarged, in_boxes, on_image
from saywhy.decoding.caption import as_text
from saywhy.errors import UserError, closest
from saywhy.files import whole_file, write_text

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON, MAPS, FIGURE, PAGE = "explanation.json", "maps.npz", "words.png", "report.html"


@dataclass(frozen=True)
class Budget:
    """A word's logit, split exactly: image + words + start + absorbed.

    Attributes:
        image: what came from the features, by whatever way.
        words: what came from the words said before.
        start: what came from `<start>` and constant initial states.
        absorbed: what biases and stabilisers took, added up layer by layer.
    """

    image: float
    words: float
    start: float
    absorbed: float

    @property
    def total(self) -> float:
        """The sum, which is the logit."""
        return self.image + self.words + self.start + self.absorbed

    @property
    def share(self) -> float:
        """How much of the evidence was the image's, from −1 (all of it, against the word) to 1 (all of it, for it).

        >>> Budget(image=3.0, words=-1.0, start=0.0, absorbed=0.5).share
        0.75
        """
        evidence = abs(self.image) + abs(self.words) + abs(self.start)
        return self.image / evidence if evidence else 0.0


@dataclass(frozen=True)
class Word:
    """One word and its reasons.

    Attributes:
        word: the word in question.
        position: how many words of the caption come before it.
        said: the word that the caption has there, which may be another.
        instead: the word it is held against, or None; the logit is then the difference of the two.
        logit: the number that was explained.
        probability: of the word, given the image and the words before.
        budget: the logit, split.
        pixels: the part of the budget's image that reached the pixels; the encoder absorbed the rest. None where
            the model looks at given features.
        absorbed_by_encoder: that rest, added up layer by layer.
        earlier: by method, a signed weight for each of the words before it.
        beta: the gate, where the model has one.
        risk: how likely the word is made up; of object words alone, where the model has a risk.
    """

    word: str
    position: int
    said: str
    instead: str | None
    logit: float
    probability: float
    budget: Budget
    pixels: float | None
    absorbed_by_encoder: float
    earlier: Mapping[str, Sequence[float]]
    beta: float | None = None
    risk: float | None = None


@dataclass(frozen=True, eq=False)
class Explanation:
    """A caption, and the reasons for each word in question.

    Attributes:
        source: the path of the image; empty where none is known.
        model: which model was asked.
        tokens: the words of the caption.
        words: the words that are explained, in their order.
        methods: the methods there are maps of.
        composite: the rules of LRP.
        size: width and height of the image.
        region: the part of it the encoder saw: left, top, right, bottom.
        seen: S, the side of the encoder's square.
        maps: by method, of each word: (K, S, S) over the encoder's square, or (K, [heads,] L) over places.
        grid: rows and columns of the places, where they are a grid.
        boxes: (L, 4) of the places, as shares of the region, where they are regions.
        image: the image, at most 1024 pixels long.
    """

    source: str
    model: str
    tokens: tuple[str, ...]
    words: tuple[Word, ...]
    methods: tuple[str, ...]
    composite: str
    size: tuple[int, int]
    region: Region
    seen: int
    maps: Mapping[str, np.ndarray] = field(repr=False)
    grid: tuple[int, int] | None = None
    boxes: np.ndarray | None = field(default=None, repr=False)
    image: Image.Image | None = field(default=None, repr=False)

    @property
    def caption(self) -> str:
        """The caption as one writes it."""
        return as_text(self.tokens)

    @property
    def budget(self) -> list[Budget]:
        """The evidence budget of each word."""
        return [word.budget for word in self.words]

    def map(
        self, i: int, method: str | None = None, head: int | None = None, size: tuple[int, int] | None = None
    ) -> np.ndarray:
        """The map of word i over the whole image, (height, width), at its own size or another.

        Positive supports the word, negative speaks against it. Of several heads of attention it is the mean, or one.
        """
        method = method or self.methods[0]
        if method not in self.maps:
            raise UserError(f"no map by {method!r} was made: {closest(method, self.maps)}")
        values = self.maps[method][i].astype(np.float32)
        if method == "attention" and values.ndim == 2:
            values = values.mean(axis=0) if head is None else values[head]
        width, height = size or self.size
        scale = np.array([width / self.size[0], height / self.size[1]] * 2)
        region: Region = tuple(float(each) for each in self.region * scale)  # type: ignore[assignment]
        if values.ndim == 2:
            return on_image(values, (width, height), region)
        if self.boxes is not None:
            return in_boxes(values, self.boxes, (width, height), region)
        assert self.grid is not None
        square = enlarged(values.reshape(self.grid), self.seen, smooth=method == "attention")
        return on_image(square, (width, height), region)

    def as_dict(self) -> dict[str, Any]:
        """What `explanation.json` holds."""
        return {
            "image": self.source,
            "caption": self.caption,
            "model": self.model,
            "tokens": list(self.tokens),
            "methods": list(self.methods),
            "composite": self.composite,
            "size": list(self.size),
            "region": list(self.region),
            "seen": self.seen,
            "grid": None if self.grid is None else list(self.grid),
            "words": [{**asdict(word), "share": word.budget.share} for word in self.words],
        }

    def show(self, method: str | None = None) -> Image.Image:
        """The classic figure, one panel a word; a notebook displays it."""
        from saywhy.viz.explanation_figure import words_figure  # drawing is loaded only when something is drawn

        return words_figure(self, method or self.methods[0])

    def save(self, folder: str | Path) -> None:
        """Write `explanation.json`, `maps.npz`, `words.png` and `report.html` into a folder."""
        from saywhy.viz.explanation_page import explanation_page

        folder = Path(folder)
        parts = {name: values.astype(np.float32) for name, values in self.maps.items()}
        if self.boxes is not None:
            parts["boxes"] = self.boxes
        if self.image is not None:
            parts["image"] = np.frombuffer(_as_jpeg(self.image), np.uint8)
        maps = io.BytesIO()
        np.savez_compressed(maps, **parts)  # type: ignore[arg-type]
        told = json.dumps(self.as_dict(), ensure_ascii=False, indent=2) + "\n"
        texts = {PAGE: explanation_page(self), JSON: told}
        for name, made in {
            FIGURE: self._repr_png_(),
            MAPS: maps.getvalue(),
        }.items():  # all is made before any is written
            with whole_file(folder / name) as part:
                part.write_bytes(made)
        for name, text in texts.items():
            write_text(folder / name, text)

    @classmethod
    def load(cls, folder: str | Path) -> Explanation:
        """Read what `save` wrote."""
        folder = Path(folder)
        try:
            told = json.loads((folder / JSON).read_text(encoding="utf-8"))
            with np.load(folder / MAPS) as file:
                parts = dict(file)
            image, boxes = parts.pop("image", None), parts.pop("boxes", None)
            return cls(
                told["image"],
                told["model"],
                tuple(told["tokens"]),
                tuple(_word(each) for each in told["words"]),
                tuple(told["methods"]),
                told["composite"],
                tuple(told["size"]),
                tuple(told["region"]),
                told["seen"],
                parts,
                None if told["grid"] is None else tuple(told["grid"]),
                boxes,
                None if image is None else Image.open(io.BytesIO(image.tobytes())),
            )
        except FileNotFoundError as error:
            raise UserError(f"{folder}: no explanation that saywhy saved ({error.filename} is missing)") from None
        except (ValueError, TypeError, KeyError, OSError, EOFError, BadZipFile, zlib.error) as error:
            raise UserError(f"{folder}: not an explanation that saywhy saved ({error})") from None

    def _repr_png_(self) -> bytes:
        """How a notebook shows it."""
        held = io.BytesIO()
        self.show().save(held, format="PNG")
        return held.getvalue()


def _word(told: dict[str, Any]) -> Word:
    told = {key: value for key, value in told.items() if key != "share"}
    return Word(**{**told, "budget": Budget(**told["budget"])})


def _as_jpeg(image: Image.Image) -> bytes:
    held = io.BytesIO()
    image.save(held, format="JPEG", quality=92)
    return held.getvalue()
