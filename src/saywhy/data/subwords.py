"""A vocabulary whose tokens are sub-words: pieces of words, such as " skate" and "board".

Decoding and explaining work on pieces; captions, explanations and audits on words. A piece begins a word if it begins
with a space, or with punctuation that does not continue a word:

    [" a", " skate", "board", "er", "'s", " dog", "."]    ↦    a skateboarder 's dog .

Clitics and punctuation are words of their own, as in `saywhy.data.tokenizer`. Pieces without a text, such as special
tokens, belong to the word before them, so that every piece belongs to exactly one word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK, Vocabulary, as_text, tokenize
from saywhy.errors import UserError

CONTINUES_WORD = "-_/&"
"""Characters beside letters and digits that continue a word; after an apostrophe the tokenizer begins a clitic."""
CLITICS = frozenset(("s", "m", "d", "ll", "re", "ve", "t"))
"""What continues a word that is an apostrophe, for tokenizers that split "'s"."""
UNDECODABLE = "\ufffd"
"""What stands for a part of a character in the text of a piece."""

Split = Callable[[str, bool], Sequence[int]]
"""The tokens of a word; the flag says whether it is the first of its caption, before which there is no space."""


def continues_word(text: str) -> bool:
    """Whether a token's text is part of the word before it.

    >>> [continues_word(text) for text in ("ing", "'s", " dog", ".", "")]
    [True, False, False, False, True]
    """
    return not text or text[0].isalnum() or text[0] in CONTINUES_WORD or text[0] == UNDECODABLE


class Word(str):
    """A word of a decoded caption, which knows the token ids that it was decoded from."""

    pieces: tuple[int, ...]

    def __new__(cls, text: str, pieces: Iterable[int] = ()) -> Word:
        """The text, with its pieces."""
        word = super().__new__(cls, text)
        word.pieces = tuple(pieces)
        return word


class SubwordVocabulary(Vocabulary):
    """Tokens of another tokenizer as token ids: first the four markers, then its tokens in their order.

    Args:
        tokens: the ids that these tokens have for the tokenizer, those that end a caption left out.
        names: of these tokens.
        texts: what each of them adds to a text, with the space before it; empty for special tokens.
        split: splits a word into ids of the tokenizer.
        join: the text of several of its ids, for characters that are split between tokens.
        unknown: the tokenizer's id for what it cannot express, or None.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        names: Sequence[str],
        texts: Sequence[str],
        split: Split,
        join: Callable[[Sequence[int]], str],
        unknown: int | None = None,
    ) -> None:
        super().__init__((*MARKERS, *_distinct(names)))
        self.tokens, self.names = tuple(tokens), tuple(names)
        self.texts = ("",) * len(MARKERS) + tuple(texts)
        self._id = {token: len(MARKERS) + place for place, token in enumerate(self.tokens)}
        self._unknown = unknown
        self._join = join
        self._split = lru_cache(maxsize=1 << 16)(lambda word, is_first: self._pieces(split(word, is_first)))

    def pieces(self, words: Sequence[str]) -> list[tuple[int, ...]]:
        """The token ids of each word of a caption: those it was decoded from, else those the tokenizer gives it."""
        return [getattr(word, "pieces", ()) or self._split(str(word), place == 0) for place, word in enumerate(words)]

    def spans(self, ids: Sequence[int]) -> list[int]:
        """The number of token ids of each word."""
        starts: list[int] = []
        has_text, before = True, ""
        for place, id in enumerate(ids):
            text = self.texts[id]
            is_clitic = before == "'" and text.strip() in CLITICS
            if has_text and (not starts or (text.strip() and not is_clitic and not continues_word(text))):
                starts.append(place)
                has_text = False
            has_text, before = has_text or bool(text.strip()), text.strip()
        return [end - start for start, end in zip(starts, [*starts, len(ids)][1:], strict=True)]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of these token ids."""
        ids = list(ids)
        words: list[str] = []
        start = 0
        for length in self.spans(ids):
            words.append(self._word(ids[start : start + length]))
            start += length
        return words

    def has(self, word: str) -> bool:
        """Whether the tokenizer can express the word."""
        pieces = self._split(word, False)
        return bool(pieces) and UNK not in pieces and self._word(pieces).lower() == word.lower()

    def as_reference(self, words: Sequence[str]) -> Sequence[str]:
        """The words without punctuation, in lower case."""
        return tokenize(as_text(words))

    def whole_words(self) -> Iterator[tuple[int, str]]:
        """The token ids that are a word of their own, and the word."""
        for id, text in enumerate(self.texts):
            if text.startswith(" ") and text[1:].isalpha():
                yield id, text[1:].lower()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SubwordVocabulary) and (self.words, self.tokens) == (other.words, other.tokens)

    def __hash__(self) -> int:
        return hash((self.words, self.tokens))

    def save(self, path: object) -> None:
        """Refuse: the tokenizer is saved in its own format."""
        raise UserError("a vocabulary of sub-words is saved with its model: use save_pretrained of transformers")

    def _pieces(self, tokens: Sequence[int]) -> tuple[int, ...]:
        return tuple(UNK if token == self._unknown else self._id.get(token, UNK) for token in tokens)

    def _word(self, ids: Sequence[int]) -> Word:
        text = "".join(self.texts[id].strip() for id in ids)
        if UNDECODABLE in text:
            text = self._join([self.tokens[id - len(MARKERS)] for id in ids if id >= len(MARKERS)]).strip()
        return Word(text or "".join(self.words[id] for id in ids), ids)


def native_tokens(tokens: Sequence[int], start: int, end: int) -> list[int]:
    """By token id, the tokenizer's id: markers have that of the caption's start, or of its end.

    >>> native_tokens([0, 1, 3], start=1, end=2)
    [2, 1, 2, 2, 0, 1, 3]
    """
    markers: Mapping[int, int] = {PAD: end, START: start, END: end, UNK: end}
    return [*(markers[marker] for marker in range(len(MARKERS))), *tokens]


def _distinct(names: Sequence[str]) -> list[str]:
    """The names, with a number where one is a marker or occurs before."""
    seen: set[str] = set(MARKERS)
    distinct = []
    for number, name in enumerate(names):
        distinct.append(f"{name} {number}" if name in seen else name)
        seen.add(distinct[-1])
    return distinct
