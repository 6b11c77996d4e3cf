"""The hallucination risk of an object word: a logistic model of features of the word.

    risk = σ(b + Σ_i w_i (f_i − mean_i) / scale_i)

The features f of a word need backward passes through the decoder, but none through the encoder. The last feature is
the object's prior: the log odds of its having been hallucinated in the data the model was fitted to.
`saywhy audit risk` fits the weights on captions whose references tell which words are hallucinated. The model's folder
holds them in `risk.json`, with `objects.txt` beside it where the table of object words is not the default one.
Only object words (`data.object_words`) have a risk: references cannot tell whether "in" is hallucinated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saywhy.captioners.base import Captioner
from saywhy.data.object_words import ObjectWords
from saywhy.data.tokenizer import PAD, Vocabulary
from saywhy.decoding.config import log_probabilities
from saywhy.errors import UserError
from saywhy.explain.methods import Attributions
from saywhy.explain.passes import Targets
from saywhy.files import read_json, write_text

RISK_FILE, OBJECTS_FILE = "risk.json", "objects.txt"
FORMAT = 2
"""Of risk.json; 0.1 wrote no format."""
WORD_FEATURES = (
    "log p",  # of the word
    "log p of synonyms",  # of all words that a reference could use for the object: a puppy for a dog
    "p of synonyms",  # the same without logarithm, which separates high probabilities
    "log p of any object",  # of all object words together
    "entropy",  # of the distribution over the next word
    "log p without image",  # of the word
    "image share",  # of the evidence budget
    "low relevance",  # 5 % quantile of LRP over features, divided by its mean absolute value
    "negative relevance",  # the negative share of LRP over features
    "attention entropy",  # divided by its maximum
    "beta",  # the gate; 0 for models without one
    "position",  # the number of words before it, at most 15
)
PRIOR_FEATURE = "object prior"
"""The one feature that the risk model itself knows: the object's log odds of being hallucinated."""
FEATURES_OF_0_1 = {
    "log p of its names": "log p of synonyms",
    "p of its names": "p of synonyms",
    "log p unseen": "log p without image",
    "picture share": "image share",
    "relevance low": "low relevance",
    "relevance against": "negative relevance",
    "habit": PRIOR_FEATURE,
}
SMALLEST = 1e-6  # added to probabilities before a logarithm

Lemmas = Sequence[Sequence[str | None]]
"""The object that each target of each image names, None for words that are not object words."""


class ObjectVocabulary:
    """Which words of a vocabulary name which objects.

    Attributes:
        objects: the table of object words.
        ids: the ids of all object words of the vocabulary.
    """

    def __init__(self, vocabulary: Vocabulary, objects: ObjectWords) -> None:
        self.vocabulary = vocabulary
        self.objects = objects
        lemmas = ((id, objects.lemma(word)) for id, word in enumerate(vocabulary.words))
        self._lemmas = {id: lemma for id, lemma in lemmas if lemma is not None}
        self._synonyms: dict[str, np.ndarray] = {}
        self.ids = np.array(list(self._lemmas), dtype=np.int64)

    def synonyms(self, lemma: str) -> np.ndarray:
        """Ids of the words that support this object in a reference: its plural, synonyms and narrower words."""
        if lemma not in self._synonyms:
            supporting = self.objects.supporting(lemma)
            ids = [id for id, other in self._lemmas.items() if other in supporting]
            self._synonyms[lemma] = np.array(ids, dtype=np.int64)
        return self._synonyms[lemma]

    def lemmas(self, caption: Sequence[str]) -> list[str | None]:
        """The object that each word of a caption names, None for words that are not object words."""
        by_position = {mention.position: mention.lemma for mention in self.objects.mentions(caption)}
        return [by_position.get(position) for position in range(len(caption))]

    def target_lemmas(self, targets: Targets) -> list[list[str | None]]:
        """The object that each target names: in its caption, or alone where the caption has another word there."""
        rows = []
        for tokens, positions, labels in zip(targets.tokens, targets.positions, targets.labels, strict=True):
            caption = self.vocabulary.decode(id for id in tokens[1:].tolist() if id != PAD)
            lemmas = self.lemmas(caption)
            pairs = zip(labels, positions.tolist(), strict=False)  # positions are padded
            rows.append([lemmas[i] if word == caption[i] else self.objects.lemma(word) for word, i in pairs])
        return rows


@torch.no_grad()
def word_features(
    captioner: Captioner,
    attributions: Attributions,
    targets: Targets,
    lemmas: Lemmas,
    object_vocabulary: ObjectVocabulary,
) -> np.ndarray:
    """The features of K words of B images, (B, K, F); NaN for words that are not object words."""
    log_p = attributions.log_p.numpy()  # (B, K, V)
    p = np.exp(log_p)
    relevance = attributions.relevance.features.transpose(0, 1).numpy()  # (B, K, L)
    strength = np.abs(relevance).sum(axis=-1) + SMALLEST
    attention = _mean_attention(attributions)  # (B, K, L)
    p_synonyms = _synonym_probability(p, targets.words.cpu().numpy(), lemmas, object_vocabulary)
    by_name = {
        "log p": np.log(attributions.probabilities.numpy() + SMALLEST),
        "log p of synonyms": np.log(p_synonyms + SMALLEST),
        "p of synonyms": p_synonyms,
        "log p of any object": np.log(p[..., object_vocabulary.ids].sum(axis=-1) + SMALLEST),
        "entropy": entropy(p),
        "log p without image": _log_p_without_image(captioner, attributions, targets),
        "image share": attributions.relevance.image_share().T.numpy(),
        "low relevance": np.quantile(relevance, 0.05, axis=-1) / strength * relevance.shape[-1],
        "negative relevance": np.clip(-relevance, 0, None).sum(axis=-1) / strength,
        "attention entropy": entropy(attention) / np.log(max(attention.shape[-1], 2)),
        "beta": np.zeros(p.shape[:2]) if attributions.beta is None else attributions.beta.numpy(),
        "position": np.minimum(targets.positions.cpu().numpy(), 15),
    }
    features = np.stack([by_name[name] for name in WORD_FEATURES], axis=-1).astype(np.float64)  # (B, K, F)
    is_object = np.zeros(features.shape[:2], bool)
    for row, row_lemmas in enumerate(lemmas):
        is_object[row, : len(row_lemmas)] = [lemma is not None for lemma in row_lemmas]
    features[~is_object] = np.nan
    return features


def entropy(p: np.ndarray) -> np.ndarray:
    """The entropy of distributions (…, N), in nats, (…)."""
    return -(p * np.log(np.clip(p, 1e-30, None))).sum(axis=-1)


def _log_p_without_image(captioner: Captioner, attributions: Attributions, targets: Targets) -> np.ndarray:
    """Log p of the targets if the captioner had no image, (B, K)."""
    logits, _ = captioner(captioner.without_image(attributions.features), targets.tokens)
    log_p = log_probabilities(targets.at_positions(logits), captioner.styles)
    log_p = log_p.gather(-1, targets.words.unsqueeze(-1))[..., 0]
    return log_p.clamp(min=np.log(SMALLEST)).cpu().numpy()


def _mean_attention(attributions: Attributions) -> np.ndarray:
    """α of the targets, averaged over heads, (B, K, L)."""
    alpha = attributions.alpha.float().numpy()
    return alpha if alpha.ndim == 3 else alpha.mean(axis=2)


def _synonym_probability(
    p: np.ndarray, words: np.ndarray, lemmas: Lemmas, object_vocabulary: ObjectVocabulary
) -> np.ndarray:
    """The sum of p over each target and its synonyms, (B, K)."""
    sums = np.zeros(p.shape[:2])
    for row, row_lemmas in enumerate(lemmas):
        for k, lemma in enumerate(row_lemmas):
            if lemma is not None:
                sums[row, k] = p[row, k, np.union1d(object_vocabulary.synonyms(lemma), words[row, k])].sum()
    return sums


@dataclass(frozen=True)
class Risk:
    """The weights of the risk model.

    Attributes:
        features: the names of the features, `PRIOR_FEATURE` last.
        mean: of each feature.
        scale: of each feature.
        weights: of each feature after centring and scaling.
        bias: b.
        object_priors: log odds of being hallucinated, by object.
        default_prior: the log odds of objects that the fitting data did not have.
        about: what it was fitted to: data, split, numbers of images and words, cross-validated scores.
    """

    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    object_priors: dict[str, float]
    default_prior: float
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.features != (*WORD_FEATURES, PRIOR_FEATURE):
            raise ValueError("its features are those of another version of saywhy")
        vectors = [np.asarray(values, float) for values in (self.mean, self.scale, self.weights)]
        if any(vector.shape != (len(self.features),) or not np.isfinite(vector).all() for vector in vectors):
            raise ValueError("mean, scale and weights need one finite number per feature")
        if not (np.asarray(self.scale) > 0).all():
            raise ValueError("a scale is not above 0")
        if not np.isfinite([self.bias, self.default_prior, *self.object_priors.values()]).all():
            raise ValueError("bias or an object prior is not a finite number")

    def __call__(self, features: np.ndarray, lemmas: Sequence[str | None]) -> np.ndarray:
        """The risk of N words with features (N, F) and the objects they name, (N,); NaN for other words."""
        priors = [self.prior(lemma) for lemma in lemmas]
        scaled = (np.column_stack([features, priors]) - np.array(self.mean)) / np.array(self.scale)
        return 1 / (1 + np.exp(-(self.bias + scaled @ np.array(self.weights))))

    def prior(self, lemma: str | None) -> float:
        """The log odds of an object being hallucinated."""
        return self.default_prior if lemma is None else self.object_priors.get(lemma, self.default_prior)

    def as_dict(self) -> dict[str, Any]:
        """The contents of risk.json."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Risk:
        """The risk model of the contents of risk.json."""
        fields = {name: value for name, value in upgrade(data).items() if name != "format"}
        vectors = {name: tuple(fields[name]) for name in ("features", "mean", "scale", "weights")}
        return cls(**{**fields, **vectors})

    def save(self, folder: str | Path) -> None:
        """Write risk.json into a model's folder."""
        write_text(Path(folder) / RISK_FILE, json.dumps(self.as_dict(), indent=2) + "\n")

    @classmethod
    def read(cls, folder: str | Path) -> Risk | None:
        """Read risk.json of a model's folder; None where it has none."""
        path = Path(folder) / RISK_FILE
        if not path.exists():
            return None
        data = read_json(path)
        try:
            return cls.from_dict(data)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path}: not a risk model of saywhy ({error}); delete it or fit it again") from None


def upgrade(data: dict[str, Any]) -> dict[str, Any]:
    """The contents of risk.json in the present format, which has other names than that of 0.1."""
    if "facts" not in data:
        return data
    about_names = {"pictures": "images", "objects": "object_words"}
    return {
        "features": [FEATURES_OF_0_1.get(name, name) for name in data["facts"]],
        **{name: data[name] for name in ("mean", "scale", "weights", "bias")},
        "object_priors": data["habits"],
        "default_prior": data["usual"],
        "about": {about_names.get(name, name): value for name, value in data.get("about", {}).items()},
    }


@dataclass(frozen=True)
class RiskEstimator:
    """The risk of explained words, with a model's risk model and vocabulary."""

    risk: Risk
    object_vocabulary: ObjectVocabulary

    def __call__(self, captioner: Captioner, attributions: Attributions, targets: Targets) -> list[list[float | None]]:
        """The risk of each target of each image; None for words that are not object words."""
        lemmas = self.object_vocabulary.target_lemmas(targets)
        features = word_features(captioner, attributions, targets, lemmas, self.object_vocabulary)  # (B, K, F)
        pairs = zip(features, lemmas, strict=True)
        risks = [self.risk(row[: len(row_lemmas)], row_lemmas) for row, row_lemmas in pairs]
        return [[None if np.isnan(value) else float(value) for value in row] for row in risks]
