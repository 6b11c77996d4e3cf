"""The evidence that audits test: for each image, the caption and the explanations of its words by every method.

Every word is explained down to the features (earlier words, budget, gate), and object words also down to the pixels.
Evidence is computed once and cached for all audits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.cache import Arrays
from saywhy.data.datasets import CaptionedImage
from saywhy.data.object_words import Mention
from saywhy.data.preprocess import boxes_on_image, upsample_grid
from saywhy.explain.methods import METHODS, Attributions, attribute
from saywhy.explain.targets import Targets
from saywhy.inference.batches import ImageBatch


@dataclass(frozen=True)
class ImageEvidence:
    """The caption of an image and its explanation.

    Attributes:
        words: the K words of the caption.
        objects: positions of the J object words, (J,).
        lemmas: the objects that these words name, (J,).
        probability: of each word, (K,).
        beta: the gate at each word, (K,); NaN if the model has none.
        attention_entropy: at each word, in nats, (K,).
        image_share: the image's share of each word's evidence, (K,).
        alpha: the attention at each word, the mean over heads, (K, L).
        earlier_words: by method, the weight of each word (column) for each word (row), (K, K); zero on and above the
            diagonal.
        maps: by method, the maps of the object words over the encoder's input, (J, S, S); empty if they were not
            loaded. Maps over features are cached as such and enlarged when they are loaded.
    """

    words: np.ndarray
    objects: np.ndarray
    lemmas: np.ndarray
    probability: np.ndarray
    beta: np.ndarray
    attention_entropy: np.ndarray
    image_share: np.ndarray
    alpha: np.ndarray
    earlier_words: dict[str, np.ndarray]
    maps: dict[str, np.ndarray]

    def to_arrays(self) -> Arrays:
        """For the cache: maps over pixels are scaled to their maximum and stored in half precision."""
        names = [field.name for field in fields(self) if field.name not in ("earlier_words", "maps")]
        arrays = {name: getattr(self, name) for name in names}
        for method, weights in self.earlier_words.items():
            arrays[f"earlier {method}"] = weights.astype(np.float32)
        input_size = self.maps["lrp"].shape[-1]
        for method, maps in self.maps.items():
            if maps.shape[-1] == input_size:
                scale = np.abs(maps).max(axis=(1, 2), initial=0)
                arrays[f"scale {method}"] = scale
                maps = (maps / np.where(scale > 0, scale, 1)[:, None, None]).astype(np.float16)
            arrays[f"map {method}"] = maps
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> ImageEvidence:
        """The inverse of `to_arrays`."""
        plain = {name: values for name, values in arrays.items() if " " not in name}
        earlier_words = {name.split(" ")[1]: values for name, values in arrays.items() if name.startswith("earlier ")}
        cached = {method: arrays[f"map {method}"] for method in METHODS if f"map {method}" in arrays}
        maps = {}
        for method, values in cached.items():
            if f"scale {method}" in arrays:
                maps[method] = values.astype(np.float32) * arrays[f"scale {method}"][:, None, None]
            else:
                maps[method] = upsample_grid(values, cached["lrp"].shape[-1], smooth=method == "attention")
        return cls(earlier_words=earlier_words, maps=maps, **plain)


class EvidenceSet:
    """The evidence of all images of a context, computed once and cached.

    Iterating does not load the maps; `load` does. With `empty` nothing is computed, for audits that need no evidence.
    """

    def __init__(self, context: AuditContext, empty: bool = False) -> None:
        self.context = context
        self.cache = context.stage_cache("evidence")
        self.images = [] if empty else context.compute_missing(self.cache, self._compute, "explaining captions")

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[tuple[CaptionedImage, ImageEvidence]]:
        return zip(self.images, self._without_maps, strict=True)

    def load(self, image: CaptionedImage) -> ImageEvidence:
        """The evidence of an image, with maps."""
        return ImageEvidence.from_arrays(self.cache.load(self.context.image_key(image)))

    def images_with_objects(self) -> list[CaptionedImage]:
        """The images whose captions have object words; raises `NotApplicable` if there are none."""
        if images := [image for image, caption in self if len(caption.objects)]:
            return images
        raise NotApplicable(
            f"no object word in {len(self)} captions; give --object-words a table in the language of the captions"
        )

    @cached_property
    def _without_maps(self) -> list[ImageEvidence]:
        keys = map(self.context.image_key, self.images)
        return [ImageEvidence.from_arrays(self.cache.load(key, skip="map ")) for key in keys]

    def _compute(self, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
        evidence = decoder_evidence(self.context, batch)
        maps = self._maps(batch, evidence)
        for row in range(len(batch)):
            image_maps = {method: values[row] for method, values in maps.items()}
            yield _image_evidence(evidence, row, image_maps).to_arrays()

    def _maps(self, batch: ImageBatch, evidence: DecoderEvidence) -> dict[str, list[np.ndarray]]:
        """By method and image, the maps of its object words: (J, S, S), or (J, height, width) of the feature grid."""
        context, S, objects = self.context, self.context.input_size, evidence.objects
        maps = {method: [np.zeros((0, S, S), np.float32)] * len(batch) for method in METHODS}
        rows = [row for row in range(len(batch)) if objects[row]]
        if not rows:
            return maps
        captions, positions = [evidence.captions[row] for row in rows], [objects[row] for row in rows]
        attributions = explain_words(context, batch.select(rows), captions, positions)
        grid = attributions.features.grid
        for method in METHODS:
            values = method_maps(attributions, method)
            if values.ndim == 3 and grid and method != "lrp":  # the size of LRP's map is that of the input
                values = values.reshape(*values.shape[:2], *grid)
            else:
                values = over_input(values, method, attributions, S)
            for i, row in enumerate(rows):
                maps[method][row] = values[: len(objects[row]), i]
        return maps


@dataclass(frozen=True)
class DecoderEvidence:
    """The captions of a batch of images, and the explanation of their words down to the features.

    Attributes:
        captions: the words of each image's caption.
        mentions: the object words of each caption.
        targets: all words of all captions.
        attributions: of these words.
    """

    captions: list[list[str]]
    mentions: list[tuple[Mention, ...]]
    targets: Targets
    attributions: Attributions

    @property
    def objects(self) -> list[list[int]]:
        """Positions of the object words of each caption."""
        return [[mention.position for mention in mentions] for mentions in self.mentions]

    @property
    def lemmas(self) -> list[np.ndarray]:
        """The objects that the object words of each caption name, (J,)."""
        return [np.array([mention.lemma for mention in mentions], dtype=str) for mentions in self.mentions]


def decoder_evidence(context: AuditContext, batch: ImageBatch, methods: Sequence[str] = METHODS) -> DecoderEvidence:
    """Caption the images of a batch, and explain every word down to the features."""
    captions = context.captions(context.encode(batch))
    mentions = [context.object_words.mentions(words) for words in captions]
    targets = Targets.of_captions(captions, None, context.model.vocabulary, context.device, style=context.style)
    attributions = attribute(
        context.captioner, batch.pixels, batch.boxes, targets, methods, context.composite, to_pixels=False
    )
    return DecoderEvidence(captions, mentions, targets, attributions)


def explain_words(
    context: AuditContext,
    batch: ImageBatch,
    captions: Sequence[Sequence[str]],
    positions: Sequence[Sequence[int]],
    methods: Sequence[str] = METHODS,
) -> Attributions:
    """Explain the words at these positions of each caption, down to the pixels and by every method."""
    targets = Targets.of_captions(captions, positions, context.model.vocabulary, context.device, style=context.style)
    return attribute(context.captioner, batch.pixels, batch.boxes, targets, methods, context.composite)


def method_maps(attributions: Attributions, method: str) -> np.ndarray:
    """The maps of a method, (K, B, S, S), or over features (K, B, L); the mean over attention heads."""
    values = attributions.maps[method].detach().float().cpu().numpy()
    return values.mean(axis=2) if method == "attention" and attributions.alpha.ndim == 4 else values


def input_maps(attributions: Attributions, method: str, input_size: int) -> np.ndarray:
    """The maps of a method over the encoder's input, (K, B, S, S)."""
    return over_input(method_maps(attributions, method), method, attributions, input_size)


def over_input(values: np.ndarray, method: str, attributions: Attributions, input_size: int) -> np.ndarray:
    """Values (K, B, S, S) unchanged; values over features (K, B, L) enlarged to the encoder's input."""
    if values.ndim == 4:
        return values
    if attributions.features.grid is not None:
        cells = values.reshape(*values.shape[:2], *attributions.features.grid)
        return upsample_grid(cells, input_size, smooth=method == "attention")
    assert attributions.features.boxes is not None
    boxes = attributions.features.boxes.float().cpu().numpy()
    size, crop = (input_size, input_size), (0.0, 0.0, float(input_size), float(input_size))
    return np.array(
        [
            [boxes_on_image(*pair, size, crop) for pair in zip(image_values, boxes, strict=True)]
            for image_values in values
        ]
    )


def _image_evidence(evidence: DecoderEvidence, row: int, maps: dict[str, np.ndarray]) -> ImageEvidence:
    attributions, words = evidence.attributions, evidence.captions[row]
    K = len(words)
    alpha = attributions.alpha[row, :K].float().numpy()
    alpha = alpha if alpha.ndim == 2 else alpha.mean(axis=1)
    causal = np.tri(K, k=-1, dtype=np.float32)  # only earlier words have a weight
    earlier_words = {
        method: values[:K, row, 1 : K + 1].float().cpu().numpy() * causal
        for method, values in attributions.earlier_words.items()
    }
    return ImageEvidence(
        words=np.array(words, dtype=str),
        objects=np.array(evidence.objects[row], dtype=np.int64),
        lemmas=evidence.lemmas[row],
        probability=attributions.probabilities[row, :K].numpy(),
        beta=np.full(K, np.nan) if attributions.beta is None else attributions.beta[row, :K].float().numpy(),
        attention_entropy=-(alpha * np.log(np.clip(alpha, 1e-30, None))).sum(axis=-1),
        image_share=attributions.relevance.image_share()[:K, row].numpy(),
        alpha=alpha,
        earlier_words=earlier_words,
        maps=maps,
    )
