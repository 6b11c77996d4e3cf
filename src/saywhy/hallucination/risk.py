"""How likely an object word is made up: a logistic model of what is known of the word when it is said.

    risk = σ(b + Σ_i w_i (f_i − mean_i) / scale_i)

The facts f of a word cost one pass through the decoder and none through the encoder; the last is how often its thing
was made up where the risk was fitted, as log odds. `saywhy audit risk` fits the weights, on captions whose references
say which words were made up. `risk.json` in the model's folder keeps them, with `objects.txt` beside it where the table
of object words is not the usual one.
Only object words (`data.objects`) have a risk: whether "in" is made up, no reference can tell.
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
from saywhy.data.vocabulary import Vocabulary
from saywhy.decoding.config import log_probabilities
from saywhy.errors import UserError
from saywhy.explain.methods import Evidence
from saywhy.explain.passes import Question
from saywhy.explain.request import Asked
from saywhy.files import write_text

RISK, OBJECTS = "risk.json", "objects.txt"
WORD_FEATURES = (
    "log p",  # of the word
    "log p of its names",  # of all words that would make it true: a puppy for a dog
    "p of its names",  # the same as it is: between sure and very sure there is a difference, too
    "log p of any object",  # of all object words together: whether a thing was due here at all
    "entropy",  # of the next word
    "log p unseen",  # of the word, had there been no image
    "image share",  # of the evidence budget
    "relevance low",  # 5 % quantile of LRP over places, by its mean strength
    "relevance against",  # the part of LRP over places that speaks against the word
    "attention entropy",  # as a share of the largest there is
    "beta",  # the gate; 0 where there is none
    "position",  # words before it, at most 15
)
PRIOR_FEATURE = "habit"  # how often the thing was made up before, as log odds: the one fact that a risk itself knows
LEAST = 1e-6  # added to probabilities before a logarithm


class Names:
    """Which words of a vocabulary name which things."""

    def __init__(self, vocabulary: Vocabulary, objects: ObjectWords) -> None:
        self.objects = objects
        found = ((number, objects.lemma(word)) for number, word in enumerate(vocabulary.words))
        self._lemmas = {number: lemma for number, lemma in found if lemma is not None}
        self._attesting: dict[str, np.ndarray] = {}
        self.every = np.array(list(self._lemmas), dtype=np.int64)
        """Numbers of all object words."""

    def attesting(self, lemma: str) -> np.ndarray:
        """Numbers of the words that make this thing true."""
        if lemma not in self._attesting:
            true = self.objects.attests(lemma)
            numbers = [number for number, each in self._lemmas.items() if each in true]
            self._attesting[lemma] = np.array(numbers, dtype=np.int64)
        return self._attesting[lemma]

    def lemmas(self, words: Sequence[str]) -> list[str | None]:
        """The thing that each word of a caption names, None where it is no object word."""
        at = {mention.position: mention.lemma for mention in self.objects.mentions(words)}
        return [at.get(position) for position in range(len(words))]

    def asked_about(self, asked: Asked) -> list[str | None]:
        """The thing that each word in question names, whether it was said in its place or another was."""
        said = self.lemmas(asked.tokens)
        pairs = zip(asked.places, asked.words, strict=True)
        return [said[i] if word == asked.tokens[i] else self.objects.lemma(word) for i, word in pairs]


@torch.no_grad()
def facts(
    captioner: Captioner, evidence: Evidence, question: Question, lemmas: Sequence[Sequence[str | None]], names: Names
) -> np.ndarray:
    """The facts of K words of B images, (B, K, F); of words that name no thing they are NaN.

    `lemmas` says of each image what its words in question name.
    """
    log_p = evidence.log_p.numpy()  # (B, K, V)
    p = np.exp(log_p)
    unseen, _ = captioner(captioner.without_image(evidence.features), question.said)
    unseen = log_probabilities(question.at_places(unseen)).gather(-1, question.words.unsqueeze(-1))[..., 0]  # (B, K)
    places = evidence.relevances.places.transpose(0, 1).numpy()  # (B, K, L)
    strength = np.abs(places).sum(axis=-1) + LEAST
    attention = _attention(evidence)  # (B, K, L)
    of_names = _of_names(p, question.words.cpu().numpy(), lemmas, names)
    told = {
        "log p": np.log(evidence.probabilities.numpy() + LEAST),
        "log p of its names": np.log(of_names + LEAST),
        "p of its names": of_names,
        "log p of any object": np.log(p[..., names.every].sum(axis=-1) + LEAST),
        "entropy": entropy(p),
        "log p unseen": unseen.clamp(min=np.log(LEAST)).cpu().numpy(),
        "image share": evidence.relevances.image_share().T.numpy(),
        "relevance low": np.quantile(places, 0.05, axis=-1) / strength * places.shape[-1],
        "relevance against": np.clip(-places, 0, None).sum(axis=-1) / strength,
        "attention entropy": entropy(attention) / np.log(max(attention.shape[-1], 2)),
        "beta": np.zeros(p.shape[:2]) if evidence.beta is None else evidence.beta.numpy(),
        "position": np.minimum(question.places.cpu().numpy(), 15),
    }
    found = np.stack([told[name] for name in WORD_FEATURES], axis=-1).astype(np.float64)  # (B, K, F)
    names_a_thing = np.zeros(found.shape[:2], bool)
    for row, of_row in enumerate(lemmas):
        names_a_thing[row, : len(of_row)] = [lemma is not None for lemma in of_row]
    found[~names_a_thing] = np.nan
    return found


def entropy(shares: np.ndarray) -> np.ndarray:
    """Of shares (…, N) that add up to one: (…), in nats."""
    return -(shares * np.log(np.clip(shares, 1e-30, None))).sum(axis=-1)


def _attention(evidence: Evidence) -> np.ndarray:
    """α of the words in question, the mean of its heads, (B, K, L)."""
    alpha = evidence.alpha.float().numpy()
    return alpha if alpha.ndim == 3 else alpha.mean(axis=2)


def _of_names(p: np.ndarray, words: np.ndarray, lemmas: Sequence[Sequence[str | None]], names: Names) -> np.ndarray:
    """Of each word, p of itself and of all others that would make what it names true, (B, K)."""
    found = np.zeros(p.shape[:2])
    for row, of_row in enumerate(lemmas):
        for k, lemma in enumerate(of_row):
            if lemma is not None:
                found[row, k] = p[row, k, np.union1d(names.attesting(lemma), words[row, k])].sum()
    return found


@dataclass(frozen=True)
class Risk:
    """The weights, and what they were fitted on.

    Attributes:
        facts: the names of the facts, `PRIOR_FEATURE` the last.
        mean: of each fact.
        scale: of each fact.
        weights: of each fact, once it is centred and scaled.
        bias: b.
        object_priors: log odds of having been made up, by thing.
        usual: the log odds of things that were not met.
        about: where it comes from: data, split, words, how well it did.
    """

    facts: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    object_priors: dict[str, float]
    usual: float
    about: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.facts != (*WORD_FEATURES, PRIOR_FEATURE):
            raise ValueError("its facts are those of another version of saywhy")
        numbers = [np.asarray(each, float) for each in (self.mean, self.scale, self.weights)]
        if any(each.shape != (len(self.facts),) or not np.isfinite(each).all() for each in numbers):
            raise ValueError("mean, scale and weights are not a number each for every fact")
        if (
            not (np.asarray(self.scale) > 0).all()
            or not np.isfinite([self.bias, self.usual, *self.object_priors.values()]).all()
        ):
            raise ValueError("a scale that is not above 0, or a bias or habit that is no number")

    def __call__(self, told: np.ndarray, lemmas: Sequence[str | None]) -> np.ndarray:
        """The risk of N words with facts (N, F) and what they name, (N,); NaN for words that name no thing."""
        habit = [self.usual if lemma is None else self.object_priors.get(lemma, self.usual) for lemma in lemmas]
        known = np.column_stack([told, habit])
        scaled = (known - np.array(self.mean)) / np.array(self.scale)
        return 1 / (1 + np.exp(-(self.bias + scaled @ np.array(self.weights))))

    def as_dict(self) -> dict[str, Any]:
        """The contents of risk.json."""
        return asdict(self)

    @classmethod
    def of(cls, told: dict[str, Any]) -> Risk:
        """What `as_dict` made of it."""
        return cls(**{**told, **{name: tuple(told[name]) for name in ("facts", "mean", "scale", "weights")}})

    def save(self, folder: str | Path) -> None:
        """Write it into a model's folder."""
        write_text(Path(folder) / RISK, json.dumps(self.as_dict(), indent=2) + "\n")

    @classmethod
    def read(cls, folder: str | Path) -> Risk | None:
        """What a model's folder has of it, None where it has nothing."""
        path = Path(folder) / RISK
        try:
            return cls.of(json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(
                f"{path}: not what `saywhy audit risk` wrote ({error}); delete it or fit it again"
            ) from None


@dataclass(frozen=True)
class Risks:
    """A model's risk at work: that of words in question, from what explains them."""

    risk: Risk
    names: Names

    def __call__(
        self, captioner: Captioner, evidence: Evidence, question: Question, asked: Sequence[Asked]
    ) -> list[list[float | None]]:
        """Of each image, the risk of its words; None for those that name no thing."""
        lemmas = [self.names.asked_about(each) for each in asked]
        told = facts(captioner, evidence, question, lemmas, self.names)  # (B, K, F)
        found = [self.risk(row[: len(of_row)], of_row) for row, of_row in zip(told, lemmas, strict=True)]
        return [[None if np.isnan(value) else float(value) for value in of_row] for of_row in found]
