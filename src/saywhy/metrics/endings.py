"""Captions that stop in the middle of a phrase, as captioners trained with CIDEr as the reward tend to.

A caption has a bad ending if its last word is an article, a conjunction, a relative pronoun, or a preposition that
needs an object: "a man on a", "a dog in the". Prepositions that people use as adverbs at the end of captions, such as
"outside", "behind" or "up", do not count. About 0.4 % of captions by people end in one of the words, mostly "on" ("with
the lights on").
"""

from __future__ import annotations

from collections.abc import Sequence

from saywhy.metrics.base import TextOrWords, as_words
from saywhy.metrics.objects import Share

_ARTICLES = "a an the"
_CONJUNCTIONS = "and or nor but while as because if than when where"
_RELATIVE_PRONOUNS = "that which who whose"
_PREPOSITIONS = """
    against among at atop between during for from in into like of on onto to toward towards upon via with without
"""
BAD_ENDINGS = frozenset(" ".join([_ARTICLES, _CONJUNCTIONS, _RELATIVE_PRONOUNS, _PREPOSITIONS]).split())
"""The words that need another word behind them."""


def has_bad_ending(caption: TextOrWords) -> bool:
    """Whether the last word of a caption needs a word after it; False for an empty caption.

    >>> has_bad_ending("A man sitting on a"), has_bad_ending("A man with a hat.")
    (True, False)
    """
    words = as_words(caption)
    return bool(words) and words[-1].rstrip(".") in BAD_ENDINGS  # the tokeniser takes "a." for an abbreviation


def bad_endings(candidates: Sequence[TextOrWords]) -> Share:
    """The share of captions with a bad ending."""
    return Share(sum(map(has_bad_ending, candidates)), len(candidates))
