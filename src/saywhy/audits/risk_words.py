"""The object words of all captions of a split, with the features and labels from which a risk is fitted and tested."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.cache import Arrays
from saywhy.data.coco_objects import coco_mentions
from saywhy.data.datasets import CaptionedImage
from saywhy.explain.targets import Targets
from saywhy.hallucination import fitting
from saywhy.hallucination.chair import image_objects
from saywhy.hallucination.labels import evidence_of_objects
from saywhy.hallucination.risk_model import (
    MAX_WORDS,
    PROMPTS,
    SAMPLES,
    TEMPERATURE,
    WORD_FEATURES,
    ObjectVocabulary,
    Risk,
    word_features,
)
from saywhy.inference.batches import ImageBatch

PRIMARY = "references and boxes"
REFERENCES_ONLY = "references"
CHAIR = "CHAIR, COCO's 80 objects"


class ObjectWordFeatures(NamedTuple):
    """The object words of all captions.

    Attributes:
        images: the image of each word, N names.
        lemmas: the object that each word names, (N,).
        features: the word features, (N, F).
        categories: COCO's category that each word names, (N,); "" for none.
    """

    images: list[str]
    lemmas: np.ndarray
    features: np.ndarray
    categories: np.ndarray

    @classmethod
    def compute(cls, context: AuditContext) -> ObjectWordFeatures:
        """The object words of a context's images."""
        familiarity = context.model.familiarity
        cache = context.stage_cache(
            "object-words",
            features=WORD_FEATURES,
            samples=(SAMPLES, TEMPERATURE, MAX_WORDS),
            prompts=[prompt.split() for prompt in PROMPTS],
            familiarity=None if familiarity is None else familiarity.quantiles.tolist(),
        )
        images = context.compute_missing(cache, partial(_object_words, context), "computing word features")
        names: list[str] = []
        parts: dict[str, list[np.ndarray]] = {
            "lemmas": [np.zeros(0, str)],
            "features": [np.zeros((0, len(WORD_FEATURES)))],
            "categories": [np.zeros(0, str)],
        }
        for image in images:
            arrays = cache.load(context.image_key(image))
            names += [image.name] * len(arrays["lemmas"])
            for name, values in parts.items():
                values.append(arrays[name])
        joined = {name: np.concatenate(values) for name, values in parts.items()}
        return cls(names, **joined)

    def made_up(self, context: AuditContext) -> np.ndarray:
        """Whether neither a reference nor a box supports each word, (N,) bool; without boxes, references alone."""
        supported = {
            image.name: context.object_words.supported(evidence_of_objects(image, context.phrases))
            for image in context.data.images
        }
        return self._missing(supported)

    def made_up_by_other_rules(self, context: AuditContext) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By rule, whether it covers each word and whether the word is then made up, (N,) bool both."""
        if context.phrases is None:
            return {}
        references = {
            image.name: context.object_words.supported(evidence_of_objects(image, None))
            for image in context.data.images
        }
        rules = {REFERENCES_ONLY: (np.ones(len(self.images), bool), self._missing(references))}
        if context.phrases.are_coco and all(image.name in context.phrases for image in context.data.images):
            objects = image_objects(context.data, phrases=context.phrases).sets
            by_name = dict(zip((image.name for image in context.data.images), objects, strict=True))
            pairs = zip(self.images, self.categories.tolist(), strict=True)
            missing = np.array([category not in by_name[image] for image, category in pairs], bool)
            rules[CHAIR] = (self.categories != "", missing)
        return rules

    def select(self, selected: np.ndarray) -> ObjectWordFeatures:
        """The words where `selected` (N,) is true."""
        images = [name for name, keep in zip(self.images, selected, strict=True) if keep]
        return ObjectWordFeatures(images, self.lemmas[selected], self.features[selected], self.categories[selected])

    def _missing(self, supported: dict[str, frozenset[str]]) -> np.ndarray:
        pairs = zip(self.images, self.lemmas.tolist(), strict=True)
        return np.array([lemma not in supported[image] for image, lemma in pairs], bool)


def fit(contexts: Sequence[AuditContext]) -> Risk:
    """Fit a risk to all object words of the captions of one or several data sets."""
    words = [ObjectWordFeatures.compute(context) for context in contexts]
    names, splits = [context.data.name for context in contexts], [context.data.images[0].split for context in contexts]
    about = {
        "data": names,
        "split": "+".join(sorted({*splits})),
        "styles": [context.style for context in contexts],
        "object_words": contexts[0].object_words.key,
        "truth": [PRIMARY if context.phrases else REFERENCES_ONLY for context in contexts],
    }
    try:
        return fitting.fit(
            np.concatenate([part.features for part in words]),
            np.concatenate([part.lemmas for part in words]),
            np.concatenate([part.made_up(context) for part, context in zip(words, contexts, strict=True)]),
            [f"{name}/{image}" for name, part in zip(names, words, strict=True) for image in part.images],
            about,
        )
    except fitting.TooFewWords as error:
        raise NotApplicable(f"{' and '.join(names)} {about['split']}: {error}") from None


def _object_words(context: AuditContext, batch: ImageBatch, images: list[CaptionedImage]) -> Iterator[Arrays]:
    """The object words of the caption of each image of a batch."""
    objects = ObjectVocabulary(context.model.vocabulary, context.object_words)
    features, scores = context.model.encode_and_score(batch)
    captions = context.captions(features)
    targets = Targets.of_captions(captions, None, context.model.vocabulary, context.device, style=context.style)
    lemmas = [objects.lemmas(words) for words in captions]
    familiarity = [score.get("familiarity") for score in scores]
    values = word_features(context.captioner, features, targets, lemmas, objects, familiarity)
    for row, words in enumerate(captions):
        positions = [position for position, lemma in enumerate(lemmas[row]) if lemma is not None]
        categories = {mention.position: mention.lemma for mention in coco_mentions(words)}
        yield {
            "lemmas": np.array([lemmas[row][position] for position in positions], dtype=str),
            "features": values[row][positions],
            "categories": np.array([categories.get(position, "") for position in positions], dtype=str),
        }
