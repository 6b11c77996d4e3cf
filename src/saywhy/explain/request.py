"""Which words of a caption are to be explained, in a user's words."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from saywhy.data.tokenizer import tokenize
from saywhy.data.vocabulary import MARKERS, PAD, Vocabulary
from saywhy.errors import UserError
from saywhy.explain.passes import Question


@dataclass(frozen=True)
class Ask:
    """What a user asks of every image, in words that the model knows; `Model.explanations` says what each means."""

    caption: tuple[str, ...] | None = None
    word: str | None = None
    at: int | None = None
    instead: str | None = None

    @classmethod
    def read(
        cls,
        vocabulary: Vocabulary,
        most: int,
        caption: str | None = None,
        word: str | None = None,
        at: int | None = None,
        instead: str | None = None,
    ) -> Ask:
        """What was typed, for a model of this vocabulary that says at most so many words; else a `UserError`."""
        tokens = None if caption is None else caption_words(caption, vocabulary, most)
        word, instead = (None if each is None else known_word(each, vocabulary) for each in (word, instead))
        if at is not None and not 1 <= at <= most:
            raise UserError(f"there is no word {at}: this model says at most {most} words, the first is word 1")
        if tokens is not None:
            in_question(tokens, word, at, instead)
        if instead is not None and word == instead:
            raise _same(instead)
        return cls(tokens, word, at, instead)


@dataclass(frozen=True)
class Asked:
    """What is asked of one caption.

    Attributes:
        tokens: the words of the caption.
        places: where each word in question stands, or would stand.
        words: the words in question.
    """

    tokens: tuple[str, ...]
    places: tuple[int, ...]
    words: tuple[str, ...]


def caption_words(text: str, vocabulary: Vocabulary, most: int) -> tuple[str, ...]:
    """The words of a caption that a user typed, all of which the model must know."""
    tokens = tuple(tokenize(text))
    if not tokens:
        raise UserError(f"the caption {text!r} has no words")
    if len(tokens) > most:
        raise UserError(f"the caption has {len(tokens)} words, and this model says at most {most}: shorten it")
    return tuple(known_word(token, vocabulary) for token in tokens)


def known_word(word: str, vocabulary: Vocabulary) -> str:
    """The word as the model knows it; a `UserError` that suggests near ones where it does not."""
    tokens = tokenize(word)
    if len(tokens) != 1:
        raise UserError(f"{word!r} is not one word: give one")
    word = tokens[0]
    if word in vocabulary and word not in MARKERS:
        return word
    near = difflib.get_close_matches(word, [each for each in vocabulary.words if each not in MARKERS], n=3, cutoff=0.6)
    hint = f"near it are {', '.join(near)}" if near else "nothing is near it"
    raise UserError(f"the word {word!r} is not in the model's vocabulary of {len(vocabulary) - len(MARKERS)}: {hint}")


def in_question(tokens: Sequence[str], word: str | None, at: int | None, instead: str | None = None) -> Asked | None:
    """What is asked: every word, or one word wherever the caption has it, or any word at a position from 1 on.

    A word is not held against itself: of every word, those that are `instead` are left out.

    None where the word is not in the caption and no position is given: the model then has to say where it would
    have fitted best.
    """
    tokens = tuple(tokens)
    if at is not None and not 1 <= at <= len(tokens):
        raise UserError(f"there is no word {at} in {' '.join(tokens)!r}: it has {len(tokens)}")
    if at is not None:
        return _told_apart(Asked(tokens, (at - 1,), (word or tokens[at - 1],)), instead)
    if word is None:
        places = tuple(i for i, token in enumerate(tokens) if token != instead)
        return _told_apart(Asked(tokens, places, tuple(tokens[i] for i in places)), instead)
    places = tuple(i for i, token in enumerate(tokens) if token == word)
    return Asked(tokens, places, tuple(word for _ in places)) if places else None


def _told_apart(asked: Asked, instead: str | None) -> Asked:
    """The same, if there is a word to be told apart from `instead`."""
    if instead is not None and all(word == instead for word in asked.words):
        raise _same(instead)
    return asked


def _same(word: str) -> UserError:
    return UserError(f"why {word!r} and not {word!r}: these are the same word; hold it against another")


def question(asked: Sequence[Asked], vocabulary: Vocabulary, instead: str | None, device: torch.device) -> Question:
    """What is asked of a batch of captions, as numbers; shorter rows are filled up with the beginning."""

    def rows(values: Sequence[Sequence[int]], missing: int) -> Tensor:
        return pad_sequence([torch.tensor(each) for each in values], batch_first=True, padding_value=missing).to(device)

    said = rows([vocabulary.encode(each.tokens)[:-1] for each in asked], PAD)
    places = rows([each.places for each in asked], 0)
    words = rows([[vocabulary.numbers[word] for word in each.words] for each in asked], PAD)
    against = -1 if instead is None else vocabulary.numbers[instead]
    return Question(said, places, words, torch.full_like(words, against))
