"""The hallucination risk of an object word: a logistic model of features of the word.

    risk = σ(b + Σ_i w_i clip((f_i − mean_i) / scale_i, ±LIMIT))

The features f of a word (`word_features`) need the decoder, but no relevance and no encoder. The last feature is the
object's prior: the log odds of its having been hallucinated in the data the model was fitted to. It is shrunk and
bounded (`fitting`), so that it makes no word safe by itself. `saywhy audit risk` fits the weights on captions whose
references and boxes tell which words are hallucinated. The model's folder holds them in `risk.json`, with
`objects.txt` beside it where the table of object words is not the default one. Only object words (`data.object_words`)
have a risk: references cannot tell whether "in" is hallucinated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from saywhy.captioners.base import Attention, Captioner
from saywhy.data.object_words import ObjectWords
from saywhy.data.tokenizer import PAD, Vocabulary
from saywhy.decoding.beam import prompted_log_p, sampled_captions
from saywhy.decoding.config import log_probabilities
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.explain.methods import Attributions
from saywhy.explain.targets import Targets
from saywhy.files import read_json, write_text

RISK_FILE, OBJECTS_FILE = "risk.json", "objects.txt"
FORMAT = 3
"""Of risk.json. Formats 1 and 2 had other features, so their files are refused."""
PRIOR_FEATURE = "object prior"
"""The one feature that the risk model itself knows: the object's log odds of being hallucinated."""
LIMIT = 3.0
"""Most standard deviations from the mean of a feature: beyond it, the feature says nothing more."""
WORD_FEATURES = (
    "log p",  # of the word
    "log p of synonyms",  # of all words that a reference could use for the object: a puppy for a dog
    "log p of any object",  # of all object words together
    "p of another object",  # of the likeliest object word that does not name the object
    "entropy",  # of the distribution over the next word
    "log p without image",  # of the word
    "attention entropy",  # divided by its maximum
    "beta",  # the gate; 0 for models without one
    "position",  # the number of words before it, at most 15
    "prompted, highest",  # log p of synonyms after short prompts: the highest
    "prompted, mean",  # the same: the mean
    "mentions",  # the share of sampled captions that support the object
    "unfamiliarity",  # −log of the image's familiarity; that of an ordinary photograph where it is not known
)
SAMPLES, TEMPERATURE, MAX_WORDS = 24, 1.25, 16
"""Of the sampled captions. Temperature above 1, because captioners are surer of their words than they are right."""
PROMPTS = (
    "a",
    "the",
    "two",
    "several",
    "there is a",
    "a picture of a",
    "a close up of a",
    "a man and a",
    "a person on a",
)
"""What comes before an object word; those with a word that a vocabulary lacks are left out."""
LOWEST = -14.0  # of logarithms of probabilities

Lemmas = Sequence[Sequence[str | None]]
"""The object that each target of each image names, None for words that are not object words."""


class ObjectVocabulary:
    """Which words of a vocabulary name which objects.

    Attributes:
        vocabulary: the vocabulary.
        objects: the table of object words.
        ids: the ids of all object words of the vocabulary; of sub-words, those that are a word of their own.
        prompts: the `PROMPTS` that the vocabulary can express, as token ids; the empty prompt if there are none.
    """

    def __init__(self, vocabulary: Vocabulary, objects: ObjectWords) -> None:
        self.vocabulary = vocabulary
        self.objects = objects
        lemmas = ((id, objects.lemma(word)) for id, word in vocabulary.whole_words())
        self._lemmas = {id: lemma for id, lemma in lemmas if lemma is not None}
        self._synonyms: dict[str, np.ndarray] = {}
        self.ids = np.array(list(self._lemmas), dtype=np.int64)
        prompts = [words for prompt in PROMPTS if all(map(vocabulary.has, words := prompt.split()))]
        self.prompts = [[id for ids in vocabulary.pieces(words) for id in ids] for words in prompts] or [[]]

    def synonyms(self, lemma: str) -> np.ndarray:
        """Ids of the words that support this object in a reference: its plural, synonyms and narrower words."""
        if lemma not in self._synonyms:
            supporting = self.objects.supporting(lemma)
            ids = [id for id, other in self._lemmas.items() if other in supporting]
            self._synonyms[lemma] = np.array(ids, dtype=np.int64)
        return self._synonyms[lemma]

    def names(self, word: int | None, lemma: str) -> np.ndarray:
        """Ids of the word and of all its object's synonyms; None for a word of several pieces."""
        synonyms = self.synonyms(lemma)
        return synonyms if word is None else np.union1d(synonyms, word)

    def lemmas(self, caption: Sequence[str]) -> list[str | None]:
        """The object that each word of a caption names, None for words that are not object words."""
        by_position = {mention.position: mention.lemma for mention in self.objects.mentions(caption)}
        return [by_position.get(position) for position in range(len(caption))]

    def target_lemmas(self, targets: Targets) -> list[list[str | None]]:
        """The object that each target names: in its caption, or alone where the caption has another word there."""
        rows = []
        for tokens, positions, labels in zip(targets.tokens, targets.word_positions, targets.labels, strict=True):
            caption = self.vocabulary.decode(id for id in tokens[1:].tolist() if id != PAD)
            lemmas = self.lemmas(caption)
            pairs = zip(labels, positions.tolist(), strict=False)  # positions are padded
            rows.append([lemmas[i] if word == caption[i] else self.objects.lemma(word) for word, i in pairs])
        return rows


@torch.no_grad()
def word_features(
    captioner: Captioner,
    features: Features,
    targets: Targets,
    lemmas: Lemmas,
    object_vocabulary: ObjectVocabulary,
    familiarity: Sequence[float | None] = (),
) -> np.ndarray:
    """The features of K words of B images, (B, K, F); NaN for words that are not object words.

    Args:
        captioner: the captioner.
        features: of the images.
        targets: the words.
        lemmas: the object that each word names.
        object_vocabulary: the object words of the captioner's vocabulary.
        familiarity: of each image, None or () where it is not known.
    """
    log_p, own, attention = _at_targets(captioner, features, targets)  # (B, K, V), (B, K)
    _, without_image, _ = _at_targets(captioner, captioner.without_image(features), targets)
    alpha, beta = _mean_attention(attention, targets), _gate(attention, targets)
    words, positions = _words(targets), targets.word_positions.tolist()
    state, starts = captioner.start(features), targets.tokens[:, 0]
    prompted = prompted_log_p(captioner, state, starts, object_vocabulary.prompts).cpu().numpy()  # (B, P, V)
    samples = sampled_captions(captioner, state, starts, SAMPLES, TEMPERATURE, MAX_WORDS)
    values = np.full((*own.shape, len(WORD_FEATURES)), np.nan)
    for row, row_lemmas in enumerate(lemmas):
        captions = [object_vocabulary.vocabulary.decode(sample) for sample in samples[row]]
        for k, lemma in enumerate(row_lemmas):
            if lemma is not None:
                by_name = {
                    **_at_its_position(log_p[row, k], own[row, k], words[row][k], lemma, object_vocabulary),
                    **_anywhere(prompted[row], captions, words[row][k], lemma, object_vocabulary),
                    "log p without image": max(without_image[row, k], LOWEST),
                    "attention entropy": entropy(alpha[row, k]) / np.log(max(alpha.shape[-1], 2)),
                    "beta": beta[row, k],
                    "position": min(positions[row][k], 15),
                    "unfamiliarity": _unfamiliarity(familiarity[row] if familiarity else None),
                }
                values[row, k] = [by_name[name] for name in WORD_FEATURES]
    return values


def _words(targets: Targets) -> list[list[int | None]]:
    """The token id of each target; None for a word of several pieces, whose probability is no entry of a softmax."""
    ids = targets.words.tolist()
    if targets.subwords is None:
        return ids
    lengths = targets.subwords.lengths.tolist()
    return [[id if n == 1 else None for id, n in zip(*row, strict=True)] for row in zip(ids, lengths, strict=True)]


def _at_its_position(
    log_p: np.ndarray, own: float, word: int | None, lemma: str, objects: ObjectVocabulary
) -> dict[str, float]:
    """Features of the distribution (V,) from which the word, or its first piece, was chosen; `own` is log p of it."""
    p, names = np.exp(log_p), objects.names(word, lemma)
    return {
        "log p": max(own, LOWEST),
        "log p of synonyms": _log(p[names].sum() + (np.exp(own) if word is None else 0)),
        "log p of any object": _log(p[objects.ids].sum()),
        "p of another object": p[np.setdiff1d(objects.ids, names)].max(initial=0),
        "entropy": entropy(p),
    }


def _anywhere(
    prompted: np.ndarray, captions: Sequence[Sequence[str]], word: int | None, lemma: str, objects: ObjectVocabulary
) -> dict[str, float]:
    """Features of the object elsewhere: log p after prompts (P, V), and sampled captions."""
    after_prompts = _log(np.exp(prompted[:, objects.names(word, lemma)]).sum(axis=-1))  # (P,)
    return {
        "prompted, highest": after_prompts.max(),
        "prompted, mean": after_prompts.mean(),
        "mentions": float(np.mean([objects.objects.is_supported(lemma, [caption]) for caption in captions])),
    }


def entropy(p: np.ndarray) -> np.ndarray:
    """The entropy of distributions (…, N), in nats, (…)."""
    return -(p * np.log(np.clip(p, 1e-30, None))).sum(axis=-1)


def _at_targets(captioner: Captioner, features: Features, targets: Targets) -> tuple[np.ndarray, np.ndarray, Attention]:
    """log p of every word at the targets' positions, (B, K, V), of the targets, (B, K), and the attention."""
    logits, attention = captioner(features, targets.tokens)
    log_p = log_probabilities(targets.at_positions(logits), captioner.styles).cpu().numpy()
    return log_p, targets.log_p(logits, captioner.styles).cpu().numpy(), attention


def _mean_attention(attention: Attention, targets: Targets) -> np.ndarray:
    """α of the targets, averaged over heads, (B, K, L)."""
    alpha = targets.at_positions(attention.alpha).float().cpu().numpy()
    return alpha if alpha.ndim == 3 else alpha.mean(axis=2)


def _gate(attention: Attention, targets: Targets) -> np.ndarray:
    """β of the targets, (B, K); zeros for a model without a gate."""
    if attention.beta is None:
        return np.zeros(tuple(targets.words.shape))
    return targets.at_positions(attention.beta).float().cpu().numpy()


def _unfamiliarity(familiarity: float | None) -> float:
    """−log of a familiarity, which is the share of photographs that are less familiar; on average 1 of photographs."""
    return 1.0 if familiarity is None else -float(np.log(max(familiarity, 0.01)))


def _log(p: np.ndarray) -> np.ndarray:
    """log p, at least `LOWEST`."""
    return np.log(np.maximum(p, np.exp(LOWEST)))


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
        inputs = scaled(np.column_stack([features, priors]), np.array(self.mean), np.array(self.scale))
        return 1 / (1 + np.exp(-(self.bias + inputs @ np.array(self.weights))))

    def prior(self, lemma: str | None) -> float:
        """The log odds of an object being hallucinated."""
        return self.default_prior if lemma is None else self.object_priors.get(lemma, self.default_prior)

    def as_dict(self) -> dict[str, Any]:
        """The contents of risk.json."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Risk:
        """The risk model of the contents of risk.json."""
        if data.get("format") != FORMAT:
            raise ValueError(f"its format is that of another version of saywhy, not {FORMAT}")
        fields = {name: value for name, value in data.items() if name != "format"}
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


def scaled(inputs: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Features (N, F) in units of their standard deviation, at most `LIMIT` of them from the mean.

    >>> scaled(np.array([[1.0, 90.0]]), np.array([0.0, 10.0]), np.array([2.0, 10.0])).tolist()
    [[0.5, 3.0]]
    """
    return ((inputs - mean) / scale).clip(-LIMIT, LIMIT)


@dataclass(frozen=True)
class RiskEstimator:
    """The risk of words of captions, with a model's risk model and vocabulary.

    Attributes:
        risk: the risk model.
        object_vocabulary: the object words of the model's vocabulary.
        familiarity: of each image of the batch; () where it is not known.
    """

    risk: Risk
    object_vocabulary: ObjectVocabulary
    familiarity: tuple[float | None, ...] = ()

    def for_images(self, familiarity: Sequence[float | None]) -> RiskEstimator:
        """The estimator for images of this familiarity."""
        return replace(self, familiarity=tuple(familiarity))

    def __call__(self, captioner: Captioner, attributions: Attributions, targets: Targets) -> list[list[float | None]]:
        """The risk of each explained target of each image; None for words that are not object words."""
        return self.risks(captioner, attributions.features, targets)

    def risks(self, captioner: Captioner, features: Features, targets: Targets) -> list[list[float | None]]:
        """The risk of each target of each image, from the image's features."""
        lemmas = self.object_vocabulary.target_lemmas(targets)
        values = word_features(captioner, features, targets, lemmas, self.object_vocabulary, self.familiarity)
        pairs = zip(values, lemmas, strict=True)
        risks = [self.risk(row[: len(row_lemmas)], row_lemmas) for row, row_lemmas in pairs]
        return [[None if np.isnan(value) else float(value) for value in row] for row in risks]
