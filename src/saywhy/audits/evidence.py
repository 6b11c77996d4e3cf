"""A case: one image, what the model said of it, and the reasons each method gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from saywhy.audits.context import AuditContext, ImageBatch
from saywhy.audits.result_cache import Arrays
from saywhy.audits.results import NotApplicable
from saywhy.data.datasets import CaptionedImage
from saywhy.data.preprocess import enlarged, in_boxes
from saywhy.explain.methods import METHODS, Evidence, explain
from saywhy.explain.request import Asked, question
from saywhy.hallucination.risk import WORD_FEATURES, entropy, facts


@dataclass(frozen=True)
class ImageEvidence:
    """What was said of an image, and why.

    Attributes:
        words: the K words, as strings.
        objects: where the J object words stand, (J,).
        lemmas: what these name, (J,).
        probability: of each word, (K,).
        beta: the gate at each word, (K,); NaN where there is none.
        entropy: of attention at each word, in nats, (K,).
        share: of each word's evidence that is the image's, (K,).
        facts: what the risk is told of each object word, (J, F).
        alpha: what was looked at while saying each word, (K, L), the mean of the heads.
        earlier: by method, the weight of each word (column) for each word (row), (K, K); zero from the diagonal on.
        maps: by method, of each object word over the encoder's square, (J, S, S); none where they were not read. Those
            over places are kept as such, and enlarged when they are read.
    """

    words: np.ndarray
    objects: np.ndarray
    lemmas: np.ndarray
    probability: np.ndarray
    beta: np.ndarray
    entropy: np.ndarray
    share: np.ndarray
    facts: np.ndarray
    alpha: np.ndarray
    earlier: dict[str, np.ndarray]
    maps: dict[str, np.ndarray]

    def arrays(self) -> Arrays:
        """As it is kept: maps over pixels in half precision, each by its own scale; those over places as they are."""
        plain = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in ("earlier", "maps")}
        found = plain | {f"earlier {method}": values.astype(np.float32) for method, values in self.earlier.items()}
        side = self.maps["lrp"].shape[-1]
        for method, maps in self.maps.items():
            if maps.shape[-1] == side:
                scale = np.abs(maps).max(axis=(1, 2), initial=0)
                found[f"scale {method}"] = scale
                maps = (maps / np.where(scale > 0, scale, 1)[:, None, None]).astype(np.float16)
            found[f"map {method}"] = maps
        return found

    @classmethod
    def of(cls, arrays: Arrays) -> ImageEvidence:
        """What `arrays` made of it."""
        plain = {name: values for name, values in arrays.items() if " " not in name}
        earlier = {name.split(" ")[1]: values for name, values in arrays.items() if name.startswith("earlier ")}
        kept = {method: arrays[f"map {method}"] for method in METHODS if f"map {method}" in arrays}
        maps = {}
        for method, values in kept.items():
            if f"scale {method}" in arrays:
                maps[method] = values.astype(np.float32) * arrays[f"scale {method}"][:, None, None]
            else:
                maps[method] = enlarged(values, kept["lrp"].shape[-1], smooth=method == "attention")
        return cls(earlier=earlier, maps=maps, **plain)


class EvidenceSet:
    """All cases of a bench, heard once and kept.

    Going through them leaves their maps on disk; `of` reads these, too.
    """

    def __init__(self, bench: AuditContext, images: Sequence[CaptionedImage] | None = None) -> None:
        self.bench = bench
        self.kept = bench.kept("cases", facts=WORD_FEATURES)
        self.images = bench.through(self.kept, self._hear, "explaining", images)

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[tuple[CaptionedImage, ImageEvidence]]:
        return zip(self.images, self._brief, strict=True)

    def of(self, image: CaptionedImage) -> ImageEvidence:
        """The case of an image, with maps."""
        return ImageEvidence.of(self.kept.load(self.bench.name_of(image)))

    def with_objects(self) -> list[CaptionedImage]:
        """The images whose captions have object words; a `NotApplicable` where there is none."""
        if found := [image for image, case in self if len(case.objects)]:
            return found
        raise NotApplicable(f"no object word in {len(self)} captions: is the table of object words for their language?")

    @cached_property
    def _brief(self) -> list[ImageEvidence]:
        names = map(self.bench.name_of, self.images)
        return [ImageEvidence.of(self.kept.load(name, but="map ")) for name in names]

    def _hear(self, seen: ImageBatch) -> Iterator[Arrays]:
        heard = list(decoder_evidence(self.bench, seen))
        maps = self._maps(seen, heard)
        for row, each in enumerate(heard):
            of_row = {method: values[row] for method, values in maps.items()}
            yield _case(each, of_row).arrays()

    def _maps(self, seen: ImageBatch, heard: Sequence[DecoderEvidence]) -> dict[str, list[np.ndarray]]:
        """By method and image, the maps of its object words over the encoder's square, or its places, (J, S, S)."""
        bench, S = self.bench, self.bench.side
        found = {method: [np.zeros((0, S, S), np.float32)] * len(seen) for method in METHODS}
        rows = [row for row, each in enumerate(heard) if each.objects]
        if not rows:
            return found
        asked = [about(heard[row].words, heard[row].objects) for row in rows]
        wanted = question(asked, bench.model.vocabulary, None, bench.device)
        boxes = None if seen.boxes is None else seen.boxes[rows]
        told = explain(bench.captioner, seen.pixels[rows], boxes, wanted, METHODS, bench.rules, bench.chunk)
        for method in METHODS:
            maps = of_method(told, method)
            grid = told.features.grid
            maps = maps.reshape(*maps.shape[:2], *grid) if maps.ndim == 3 and grid else on_square(maps, method, told, S)
            for place, row in enumerate(rows):
                found[method][row] = maps[: len(heard[row].objects), place]
        return found


@dataclass(frozen=True)
class DecoderEvidence:
    """A caption, and all that can be said of its words without a look at pixels."""

    words: list[str]
    lemmas: list[str | None]
    told: Evidence
    row: int  # of the batch the evidence is of
    every_fact: np.ndarray  # (K, F)

    @property
    def objects(self) -> list[int]:
        """Where object words stand."""
        return [place for place, lemma in enumerate(self.lemmas) if lemma is not None]

    @property
    def named(self) -> np.ndarray:
        """What the object words name, (J,)."""
        return np.array([self.lemmas[place] for place in self.objects], dtype=str)

    @property
    def facts(self) -> np.ndarray:
        """Of the object words, (J, F)."""
        return self.every_fact[self.objects]


def decoder_evidence(
    bench: AuditContext, seen: ImageBatch, methods: Sequence[str] = METHODS
) -> Iterator[DecoderEvidence]:
    """Caption images, and explain every word as far as features."""
    captions = bench.captions(bench.encode(seen))
    lemmas = [bench.names.lemmas(words) for words in captions]
    asked = [about(words, range(len(words))) for words in captions]
    wanted = question(asked, bench.model.vocabulary, None, bench.device)
    told = explain(bench.captioner, seen.pixels, seen.boxes, wanted, methods, bench.rules, bench.chunk, to_pixels=False)
    found = facts(bench.captioner, told, wanted, lemmas, bench.names)
    for row, words in enumerate(captions):
        yield DecoderEvidence(words, lemmas[row], told, row, found[row])


def about(words: Sequence[str], places: Sequence[int]) -> Asked:
    """The question why these words of a caption were said."""
    return Asked(tuple(words), tuple(places), tuple(words[place] for place in places))


def of_method(told: Evidence, method: str) -> np.ndarray:
    """A method's maps, (K, B, S, S) or over places (K, B, L); of heads of attention, the mean."""
    values = told.maps[method].detach().float().cpu().numpy()
    return values.mean(axis=2) if method == "attention" and told.alpha.ndim == 4 else values


def squared(told: Evidence, method: str, side: int) -> np.ndarray:
    """A method's maps over the encoder's square, (K, B, S, S)."""
    return on_square(of_method(told, method), method, told, side)


def on_square(values: np.ndarray, method: str, told: Evidence, side: int) -> np.ndarray:
    """Values (K, B, S, S) as they are, values over places (K, B, L) enlarged to the square."""
    if values.ndim == 4:
        return values
    if told.features.grid is not None:
        cells = values.reshape(*values.shape[:2], *told.features.grid)
        return enlarged(cells, side, smooth=method == "attention")
    assert told.features.boxes is not None
    boxes = told.features.boxes.float().cpu().numpy()
    size, whole = (side, side), (0.0, 0.0, float(side), float(side))
    return np.array([[in_boxes(*each, size, whole) for each in zip(of_word, boxes, strict=True)] for of_word in values])


def _case(heard: DecoderEvidence, maps: dict[str, np.ndarray]) -> ImageEvidence:
    told, row, K = heard.told, heard.row, len(heard.words)
    alpha = told.alpha[row, :K].float().numpy()
    alpha = alpha if alpha.ndim == 2 else alpha.mean(axis=1)
    before = np.tri(K, k=-1, dtype=np.float32)  # a word has a weight for those after it alone
    weights = {method: values[:K, row, 1 : K + 1].float().cpu().numpy() for method, values in told.earlier.items()}
    return ImageEvidence(
        words=np.array(heard.words, dtype=str),
        objects=np.array(heard.objects, dtype=np.int64),
        lemmas=heard.named,
        probability=told.probabilities[row, :K].numpy(),
        beta=np.full(K, np.nan) if told.beta is None else told.beta[row, :K].float().numpy(),
        entropy=entropy(alpha),
        share=told.relevances.image_share()[:K, row].numpy(),
        facts=heard.facts,
        alpha=alpha,
        earlier={method: each * before for method, each in weights.items()},
        maps=maps,
    )
