"""A captioner ready to use: `saywhy.load()`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence

from saywhy.captioners.model_folder import CONFIG, SavedModel
from saywhy.captioners.model_folder import load as load_saved
from saywhy.data.images import as_rgb_image, open_image, upright_size
from saywhy.data.object_words import ObjectWords
from saywhy.data.region_inputs import GivenRegions, Where, find_regions
from saywhy.data.tokenizer import tokenize
from saywhy.data.vocabulary import PAD
from saywhy.decoding import Caption, Decoding, decode
from saywhy.encoders.features import Features
from saywhy.errors import UnreadableImage, UserError, closest
from saywhy.explain.composites import DEFAULT, Composite, composite
from saywhy.explain.explaining import Explaining, words_at_a_time
from saywhy.explain.explanation import Explanation
from saywhy.explain.methods import METHODS, explain
from saywhy.explain.request import Ask, Asked, in_question, question
from saywhy.hallucination.risk import OBJECTS, RISK, Names, Risk, Risks

SHIPPED = "soft-attention-flickr8k"
SHOWN = 1024
"""Longest side of the image a caption keeps for `show`, so that a batch of photographs fits in memory."""

Source = str | Path | Image.Image


@dataclass(frozen=True)
class _Opened:
    """An image on its way to the encoder."""

    source: str
    pixels: np.ndarray  # (3, S, S), what the encoder sees; vectors (R, D) where regions come with theirs
    shown: Image.Image
    region: tuple[float, float, float, float]  # the part of `shown` that is looked at
    size: tuple[int, int]  # of the image as it came, upright
    seen: tuple[float, float, float, float]  # the part of the image as it came that is looked at
    boxes: np.ndarray | None = None  # (R, 4), where regions are looked at


class Model:
    """A captioner with its vocabulary, preprocessing and usual way of decoding."""

    def __init__(
        self,
        saved: SavedModel,
        risk: Risk | None = None,
        objects: ObjectWords | None = None,
        why_no_risk: UserError | None = None,
    ) -> None:
        self.risk, self.why_no_risk = risk, why_no_risk
        self.objects = objects or ObjectWords.read()
        self.name = saved.name
        self.captioner = saved.captioner
        self.vocabulary = saved.vocabulary
        self.preprocessing = saved.preprocessing
        self.regions = saved.regions
        try:
            self.decoding = Decoding(**saved.decoding)
        except TypeError as error:
            raise UserError(
                f"model {saved.name}: {CONFIG} says how to decode in words unknown here ({error})"
            ) from None

    def caption(self, image: Source, regions: Where = None, **decoding: Any) -> Caption:
        """Caption one image: a path or a Pillow image. Keywords change how it decodes, as in `beam=5`.

        A model of regions needs to be told where they are; they are looked up by the image's file name.
        """
        return next(self.captions([image], regions=regions, **decoding))

    def captions(
        self,
        images: Iterable[Source],
        batch: int = 16,
        on_unreadable: Callable[[UnreadableImage], None] | None = None,
        regions: Where = None,
        risk: bool = False,
        **decoding: Any,
    ) -> Iterator[Caption]:
        """Caption many images, a batch at a time, in their order.

        With `risk`, captions tell of each object word how likely it is made up.

        An image that cannot be read raises `UnreadableImage`; with `on_unreadable` it is told of and left out instead.
        A model of regions finds them in `regions`: a path, or what `data.region_files.read_regions` read from it.
        """
        rules = self._decoding("caption", **decoding)
        risks = self.risks() if risk else None
        given = find_regions(self.regions, regions, f"model {self.name}")
        opened = self._open(images, on_unreadable, given)
        while some := list(islice(opened, batch)):
            yield from self._caption_batch(some, rules, risks)

    def _decoding(self, asking: str, **asked: Any) -> Decoding:
        """The model's way of decoding, with what is asked changed."""
        if asking == "explain" and "method" in asked:
            raise UserError(
                "which methods explain is said with methods=[…]; decoding is by beam unless a caption is given"
            )
        for name in asked:
            if name not in Decoding.__dataclass_fields__:
                raise UserError(f"{asking} has no argument {name!r}: {closest(name, Decoding.__dataclass_fields__)}")
        return replace(self.decoding, **asked)

    def explain(self, image: Source, **asked: Any) -> Explanation:
        """Explain one image's caption word by word; see `explanations` for what can be asked."""
        return next(self.explanations([image], **asked))

    def explanations(
        self,
        images: Iterable[Source],
        methods: Sequence[str] = METHODS,
        caption: str | None = None,
        word: str | None = None,
        at: int | None = None,
        instead: str | None = None,
        composite: str | Composite = DEFAULT,
        batch: int | None = None,
        chunk: int | None = None,
        regions: Where = None,
        on_unreadable: Callable[[UserError], None] | None = None,
        **decoding: Any,
    ) -> Iterator[Explanation]:
        """Explain images, a batch at a time: which pixels and which earlier words made each word be said.

        Args:
            images: paths or Pillow images.
            methods: of `saywhy.explain.METHODS`.
            caption: explain these words, typed, in place of the model's own.
            word: explain this word only: where the caption has it or else where it would have fitted best.
            at: the position, from 1, of the one word to be explained; with `word`, why that word might stand there.
            instead: why not this word: the difference of the two logits is explained.
            composite: the rules of LRP, or a name of `saywhy.explain.composites`.
            batch: images at a time; by itself one on a CPU and eight on a GPU.
            chunk: words that go back at a time; by itself one on a CPU and sixteen on a GPU.
            regions: where a model of regions finds them.
            on_unreadable: told of images that cannot be read, or whose captions have no word `at`; they are left out.
            decoding: how the model decodes its own caption, as in `beam=5`.
        """
        if isinstance(images, str | Path | Image.Image):
            raise UserError("explanations are of several images: give a list of them, or use `explain`")
        rules = self._decoding("explain", **decoding)
        ask = Ask.read(self.vocabulary, rules.max_words, caption, word, at, instead)
        risks = self.risks() if self.risk else None
        explaining = Explaining(self.captioner, self.vocabulary, ask, methods, composite, chunk, risks)
        given = find_regions(self.regions, regions, f"model {self.name}")
        opened = self._open(images, on_unreadable, given)
        batch = batch or (1 if self.captioner.device.type == "cpu" else 8)
        while some := list(islice(opened, batch)):
            yield from self._explain_batch(some, explaining, rules, on_unreadable)

    def _explain_batch(
        self,
        opened: list[_Opened],
        explaining: Explaining,
        rules: Decoding,
        on_unreadable: Callable[[UserError], None] | None,
    ) -> Iterator[Explanation]:
        found: list[Explanation] = []  # all before the first is given: the caller may change the model meanwhile
        with torch.inference_mode(False), self.captioner.attention_mode_set(rules.attend):
            pixels, boxes = self._inputs(opened)
            typed = explaining.ask.caption
            captions = self._said(pixels, boxes, rules) if typed is None else [typed] * len(opened)
            if rows := list(_answerable(opened, captions, explaining.ask, on_unreadable)):
                some = pixels[rows], None if boxes is None else boxes[rows], [captions[row] for row in rows]
                found = list(explaining(*some, [self._about(opened[row]) for row in rows]))
        yield from found

    @torch.inference_mode()
    def _said(self, pixels: torch.Tensor, boxes: torch.Tensor | None, rules: Decoding) -> list[Sequence[str]]:
        found = decode(self.captioner, self.captioner.encode(pixels, boxes), rules)
        return [self.vocabulary.decode(each.words) for each in found]

    def _about(self, opened: _Opened) -> dict[str, Any]:
        shown = {"image": opened.shown, "size": opened.size, "region": opened.seen}
        return {"source": opened.source, "model": self.name, "seen": self.preprocessing.size, **shown}

    def match(self, image: Source, texts: Sequence[str], regions: Where = None) -> list[float]:
        """How well each text fits one image, from −1 to 1: the cosine of their embeddings.

        For models with a contrastive head, such as `coca`.
        """
        match = getattr(self.captioner, "match", None)
        if match is None:
            raise UserError(f"model {self.name}: a {self.captioner.name} has no contrastive head to match texts with")
        if not texts:
            return []
        captions = pad_sequence([self._read(text) for text in texts], batch_first=True, padding_value=PAD)  # (N, T)
        opened = list(self._open([image], None, find_regions(self.regions, regions, f"model {self.name}")))
        with torch.inference_mode():
            return match(self._annotations(opened), captions.to(self.captioner.device))[0].tolist()

    def _read(self, text: str) -> torch.Tensor:
        """The numbers of a text's words, from `<start>` to `<end>`."""
        words = tokenize(text)
        if not words:
            raise UserError(f"the text {text!r} has no words to match with an image")
        return torch.tensor(self.vocabulary.encode(words))

    def _open(
        self,
        sources: Iterable[Source],
        on_unreadable: Callable[[UnreadableImage], None] | None,
        regions: GivenRegions | None,
    ) -> Iterator[_Opened]:
        for source in sources:
            if isinstance(source, Image.Image):
                image, file = as_rgb_image(source), getattr(source, "filename", "")
                yield self._prepared("", image, regions, Path(file).name, image.size)
                continue
            if not isinstance(source, str | Path):
                raise UserError(f"an image is a path or a Pillow image, not a {type(source).__name__}")
            try:
                # as large as evaluation opens them, so that both say the same
                image = open_image(source, at_least=self.preprocessing.at_least)
                size = upright_size(source)
                yield self._prepared(str(source), image, regions, Path(source).name, size)
            except UnreadableImage as error:
                if on_unreadable is None:
                    raise
                on_unreadable(error)

    def _prepared(
        self, source: str, image: Image.Image, regions: GivenRegions | None, file: str, size: tuple[int, int]
    ) -> _Opened:
        if regions and not file:
            raise UserError("regions are looked up by an image's file name, and this image has none: give its path")
        boxes = regions.boxes(file, size, self.preprocessing) if regions else None
        if regions and regions.are_features:
            pixels = regions.vectors(file, self.captioner.encoder.width)
        else:
            pixels = self.preprocessing(image)
        image.thumbnail((SHOWN, SHOWN))  # ours to shrink: converting and opening both made a copy
        if regions and regions.are_features:
            whole = [(0.0, 0.0, float(width), float(height)) for width, height in (image.size, size)]
            return _Opened(source, pixels, image, whole[0], size, whole[1], boxes)
        region, seen = self.preprocessing.region(*image.size), self.preprocessing.region(*size)
        return _Opened(source, pixels, image, region, size, seen, boxes)

    def _caption_batch(self, opened: list[_Opened], rules: Decoding, risks: Risks | None = None) -> Iterator[Caption]:
        with torch.inference_mode():
            features = self._annotations(opened)
            found = decode(self.captioner, features, rules)
        made: list[Caption] = []
        for row, (each, hypothesis) in enumerate(zip(opened, found, strict=True)):
            about = {"source": each.source, "model": self.name, "image": each.shown, "region": each.region}
            made.append(Caption.of(hypothesis, self.vocabulary, features, row, **about))
        yield from made if risks is None else self._with_risks(opened, made, rules, risks)

    def _with_risks(
        self, opened: list[_Opened], made: list[Caption], rules: Decoding, risks: Risks
    ) -> Iterator[Caption]:
        """The captions with the risks of their words, for which every word is explained as far as features."""
        asked = [Asked(each.words, tuple(range(len(each.words))), each.words) for each in made]
        with torch.inference_mode(False), self.captioner.attention_mode_set(rules.attend):
            wanted = question(asked, self.vocabulary, None, self.captioner.device)
            chunk = words_at_a_time(self.captioner.device)
            rule = composite(DEFAULT)
            told = explain(self.captioner, *self._inputs(opened), wanted, ("lrp",), rule, chunk, to_pixels=False)
            found = risks(self.captioner, told, wanted, asked)
        yield from (replace(each, risks=tuple(of_row)) for each, of_row in zip(made, found, strict=True))

    def risks(self) -> Risks:
        """What tells how likely words are made up; a `UserError` where the model has no such thing."""
        if self.why_no_risk is not None:
            raise self.why_no_risk
        if self.risk is None:
            raise UserError(f"model {self.name} has no {RISK}: `saywhy audit risk --save-risk` fits one to captions")
        return Risks(self.risk, Names(self.vocabulary, self.objects))

    def _annotations(self, opened: list[_Opened]) -> Features:
        return self.captioner.encode(*self._inputs(opened))

    def _inputs(self, opened: list[_Opened]) -> tuple[torch.Tensor, torch.Tensor | None]:
        device = self.captioner.device
        pixels = torch.from_numpy(np.stack([each.pixels for each in opened])).to(device)
        boxes = [each.boxes for each in opened if each.boxes is not None]
        return pixels, torch.from_numpy(np.stack(boxes)).to(device) if boxes else None


def _answerable(
    opened: Sequence[_Opened],
    captions: Sequence[Sequence[str]],
    ask: Ask,
    on_unreadable: Callable[[UserError], None] | None,
) -> Iterator[int]:
    """The rows of whose captions this can be asked; of the others `on_unreadable` is told."""
    for row, (each, words) in enumerate(zip(opened, captions, strict=True)):
        try:
            in_question(words, ask.word, ask.at, ask.instead)
            yield row
        except UserError as error:
            told = UserError(f"{each.source or 'an image'}: {error}")
            if on_unreadable is None:
                raise told from None
            on_unreadable(told)


def load(model: str | Path | None = None, device: str | torch.device | None = None) -> Model:
    """A model by name or folder; without one, the model that ships with saywhy.

    >>> model = load()
    >>> len(model.caption(Image.new("RGB", (300, 200), "green")).words) > 0
    True
    """
    folder = locate(model)
    saved = load_saved(folder, choose_device(device))
    objects = folder / OBJECTS
    try:
        risk, table = Risk.read(folder), ObjectWords.read(objects if objects.is_file() else None)
    except UserError as error:  # it still says what it sees
        return Model(saved, why_no_risk=error)
    return Model(saved, risk, table)


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
