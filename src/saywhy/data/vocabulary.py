"""The vocabulary of a captioner: words and token ids."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from saywhy.errors import UserError
from saywhy.files import read_json, write_text

MARKERS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(len(MARKERS))


class Vocabulary:
    """Words and their token ids; the four markers are first.

    Attributes:
        words: by token id.
        ids: by word.

    >>> vocabulary = Vocabulary.build([["a", "dog"], ["a", "cat"]], min_count=2)
    >>> vocabulary.words
    ('<pad>', '<start>', '<end>', '<unk>', 'a')
    >>> vocabulary.encode(["a", "dog"])
    [1, 4, 3, 2]
    """

    def __init__(self, words: Sequence[str]) -> None:
        if tuple(words[: len(MARKERS)]) != MARKERS or len(set(words)) != len(words):
            raise ValueError(f"a vocabulary starts with {MARKERS} and has every word once")
        self.words = tuple(words)
        self.ids = {word: index for index, word in enumerate(self.words)}

    @classmethod
    def build(
        cls, captions: Iterable[Sequence[str]], min_count: int | None = None, size: int | None = None
    ) -> Vocabulary:
        """The words that occur at least `min_count` times, or the `size` most frequent (markers not counted).

        Use the tokenised captions of the training split only. Ties are broken alphabetically, so the order of the
        captions does not matter. A marker that a caption contains as text is not counted.
        """
        counts = Counter(word for caption in captions for word in caption if word not in MARKERS)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        if min_count is not None:
            ranked = [word for word in ranked if counts[word] >= min_count]
        return cls((*MARKERS, *ranked[:size]))

    def encode(self, words: Sequence[str]) -> list[int]:
        """Token ids of a tokenised caption, between `<start>` and `<end>`."""
        # a marker that a caption contains as text is unknown, like any word outside the vocabulary
        return [START, *(max(self.ids.get(word, UNK), UNK) for word in words), END]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Words of these token ids."""
        return [self.words[index] for index in ids]

    def save(self, path: str | Path) -> None:
        """Write the words as a JSON list, one word per line."""
        lines = ",\n".join(json.dumps(word, ensure_ascii=False) for word in self.words)
        write_text(path, f"[\n{lines}\n]\n")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what `save` wrote."""
        if not Path(path).exists():
            raise UserError(f"{path}: the model's vocabulary is missing; is this a saywhy model?")
        words = read_json(path)
        try:
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise TypeError("not a list of words")
            return cls(words)
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}: not a vocabulary that saywhy wrote ({error})") from None

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)
