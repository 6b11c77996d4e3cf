"""Which of COCO's 80 categories a caption names.

The table `coco_objects.txt` lists each category with its synonyms, narrower kinds and plurals, and phrases of several
words that are something else than their parts: a "hot dog" is no dog and a "coffee table" no dining table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import as_file, files
from typing import NamedTuple

from saywhy.data.object_words import Mention, ObjectWords

PERSON = "person"
COCO_ANIMALS = frozenset(["bird", "cat", "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe"])
"""The categories that are animals."""
# Words for persons that mean an animal in captions such as "an elephant and her baby"; next to a dog they do not.
_PERSON_OR_ANIMAL = frozenset(["baby", "newborn", "adult", "mother", "mom", "father", "parent"])
_ANIMALS = COCO_ANIMALS - {"dog"}


def coco_categories() -> tuple[str, ...]:
    """The names of the 80 categories, as COCO writes them."""
    return tuple(dict.fromkeys(_category_by_name().values()))


def coco_mentions(words: Sequence[str]) -> tuple[Mention, ...]:
    """All words of a tokenised caption that name a category; `lemma` is the category.

    >>> [mention.lemma for mention in coco_mentions("two puppies share a hot dog near a motorbike".split())]
    ['dog', 'hot dog', 'motorcycle']
    >>> [mention.lemma for mention in coco_mentions("a mother elephant and her baby".split())]
    ['elephant']
    """
    found = _table().mentions(words)
    categories = [_category_by_name()[mention.lemma] for mention in found]
    has_animal = not _ANIMALS.isdisjoint(categories)
    return tuple(
        replace(mention, lemma=category)
        for mention, category in zip(found, categories, strict=True)
        if not (has_animal and mention.lemma in _PERSON_OR_ANIMAL)
    )


def named_categories(words: Sequence[str]) -> frozenset[str]:
    """The categories that a tokenised caption names."""
    return frozenset(mention.lemma for mention in coco_mentions(words))


class CocoPhrase(NamedTuple):
    """What a word or phrase of the table means.

    Attributes:
        words: the phrase.
        category: what it names; "" if it names nothing, although one of its words alone would.
        is_animal: whether it names an animal next to which "baby" or "mother" means an animal.
        may_be_animal: whether it is such a word, which names no person then.
    """

    words: tuple[str, ...]
    category: str
    is_animal: bool
    may_be_animal: bool


def coco_phrases() -> tuple[CocoPhrase, ...]:
    """All words and phrases that `coco_mentions` looks for, of which the longest counts."""
    phrases = []
    for phrase, lemma in _table().phrases.items():
        category = _category_by_name()[lemma] if lemma else ""
        words = tuple(phrase.split())
        phrases.append(CocoPhrase(words, category, category in _ANIMALS, lemma in _PERSON_OR_ANIMAL))
    return tuple(phrases)


@cache
def _table() -> ObjectWords:
    with as_file(files("saywhy.data").joinpath("coco_objects.txt")) as path:
        return ObjectWords.read(path)


@cache
def _category_by_name() -> dict[str, str]:
    """The category of each name in the table."""
    table = _table()
    categories: dict[str, str] = {}
    for name in table.lemmas:
        if name not in categories:  # the first name of a line comes before the others of its line
            categories |= dict.fromkeys(table.synonyms_and_kinds(name), name)
    return categories
