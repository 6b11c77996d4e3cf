"""BERTScore (Zhang et al. 2020, https://arxiv.org/abs/1904.09675): words are matched by contextual embeddings.

With unit vectors x_i of the tokens of a reference and y_j of those of a candidate, from one layer of a text encoder,

    P = Σ_j w(y_j) max_i x_i·y_j / Σ_j w(y_j)        R = Σ_i w(x_i) max_j x_i·y_j / Σ_i w(x_i)
    F = 2 P R / (P + R)
    w(t) = log((M + 1) / (1 + number of the M references that contain token t))

The weights w are idf; without idf, w is 1 for words and 0 for the markers that begin and end a text, which can be
matched all the same. A candidate gets the best P, R and F of its references, each by itself. Texts without a word
score 0. A baseline b, if given, rescales each number s to (s - b) / (1 - b); no other rescaling is done.

Equal to the authors' package bert-score 0.3.13 (its optional idf, several references, no rescaling). The package pads
with zeros, so that a negative maximum becomes 0 there in a batch of unequal lengths; here padding never matches.
Scores depend on the encoder and its layer: only scores by the same ones can be compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol, TypeAlias

import numpy as np

from saywhy.data.tokenizer import as_text
from saywhy.errors import UserError
from saywhy.metrics.base import Floats, TextOrWords
from saywhy.metrics.retrieval import Embeddings, Progress, unit_vectors

Tokens: TypeAlias = tuple[int, ...]
_IMAGES = 64  # whose captions are embedded at once


class TokenEncoder(Protocol):
    """A text encoder that gives each token of a text a vector."""

    @property
    def name(self) -> str:
        """The model, as the scores that it gives name it; no path."""

    @property
    def layer(self) -> int:
        """The layer whose outputs are the vectors; 1 is the first."""

    @property
    def markers(self) -> frozenset[int]:
        """Tokens that begin and end a text."""

    def tokenize(self, text: str) -> Tokens:
        """The tokens of a text with its markers; a text that is too long is cut."""

    def embed(self, texts: Sequence[Tokens]) -> list[Embeddings]:
        """The vectors (tokens, D) of each text, in their order."""


@dataclass(frozen=True)
class BertScore:
    """Means as fractions, and F of each caption."""

    precision: float
    recall: float
    f1: float
    per_caption: Floats = field(repr=False, compare=False)  # (n, 3) P, R and F

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"precision": self.precision, "recall": self.recall, "f1": self.f1}


def bert_score(
    candidates: Sequence[TextOrWords],
    references: Sequence[Sequence[TextOrWords]],
    encoder: TokenEncoder,
    *,
    idf: bool = True,
    baseline: tuple[float, float, float] | None = None,
    progress: Progress = lambda done, total: None,
) -> BertScore:
    """Score candidates against their references, whose case and punctuation are kept.

    Args:
        candidates: one per image; words are joined to a text.
        references: of each image.
        encoder: usually of `saywhy.metrics.bert_models.load_bert`.
        idf: weight tokens by their rarity in all references.
        baseline: of P, R and F, for rescaling.
        progress: called with the number of images that are done.
    """
    _check(candidates, references)
    texts = [encoder.tokenize(_text(caption)) for caption in candidates]
    groups = [[encoder.tokenize(_text(caption)) for caption in group] for group in references]
    weights = _Weights(list(chain.from_iterable(groups)), encoder.markers, idf)
    scores = np.zeros((len(texts), 3))
    for start in range(0, len(texts), _IMAGES):
        stop = min(start + _IMAGES, len(texts))
        distinct = list(dict.fromkeys(chain(texts[start:stop], *groups[start:stop])))
        vectors = dict(zip(distinct, map(unit_vectors, encoder.embed(distinct)), strict=True))
        for image in range(start, stop):
            candidate = texts[image]
            scores[image] = np.max([_match(candidate, text, vectors, weights) for text in groups[image]], axis=0)
        progress(stop, len(texts))
    if baseline is not None:
        scores = (scores - np.array(baseline)) / (1 - np.array(baseline))
    precision, recall, f1 = (float(value) for value in scores.mean(axis=0))
    return BertScore(precision, recall, f1, scores)


class BertScorer:
    """BERTScore, updated batch by batch; see `bert_score`."""

    def __init__(self, encoder: TokenEncoder, idf: bool = True) -> None:
        self.encoder, self.idf = encoder, idf
        self.reset()

    def reset(self) -> None:
        """Remove all captions."""
        self._candidates: list[TextOrWords] = []
        self._references: list[Sequence[TextOrWords]] = []

    def update(self, candidates: Sequence[TextOrWords], references: Sequence[Sequence[TextOrWords]]) -> None:
        """Add a batch of captions and their references."""
        _check(candidates, references)
        self._candidates += candidates
        self._references += references

    def compute(self, progress: Progress = lambda done, total: None) -> BertScore:
        """The score of all captions since the last `reset`; idf is counted over all their references."""
        return bert_score(self._candidates, self._references, self.encoder, idf=self.idf, progress=progress)


class _Weights:
    """w of tokens: idf over the references, or 1 for all but markers."""

    def __init__(self, references: Sequence[Tokens], markers: frozenset[int], idf: bool) -> None:
        self.markers = markers
        self.default = math.log(len(references) + 1) if idf else 1.0
        self.known: Mapping[int, float] = dict.fromkeys(markers, 0.0)
        if idf:
            counts = Counter(chain.from_iterable(map(set, references)))
            self.known = {token: math.log((len(references) + 1) / (count + 1)) for token, count in counts.items()}

    def of(self, tokens: Tokens) -> Floats:
        """(tokens,), which sum to 1; all 0 for a text without a weight."""
        weights = np.array([self.known.get(token, self.default) for token in tokens])
        total = weights.sum()
        return weights / total if total > 0 else weights

    def is_empty(self, tokens: Tokens) -> bool:
        """Whether a text has markers only."""
        return self.markers.issuperset(tokens)


def _match(
    candidate: Tokens, reference: Tokens, vectors: Mapping[Tokens, Floats], weights: _Weights
) -> tuple[float, float, float]:
    """P, R and F of one candidate and one reference."""
    if weights.is_empty(candidate) or weights.is_empty(reference):
        return 0.0, 0.0, 0.0
    similarity = vectors[candidate] @ vectors[reference].T  # (candidate tokens, reference tokens)
    precision = float(similarity.max(axis=1) @ weights.of(candidate))
    recall = float(similarity.max(axis=0) @ weights.of(reference))
    total = precision + recall
    return precision, recall, 2 * precision * recall / total if total else 0.0


def _text(caption: TextOrWords) -> str:
    return (caption if isinstance(caption, str) else as_text(caption)).strip()


def _check(candidates: Sequence[TextOrWords], references: Sequence[Sequence[TextOrWords]]) -> None:
    if isinstance(candidates, str) or any(isinstance(group, str) for group in references):
        raise UserError("captions must be a list of candidates and a list of lists of references, not one text")
    if not candidates or len(candidates) != len(references) or not all(references):
        raise UserError("BERTScore: give at least one candidate, and at least one reference for each")
