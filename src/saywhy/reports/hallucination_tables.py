"""Tables of hallucination: CHAIR, precision and recall of frequent object words, bad endings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from saywhy.reports.results_files import FrequentWord, Hallucination, ModelResults, Result, mean_and_deviation
from saywhy.viz.tables import MISSING, Table, decimal, markdown

CHAIR = (
    "CHAIR-s: captions that name an object their image does not have, of all captions; CHAIR-i: mentions of such "
    "objects, of all mentions of objects. Lower is better. What an image has: {objects}."
)
WORDS = (
    " mAP: the mean, over the {count} object words that are most frequent in the training captions, of the share of "
    "captions with the word of which a reference has it, too; recall and F1 are of the same words."
)
ENDINGS = "Bad endings: captions whose last word is an article, a conjunction or a preposition that needs an object."
BY_WORD = (
    "Frequent object words: mentions in the training captions and, for each model, precision with mentions in its "
    "captions; with several seeds, those of one seed."
)
HEAD = ("model", "mAP", "recall", "F1", "CHAIR-s", "CHAIR-i", "bad endings", "B4", "METEOR", "CIDEr")


def hallucination_section(models: Sequence[ModelResults]) -> str:
    """The measures of each model beside its main scores, then each frequent word; empty if no file has them."""
    measured = {model.name: model for model in models if any(result.hallucination for result in model.results)}
    if not measured:
        return ""
    first = {name: _first(model) for name, model in measured.items()}
    rows = [(name, *_cells(model)) for name, model in measured.items()]
    parts = [
        "### Hallucination\n",
        markdown(Table(HEAD, rows, caption=f"{explain_measures([*first.values()])} {ENDINGS}")),
    ]
    words = {name: {word.word: word for word in score.words} for name, score in first.items() if score.words}
    return "\n".join([*parts, *([_by_word(words)] if words else [])])


def _first(model: ModelResults) -> Hallucination:
    """The measures of one seed: lists of words cannot be averaged."""
    return next(result.hallucination for result in model.results if result.hallucination)


def _cells(model: ModelResults) -> list[str]:
    """Means over seeds; a dash where a seed was not measured."""
    return [mean_and_deviation(column) for column in zip(*map(_values, model.results), strict=True)]


def _values(result: Result) -> list[float | None]:
    score, others = result.hallucination, result.scores
    words = [score.mean_precision, score.recall, score.f1] if score else [None] * 3
    shares = [score.chair_sentence, score.chair_instance, score.bad_endings] if score else [None] * 3
    return [*words, *shares, others.bleu[3], others.meteor, others.cider]


def explain_measures(scores: Sequence[Hallucination]) -> str:
    """What CHAIR, mAP, recall and F1 mean, and how they were measured."""
    objects = "; or ".join(sorted({score.objects for score in scores}))
    counts = sorted({len(score.words) for score in scores if score.words})
    words = WORDS.format(count=" or ".join(map(str, counts))) if counts else ""
    return f"{CHAIR.format(objects=objects)}{words}"


def _by_word(models: Mapping[str, Mapping[str, FrequentWord]]) -> str:
    """One row per word, the most frequent first, and one column per model."""
    training = {word.word: word.in_training for words in models.values() for word in words.values()}
    order = sorted(training, key=lambda word: (-training[word], word))
    rows = [
        (word, f"{training[word]:,}", *(_precision(words.get(word)) for words in models.values())) for word in order
    ]
    return markdown(Table(("word", "in training", *models), rows, caption=BY_WORD))


def _precision(word: FrequentWord | None) -> str:
    return MISSING if word is None else f"{decimal(word.precision, 1)} ({word.in_captions:,})"
