"""A sweep over settings of guidance: the captions of a split with each setting, and what they say of the image.

Each image is encoded once and decoded with every setting. Captions, and the image's share of the evidence for their
words, are cached per image and setting, so an interrupted sweep continues where it stopped, and another setting costs
only its own decoding. Scores are computed from the captions each time.

The image's share of a word (`Budget.image_share`) is that of its logit without guidance, by the rules `epsilon-plus`:
it says how much of a word that guidance chose comes from the image, not from earlier words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from saywhy.audits.context import AuditContext
from saywhy.cache import Arrays, DiskCache
from saywhy.data.datasets import CaptionedImage
from saywhy.decoding.config import Decoding, decode
from saywhy.explain.composites import composite
from saywhy.explain.methods import attribute
from saywhy.explain.targets import Targets
from saywhy.inference.batches import ImageBatch
from saywhy.language_models.load_scorer import lm_key

CLASSIFIER_FREE, MUTUAL_INFORMATION, LANGUAGE_MODEL = "classifier-free", "mutual information", "language model"


RULES = composite("epsilon-plus")


@dataclass(frozen=True)
class SweptCaptions:
    """The captions of one setting.

    Attributes:
        decoding: the setting.
        words: of each image's caption, by image name.
        image_share: the image's share of each word of a caption, by image name; of some of the images.
    """

    decoding: Decoding
    words: Mapping[str, Sequence[str]]
    image_share: Mapping[str, np.ndarray]

    @property
    def kind(self) -> str:
        """The form of guidance, as `saywhy.decoding.guidance` has them."""
        if self.decoding.lm_weight is not None:
            return LANGUAGE_MODEL
        return MUTUAL_INFORMATION if self.decoding.lm else CLASSIFIER_FREE

    @property
    def label(self) -> str:
        """The setting in a few words, as the names of files have it.

        >>> SweptCaptions(Decoding(guidance=1.5), {}, {}).label
        'guidance 1.5'
        """
        settings = self.decoding.guidance_settings or {"guidance": 1}
        values = {name: value if isinstance(value, list) else [value] for name, value in settings.items()}
        return " ".join(f"{name} {' '.join(map(str, value))}" for name, value in values.items())

    def as_dict(self) -> dict[str, Any]:
        """The setting and the mean share of the image, ready for JSON."""
        shares = [share for shares in self.image_share.values() for share in shares.tolist()]
        return {
            "kind": self.kind,
            "decoding": str(self.decoding),
            **self.decoding.guidance_settings,
            "guidance": self.decoding.guidance,
            "image_share": {
                "mean": float(np.mean(shares)) if shares else None,
                "words": len(shares),
                "images": len(self.image_share),
            },
        }


def settings_of(
    decoding: Decoding,
    gammas: Sequence[float],
    lm: str = "",
    lm_weights: Sequence[tuple[float, float]] = (),
    lm_prompt: str = "",
) -> list[Decoding]:
    """The settings of a sweep: every γ, every γ with the language model in place of p(words), and every (α, β).

    γ = 1 is plain decoding, whatever takes the place of p(words).

    >>> [str(setting) for setting in settings_of(Decoding(beam=1), [1, 2], lm="lm")]
    ['beam1,length0.7,max20', 'beam1,length0.7,max20,guidance2', 'beam1,length0.7,max20,guidance2,lm:lm']
    """
    plain = replace(decoding, guidance=1.0, lm="", lm_weight=None, lm_prompt="")
    guided = [replace(plain, guidance=float(gamma)) for gamma in gammas]
    if not lm:
        return guided
    with_lm: dict[str, Any] = {"lm": lm, "lm_prompt": lm_prompt}
    pointwise = [replace(setting, **with_lm) for setting in guided if setting.guidance != 1]
    return [*guided, *pointwise, *(replace(plain, lm_weight=weight, **with_lm) for weight in lm_weights)]


def sweep(context: AuditContext, settings: Sequence[Decoding], explained: int) -> list[SweptCaptions]:
    """The captions of all images with each setting, and the image's share for `explained` of them, evenly spaced.

    Images that cannot be read are left out of all settings.
    """
    captions = _SettingCaches.of(context, "guided-captions", settings)
    images = context.compute_missing(captions, _Captioning(context, settings, captions), "captioning")
    words = captions.load_all(context, images)
    shares = _SettingCaches.of(context, "guided-image-shares", settings)
    some = context.data.evenly_spaced(explained).images
    chosen = context.compute_missing(shares, _Explaining(context, words), "explaining", some)
    image_share = shares.load_all(context, chosen)
    return [
        SweptCaptions(setting, {name: values.tolist() for name, values in by_name.items()}, share_by_name)
        for setting, by_name, share_by_name in zip(settings, words, image_share, strict=True)
    ]


@dataclass(frozen=True)
class _SettingCaches:
    """An array per image and setting; an image counts as cached if it is with every setting."""

    caches: Sequence[DiskCache]

    @classmethod
    def of(cls, context: AuditContext, stage: str, settings: Sequence[Decoding]) -> _SettingCaches:
        keys = [{"setting": str(setting), "lm": lm_key(setting.lm, setting.lm_prompt)} for setting in settings]
        return cls([context.stage_cache(stage, **key) for key in keys])

    def has(self, name: str) -> bool:
        """Whether the image is cached with every setting."""
        return all(cache.has(name) for cache in self.caches)

    def missing(self, names: Sequence[str]) -> list[int]:
        """The numbers of the settings with which at least one of these images is not cached."""
        return [number for number, cache in enumerate(self.caches) if not all(map(cache.has, names))]

    def save(self, name: str, arrays: Arrays) -> None:
        """Save the arrays of an image, by the number of the setting; other settings are left as they are."""
        for number, values in arrays.items():
            self.caches[int(number)].save(name, {"values": values})

    def load_all(self, context: AuditContext, images: Sequence[CaptionedImage]) -> list[dict[str, np.ndarray]]:
        """By setting, the array of each image."""
        return [
            {image.name: cache.load(context.image_key(image))["values"] for image in images} for cache in self.caches
        ]


@dataclass(frozen=True)
class _Captioning:
    """Captions a batch with every setting that the cache lacks; its features are computed once."""

    context: AuditContext
    settings: Sequence[Decoding]
    caches: _SettingCaches

    def __call__(self, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
        context, model = self.context, self.context.model
        features = context.encode(batch)
        captions = {}
        for number in self.caches.missing([*map(context.image_key, images)]):
            setting = self.settings[number]
            lm = model.language_model(setting.lm, setting.lm_prompt)
            hypotheses = decode(context.captioner, features, setting, start=context.start_token, lm=lm)
            captions[str(number)] = [model.vocabulary.decode(hypothesis.tokens) for hypothesis in hypotheses]
        for row in range(len(batch)):
            yield {number: np.array(rows[row], dtype=str) for number, rows in captions.items()}


@dataclass(frozen=True)
class _Explaining:
    """The image's share of every word; a caption that several settings have is explained once."""

    context: AuditContext
    words: Sequence[Mapping[str, np.ndarray]]

    def __call__(self, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
        captions = [[tuple(by_name[image.name].tolist()) for by_name in self.words] for image in images]
        distinct = [(row, caption) for row, own in enumerate(captions) for caption in dict.fromkeys(own) if caption]
        shares = self._image_shares(batch, distinct)
        nothing = np.zeros(0, np.float32)
        for row, own in enumerate(captions):
            yield {str(number): shares.get((row, caption), nothing) for number, caption in enumerate(own)}

    def _image_shares(
        self, batch: ImageBatch, captions: Sequence[tuple[int, tuple[str, ...]]]
    ) -> dict[tuple[int, tuple[str, ...]], np.ndarray]:
        context, shares, size = self.context, {}, max(1, len(batch))
        for start in range(0, len(captions), size):
            part = captions[start : start + size]
            chosen = batch.select([row for row, _ in part])
            texts = [caption for _, caption in part]
            targets = Targets.of_captions(texts, None, context.model.vocabulary, context.device, style=context.style)
            attributions = attribute(
                context.captioner, chosen.pixels, chosen.boxes, targets, ("lrp",), RULES, to_pixels=False
            )
            share = attributions.relevance.image_share().float().numpy()  # (K, B)
            shares.update({key: share[: len(key[1]), column] for column, key in enumerate(part)})
        return shares
