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

from saywhy.captioners.base import Captioner
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.explain.methods import Attributions
from saywhy.explain.passes import Targets
from saywhy.files import read_json, write_text
from saywhy.hallucination.word_features import WORD_FEATURES, ObjectVocabulary, word_features

RISK_FILE, OBJECTS_FILE = "risk.json", "objects.txt"
FORMAT = 3
"""Of risk.json. Formats 1 and 2 had other features, so their files are refused."""
PRIOR_FEATURE = "object prior"
"""The one feature that the risk model itself knows: the object's log odds of being hallucinated."""
LIMIT = 3.0
"""Most standard deviations from the mean of a feature: beyond it, the feature says nothing more."""


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
