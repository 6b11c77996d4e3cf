"""The words a captioner can say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from saywhy.errors import UserError
from saywhy.files import write_text

MARKERS = ("<pad>", "<start>", "<end>", "<unk>")
PAD, START, END, UNK = range(len(MARKERS))


class Vocabulary:
    """Words and their numbers; the four markers come first.

    >>> vocabulary = Vocabulary.build([["a", "dog"], ["a", "cat"]], min_count=2)
    >>> vocabulary.words
    ('<pad>', '<start>', '<end>', '<unk>', 'a')
    >>> vocabulary.encode(["a", "dog"])
    [1, 4, 3, 2]
    """

    def __init__(self, words: Sequence[str]) -> None:
        if tuple(words[: len(MARKERS)]) != MARKERS or len(set(words)) != len(words):
            raise ValueError(f"a vocabulary starts with {MARKERS} and names every word once")
        self.words = tuple(words)
        self.numbers = {word: number for number, word in enumerate(self.words)}

    @classmethod
    def build(
        cls, captions: Iterable[Sequence[str]], min_count: int | None = None, size: int | None = None
    ) -> Vocabulary:
        """Take words that occur `min_count` times, or the `size` most frequent (markers not counted).

        Give it the captions of the training split only. Ties go to the alphabet, so that the order of the
        captions does not matter. A caption that writes a marker out does not make it a word.
        """
        counts = Counter(word for caption in captions for word in caption if word not in MARKERS)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        if min_count is not None:
            ranked = [word for word in ranked if counts[word] >= min_count]
        return cls((*MARKERS, *ranked[:size]))

    def encode(self, words: Sequence[str]) -> list[int]:
        """Numbers of a tokenised caption, between `<start>` and `<end>`."""
        # a marker that a caption writes out is as unknown as any word that is not here
        return [START, *(max(self.numbers.get(word, UNK), UNK) for word in words), END]

    def decode(self, numbers: Iterable[int]) -> list[str]:
        """Words of these numbers."""
        return [self.words[number] for number in numbers]

    def save(self, path: str | Path) -> None:
        """Write the words as a JSON list, one a line."""
        lines = ",\n".join(json.dumps(word, ensure_ascii=False) for word in self.words)
        write_text(path, f"[\n{lines}\n]\n")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what `save` wrote."""
        try:
            return cls(json.loads(Path(path).read_text(encoding="utf-8")))
        except FileNotFoundError:
            raise UserError(f"{path}: the model's vocabulary is missing; is this a saywhy model?") from None
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}: not a vocabulary saywhy wrote ({error})") from None

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.numbers

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.words == other.words

    def __hash__(self) -> int:
        return hash(self.words)
