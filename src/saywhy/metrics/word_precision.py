"""Precision and recall of frequent object words, the "mAP" of Sun et al. (2022, https://arxiv.org/abs/2001.01037).

For each of the k object words that are most frequent in the training captions, over images:

    TP  the caption and at least one reference have the word
    FP  the caption has the word, no reference has it
    FN  at least one reference has the word, the caption does not

    precision = TP / (TP + FP)      recall = TP / (TP + FN)      F1 = 2 TP / (2 TP + FP + FN)

Table III of the paper calls the mean precision over words mAP; it is not the average precision of a ranking. Means are
over words, whatever their frequency. A word that no caption has is without precision and left out of that mean; its
recall is 0. A word that neither captions nor references have is left out of all means.

Words are compared as lemmas of `data/object_words.txt` ("dogs" is "dog"), without synonyms: "guy" does not make "man"
correct. They are chosen by their number of mentions in the training captions, alphabetically where numbers are equal.
The paper compares words as they are written and gives lists of 20 words for Flickr30K and 25 for COCO without the rule
that chose them, so its values are comparable only roughly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from saywhy.data.object_words import ObjectWords
from saywhy.metrics.base import TextOrWords, as_words, read_captions

FREQUENT = 25
"""How many words are measured."""


@dataclass(frozen=True)
class WordScore:
    """Images by whether caption and references have a word.

    Attributes:
        word: a lemma.
        tp: images whose caption and a reference have it.
        fp: images of which only the caption has it.
        fn: images of which only a reference has it.
        in_training: mentions in the training captions.
        in_captions: mentions in the captions that are scored.
    """

    word: str
    tp: int
    fp: int
    fn: int
    in_training: int
    in_captions: int

    @property
    def precision(self) -> float | None:
        """TP / (TP + FP); None if no caption has the word."""
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else None

    @property
    def recall(self) -> float | None:
        """TP / (TP + FN); None if no reference has the word."""
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else None

    @property
    def f1(self) -> float | None:
        """2 TP / (2 TP + FP + FN); None if neither captions nor references have the word."""
        total = 2 * self.tp + self.fp + self.fn
        return 2 * self.tp / total if total else None

    def as_dict(self) -> dict[str, Any]:
        """Precision, recall and F1 in percent, and counts, ready for JSON."""
        return {
            "word": self.word,
            "precision": _percent(self.precision),
            "recall": _percent(self.recall),
            "f1": _percent(self.f1),
            **{"tp": self.tp, "fp": self.fp, "fn": self.fn},
            **{"in_training": self.in_training, "in_captions": self.in_captions},
        }


@dataclass(frozen=True)
class WordPrecision:
    """Scores of frequent object words, the most frequent in training first."""

    words: tuple[WordScore, ...]

    @property
    def precision(self) -> float | None:
        """The mean precision of the words that captions have, which the paper calls mAP."""
        return _mean(score.precision for score in self.words)

    @property
    def recall(self) -> float | None:
        """The mean recall."""
        return _mean(score.recall for score in self.words)

    @property
    def f1(self) -> float | None:
        """The mean F1."""
        return _mean(score.f1 for score in self.words)

    def as_dict(self) -> dict[str, Any]:
        """The means in percent, then each word, ready for JSON."""
        means = {"map": self.precision, "recall": self.recall, "f1": self.f1}
        return {
            **{name: _percent(value) for name, value in means.items()},
            "words": [score.as_dict() for score in self.words],
        }


def word_precision(
    candidates: Sequence[TextOrWords],
    references: Sequence[Sequence[TextOrWords]],
    training_counts: Mapping[str, int],
    frequent: int = FREQUENT,
) -> WordPrecision:
    """Score the object words that are most frequent in training; `count_objects` counts them.

    >>> counts = {"dog": 9, "ball": 4, "cat": 1}
    >>> score = word_precision(["a dog", "two dogs"], [["a dog", "a ball"], ["a cat"]], counts, frequent=2)
    >>> [word.word for word in score.words], score.precision, score.recall
    (['dog', 'ball'], 0.5, 0.5)
    """
    captions, groups = read_captions(candidates, references)
    named = [_lemmas(caption) for caption in captions]
    in_references = [frozenset().union(*map(_lemmas, group)) for group in groups]
    counts = count_objects(captions)
    return WordPrecision(
        tuple(
            _word_score(word, named, in_references, training_counts[word], counts[word])
            for word in frequent_objects(training_counts, frequent)
        )
    )


def _word_score(
    word: str, named: Sequence[frozenset[str]], in_references: Sequence[frozenset[str]], training: int, captions: int
) -> WordScore:
    pairs = Counter((word in names, word in truth) for names, truth in zip(named, in_references, strict=True))
    return WordScore(word, pairs[True, True], pairs[True, False], pairs[False, True], training, captions)


def _lemmas(caption: Sequence[str]) -> frozenset[str]:
    return frozenset(mention.lemma for mention in ObjectWords.read().mentions(caption))


def count_objects(captions: Iterable[TextOrWords]) -> Counter[str]:
    """How often captions mention each object, by lemma (Figure 7 of the paper).

    >>> count_objects(["Two dogs and a dog.", "a hot dog"])
    Counter({'dog': 2, 'hot dog': 1})
    """
    table = ObjectWords.read()
    return Counter(mention.lemma for caption in captions for mention in table.mentions(as_words(caption)))


def frequent_objects(counts: Mapping[str, int], count: int = FREQUENT) -> list[str]:
    """The most frequent objects; those with equal counts in alphabetical order."""
    return sorted(counts, key=lambda word: (-counts[word], word))[:count]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
