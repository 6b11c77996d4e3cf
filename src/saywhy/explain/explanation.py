"""The explanation of a caption: for each word a map per method, weights of earlier words, and the evidence budget."""

from __future__ import annotations

import io
import json
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from html import escape
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from PIL import Image

from saywhy.data.preprocess import Crop, boxes_on_image, map_on_image, upsample_grid
from saywhy.data.tokenizer import as_text
from saywhy.errors import UserError, did_you_mean
from saywhy.files import read_json, whole_file, write_text

JSON, MAPS, FIGURE, PAGE = "explanation.json", "maps.npz", "words.png", "report.html"
RARE_PARTS = ("class_token", "own_pieces")
"""Parts of a budget that only vision transformers and captioners of sub-words have."""
FORMAT = 2
"""Of explanation.json; 0.1 wrote no format."""


@dataclass(frozen=True)
class Budget:
    """The evidence budget: a word's score is exactly the sum of these parts.

    Attributes:
        image: relevance of the image features.
        earlier_words: relevance of the words before it.
        initial_state: relevance of `<start>`, or the marker of a style, and of constant initial states.
        absorbed: relevance absorbed by biases and stabilisers, summed over layers.
        class_token: relevance of features of the image that stand for no place in it, such as a class token.
        own_pieces: relevance of the first pieces of a word of several sub-words.
    """

    image: float
    earlier_words: float
    initial_state: float
    absorbed: float
    class_token: float = 0.0
    own_pieces: float = 0.0

    @property
    def total(self) -> float:
        """The sum, which is the score."""
        return sum(asdict(self).values())

    @property
    def image_share(self) -> float:
        """The image's share of the evidence, from −1 (only the image, against the word) to 1 (only the image, for it).

        >>> Budget(image=3.0, earlier_words=-1.0, initial_state=0.0, absorbed=0.5).image_share
        0.75
        """
        image, words = self.image + self.class_token, self.earlier_words + self.own_pieces
        evidence = abs(image) + abs(words) + abs(self.initial_state)
        return image / evidence if evidence else 0.0


@dataclass(frozen=True)
class WordExplanation:
    """The explanation of one word.

    Attributes:
        word: the explained word.
        position: the number of words before it.
        caption_word: the caption's word at this position, which may be another.
        contrast: the word whose logit is subtracted, or None.
        logit: of the word, or its difference from the contrast's.
        score: the explained number, which the budget adds up to.
        probability: of the word, given the image and the words before it.
        budget: the parts of the score.
        pixel_relevance: the part of `budget.image` that reached the pixels; None where the model's input is
            precomputed features.
        absorbed_by_encoder: the rest of `budget.image`, summed over the encoder's layers.
        earlier_words: by method, a signed weight for each of the words before it.
        beta: the gate, where the model has one.
        risk: the probability that the word is hallucinated; only for object words of a model with a risk model.
    """

    word: str
    position: int
    caption_word: str
    contrast: str | None
    logit: float
    score: float
    probability: float
    budget: Budget
    pixel_relevance: float | None
    absorbed_by_encoder: float
    earlier_words: Mapping[str, Sequence[float]]
    beta: float | None = None
    risk: float | None = None


@dataclass(frozen=True, eq=False)
class Explanation:
    """A caption with the explanations of its words.

    Attributes:
        source: the path of the image; empty where it is not known.
        model: the name of the model.
        tokens: the words of the caption.
        words: the explained words, in the order of their positions.
        methods: the methods that have maps.
        composite: the rules of LRP.
        score: what LRP explains: "logit" or "logp", see `Targets.scores`; a contrast of two words is one of logits.
        map_kind: what the map of LRP shows, see `explain.composites`.
        size: width and height of the image.
        crop: the part of the image the encoder saw: left, top, right, bottom.
        input_size: S, the side of the encoder's square input.
        maps: by method, one per word: (K, S, S) over the encoder's input, or (K, [heads,] L) over features.
        grid: rows and columns of the features, where they form a grid.
        boxes: (L, 4) of the features as fractions of the crop, where they are regions.
        image: the image, its longer side at most 1024 pixels.
        style: the style of the caption; empty for a model without styles.
        familiarity: as in `Caption`.
        familiar: as in `Caption`.
    """

    source: str
    model: str
    tokens: tuple[str, ...]
    words: tuple[WordExplanation, ...]
    methods: tuple[str, ...]
    composite: str
    size: tuple[int, int]
    crop: Crop
    input_size: int
    maps: Mapping[str, np.ndarray] = field(repr=False)
    grid: tuple[int, int] | None = None
    boxes: np.ndarray | None = field(default=None, repr=False)
    image: Image.Image | None = field(default=None, repr=False)
    style: str = ""
    familiarity: float | None = None
    familiar: bool | None = None
    score: str = "logit"
    map_kind: str = "seen"

    @property
    def caption(self) -> str:
        """The caption as text."""
        return as_text(self.tokens)

    @property
    def budget(self) -> list[Budget]:
        """The evidence budget of each word."""
        return [word.budget for word in self.words]

    def map(
        self, i: int, method: str | None = None, head: int | None = None, size: tuple[int, int] | None = None
    ) -> np.ndarray:
        """The map of word i over the image, (height, width), at the image's size or another.

        Positive values support the word, negative ones speak against it. Attention of several heads is averaged,
        unless `head` is given.
        """
        method = method or self.methods[0]
        if method not in self.maps:
            raise UserError(f"this explanation has no map of method {method!r}: {did_you_mean(method, self.maps)}")
        values = self.maps[method][i].astype(np.float32)
        if method == "attention" and values.ndim == 2:
            values = values.mean(axis=0) if head is None else values[head]
        width, height = size or self.size
        scale = np.array([width / self.size[0], height / self.size[1]] * 2)
        crop: Crop = tuple(float(edge) for edge in self.crop * scale)  # type: ignore[assignment]
        if values.ndim == 2:
            return map_on_image(values, (width, height), crop)
        if self.boxes is not None:
            return boxes_on_image(values, self.boxes, (width, height), crop)
        assert self.grid is not None
        square = upsample_grid(values.reshape(self.grid), self.input_size, smooth=method == "attention")
        return map_on_image(square, (width, height), crop)

    def as_dict(self) -> dict[str, Any]:
        """The contents of `explanation.json`."""
        return {
            "format": FORMAT,
            "image": self.source,
            "caption": self.caption,
            "model": self.model,
            **({"style": self.style} if self.style else {}),
            **({} if self.familiarity is None else {"familiarity": self.familiarity, "familiar": self.familiar}),
            "tokens": list(self.tokens),
            "methods": list(self.methods),
            "composite": self.composite,
            "score": self.score,
            "map": self.map_kind,
            "size": list(self.size),
            "crop": list(self.crop),
            "input_size": self.input_size,
            "grid": None if self.grid is None else list(self.grid),
            "words": [_word_dict(word) for word in self.words],
        }

    def show(self, method: str | None = None) -> Image.Image:
        """A figure with one panel per word; notebooks display it."""
        from saywhy.viz.explanation_figure import explanation_figure  # imported only when something is drawn

        return explanation_figure(self, method or self.methods[0])

    def save(self, folder: str | Path) -> None:
        """Write `explanation.json`, `maps.npz`, `words.png` and `report.html` into a folder."""
        from saywhy.viz.explanation_page import explanation_page

        contents: dict[str, bytes | str] = {  # all exist before the first file is written
            FIGURE: _encode(self.show(), "PNG"),
            MAPS: self.as_npz(),
            PAGE: explanation_page(self),
            JSON: json.dumps(self.as_dict(), ensure_ascii=False, indent=2) + "\n",
        }
        for name, content in contents.items():
            path = Path(folder) / name
            if isinstance(content, str):
                write_text(path, content)
                continue
            with whole_file(path) as part:
                part.write_bytes(content)

    def as_npz(self) -> bytes:
        """The contents of `maps.npz`."""
        arrays = {name: values.astype(np.float32) for name, values in self.maps.items()}
        if self.boxes is not None:
            arrays["boxes"] = self.boxes
        if self.image is not None:
            arrays["image"] = np.frombuffer(_encode(self.image, "JPEG", quality=92), np.uint8)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        return buffer.getvalue()

    @classmethod
    def load(cls, folder: str | Path) -> Explanation:
        """Read an explanation that `save` wrote."""
        folder = Path(folder)
        for name in (JSON, MAPS):
            if not (folder / name).is_file():
                raise UserError(f"{folder}: not a saved explanation ({name} is missing)")
        data = read_json(folder / JSON)
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise UserError(f"{folder}: saved by another version of saywhy, such as 0.1: explain the image again")
        try:
            with np.load(folder / MAPS) as file:
                return cls._of(data, dict(file))
        except (ValueError, TypeError, KeyError, OSError, EOFError, BadZipFile, zlib.error) as error:
            raise UserError(f"{folder}: not a saved explanation ({error}); explain the image again") from None

    @classmethod
    def _of(cls, data: Mapping[str, Any], arrays: dict[str, np.ndarray]) -> Explanation:
        """The explanation of the contents of explanation.json and maps.npz."""
        image, boxes = arrays.pop("image", None), arrays.pop("boxes", None)
        return cls(
            source=data["image"],
            model=data["model"],
            style=data.get("style", ""),
            familiarity=data.get("familiarity"),
            familiar=data.get("familiar"),
            tokens=tuple(data["tokens"]),
            words=tuple(_word(word) for word in data["words"]),
            methods=tuple(data["methods"]),
            composite=data["composite"],
            score=data.get("score", "logit"),
            map_kind=data.get("map", "seen"),
            size=tuple(data["size"]),
            crop=tuple(data["crop"]),
            input_size=data["input_size"],
            maps=arrays,
            grid=None if data["grid"] is None else tuple(data["grid"]),
            boxes=boxes,
            image=None if image is None else Image.open(io.BytesIO(image.tobytes())),
        )

    def _repr_jpeg_(self) -> bytes:
        """The figure, for notebooks; as a PNG it would make them several times as large."""
        return _encode(self.show(), "JPEG", quality=85)

    def _repr_html_(self) -> str:
        """The figure and a table of the numbers, for notebooks."""
        from saywhy.viz.explanation_page import numbers_table

        figure = b64encode(self._repr_jpeg_()).decode()
        return f'<img alt="{escape(self.caption)}" src="data:image/jpeg;base64,{figure}">{numbers_table(self)}'


def _word_dict(word: WordExplanation) -> dict[str, Any]:
    """A word as explanation.json has it; parts of its budget that few models have are left out where they are 0."""
    budget = {part: value for part, value in asdict(word.budget).items() if value or part not in RARE_PARTS}
    return {**asdict(word), "budget": budget, "image_share": word.budget.image_share}


def _word(data: Mapping[str, Any]) -> WordExplanation:
    fields = {"score": data["logit"], **data}  # 0.2 explained logits only
    del fields["image_share"]
    return WordExplanation(**{**fields, "budget": Budget(**fields["budget"])})


def _encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format=kind, **options)
    return buffer.getvalue()
