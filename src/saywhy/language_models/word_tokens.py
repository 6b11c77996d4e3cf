"""The words of a captioner as tokens of a subword tokenizer.

Captions are written in lower case, with a space before each word but the first; clitics ('s, n't) are joined to the
word before them (`saywhy.data.tokenizer.as_text`). The tokens of a word are those that it has inside such a text:

    "the" + " dog" ↦ [the, Ġdog]       tokens of "dog" after another word: [Ġdog]
    "\n\n" + "dog" ↦ [\n\n, d, og]     as the first word: [d, og]

A tokenizer that merges across a word's beginning ("does" + "n't" ↦ [doesn, 't]) gives no such tokens; then the tokens
of the word's text alone are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import torch
from torch import Tensor

from saywhy.data.tokenizer import Vocabulary, as_text

SEPARATOR = "\n\n"
"""Between the captions of a prompt, as in Kornblith et al. 2023."""
_BEFORE = "the"


@dataclass(frozen=True)
class WordTokens:
    """The tokens of each word of a vocabulary.

    Attributes:
        ids: (2, V, M), padded with 0; index 0 of the first axis is for the first word of a caption, 1 for the others.
        lengths: (2, V), 0 for markers.
    """

    ids: Tensor
    lengths: Tensor

    @classmethod
    def of(cls, vocabulary: Vocabulary, tokenizer: Any) -> WordTokens:
        """Tokenise every word at both places."""
        words = vocabulary.words[vocabulary.markers :]
        first = _tokens_after(tokens_before_word(tokenizer, SEPARATOR), SEPARATOR, words, tokenizer)
        texts = [as_text([_BEFORE, word]).removeprefix(_BEFORE) for word in words]  # " dog", "'s"
        later = _tokens_after(encode(tokenizer, [_BEFORE])[0], _BEFORE, texts, tokenizer)
        rows = [first, later]
        longest = max(len(tokens) for row in rows for tokens in row)
        ids = torch.zeros(2, len(vocabulary), longest, dtype=torch.long)
        lengths = torch.zeros(2, len(vocabulary), dtype=torch.long)
        for place, row in enumerate(rows):
            padded = [[*tokens, *[0] * (longest - len(tokens))] for tokens in row]
            ids[place, vocabulary.markers :] = torch.tensor(padded)
            lengths[place, vocabulary.markers :] = torch.tensor([len(tokens) for tokens in row])
        return cls(ids, lengths)


def encode(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Tokens of texts, without special tokens."""
    return tokenizer(list(texts), add_special_tokens=False)["input_ids"]


def tokens_before_word(tokenizer: Any, text: str) -> list[int]:
    """Tokens of a text that a word without a space follows; at the end of a text, line breaks may have other tokens."""
    one, two = encode(tokenizer, [text + "a", text + "two"])
    return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, two, strict=False))]


def _tokens_after(prefix: list[int], before: str, texts: Sequence[str], tokenizer: Any) -> list[list[int]]:
    """Tokens of each text where it follows `before`, whose tokens are `prefix`."""
    inside, alone = encode(tokenizer, [before + text for text in texts]), encode(tokenizer, texts)
    return [
        tokens[len(prefix) :] if tokens[: len(prefix)] == prefix and tokens[len(prefix) :] else own
        for tokens, own in zip(inside, alone, strict=True)
    ]


def token_texts(tokenizer: Any, count: int) -> list[str]:
    """The text that each token adds after another one; special tokens have their names."""
    anchor = encode(tokenizer, [_BEFORE])[0]
    options = {"clean_up_tokenization_spaces": False, "skip_special_tokens": False}
    before = tokenizer.decode(anchor, **options)
    texts = tokenizer.batch_decode([[*anchor, token] for token in range(count)], **options)
    return [text.removeprefix(before) for text in texts]
