"""Pieces and words: every piece belongs to one word, and a word's pieces are those that it was decoded from."""

from __future__ import annotations

import copy
import pickle

import pytest

import tiny_transformers
from saywhy.data.subwords import SubwordVocabulary, Word
from saywhy.data.tokenizer import END, MARKERS, START, UNK, as_text
from saywhy.errors import UserError

TEXTS = (" a", " skate", "board", "er", "'s", " dog", ".", "", " don", "'", "t", "caf", "\ufffd", "\ufffd", " '", " s")
NAMES = tuple(f"piece{number}" for number in range(len(TEXTS)))
SPLITS = {" a": [10], "a": [10], "skateboard": [11, 12], "ooh": [99, 77]}


def vocabulary(**changes) -> SubwordVocabulary:
    settings = {
        "tokens": range(10, 10 + len(TEXTS)), "names": NAMES, "texts": TEXTS, "unknown": 99,
        "split": lambda word, is_first: SPLITS.get(word, []), "join": lambda ids: "café",
    }  # fmt: skip
    return SubwordVocabulary(**{**settings, **changes})


def ids(*pieces: int) -> list[int]:
    return [len(MARKERS) + piece for piece in pieces]


@pytest.mark.parametrize(
    ("pieces", "words", "spans"),
    [
        ((0, 1, 2), ["a", "skateboard"], [1, 2]),
        ((0, 1, 2, 3, 4, 5, 6), ["a", "skateboarder", "'s", "dog", "."], [1, 3, 1, 1, 1]),
        ((7, 0, 7, 7, 5), ["a", "dog"], [4, 1]),
        ((11, 12, 13, 5), ["café", "dog"], [3, 1]),
        ((5, 14, 15, 5), ["dog", "'s", "dog"], [1, 2, 1]),
        ((2, 2), ["boardboard"], [2]),
        ((), [], []),
    ],
    ids=["pieces", "clitic, full stop", "special tokens", "parts of a character", "BERT's clitic", "no space", "none"],
)
def test_pieces_are_grouped_into_words(pieces, words, spans):
    tokens = ids(*pieces)
    assert vocabulary().decode(tokens) == words
    assert vocabulary().spans(tokens) == spans
    assert [len(word.pieces) for word in vocabulary().decode(tokens)] == spans


def test_a_decoded_word_is_encoded_as_the_pieces_it_came_from():
    tokens = ids(0, 2, 3)  # "a" and then pieces that the tokenizer would never give
    words = vocabulary().decode(tokens)
    assert vocabulary().encode(words) == [START, *tokens, END]


def test_a_word_of_text_is_split_by_the_tokenizer_and_what_it_lacks_is_unknown():
    words = ["a", "skateboard", "ooh"]
    assert vocabulary().pieces(words) == [tuple(ids(0)), tuple(ids(1, 2)), (UNK, UNK)]
    assert vocabulary().has("skateboard")
    assert not vocabulary().has("ooh")
    assert not vocabulary().has("")


def test_a_word_without_text_is_shown_by_its_name():
    assert vocabulary().decode(ids(7)) == ["piece7"]


def test_names_that_occur_twice_or_are_markers_are_made_distinct():
    names = ["<unk>", "x", "x", *NAMES[3:]]
    words = vocabulary(names=names).words
    assert len(set(words)) == len(words)
    assert words[:4] == MARKERS


def test_whole_words_have_a_space_before_them_and_nothing_but_letters():
    assert [word for _, word in vocabulary().whole_words()] == ["a", "skate", "dog", "don", "s"]


def test_metrics_get_words_without_punctuation_in_lower_case():
    assert vocabulary().as_reference(["A", "dog", "'s", "ball", "."]) == ["a", "dog", "'s", "ball"]
    assert as_text(["a", "dog", "'s", "ball", "."]) == "a dog's ball."


def test_words_survive_copies():
    word = Word("skateboard", (5, 6))
    for copied in (copy.deepcopy(word), pickle.loads(pickle.dumps(word))):
        assert copied == "skateboard"
        assert copied.pieces == (5, 6)


def test_a_vocabulary_of_pieces_is_not_saved_as_a_list_of_words(tmp_path):
    with pytest.raises(UserError, match="save_pretrained"):
        vocabulary().save(tmp_path / "vocabulary.json")


@pytest.mark.parametrize("tokenizer", [tiny_transformers.byte_pairs, tiny_transformers.word_pieces])
def test_every_caption_is_encoded_as_its_tokenizer_does(tokenizer):
    from saywhy.adapters.base import NativeTokens
    from saywhy.adapters.load_adapter import _vocabulary

    tokenizer = tokenizer()
    end = tokenizer.sep_token_id or tokenizer.eos_token_id
    tokens = [token for token in range(len(tokenizer)) if token != end]
    words = _vocabulary(NativeTokens(tokens, [end], [end]), tokenizer)
    for caption in ("a man riding a skateboard down a street", "two dogs playing with a frisbee in the grass"):
        expected = tokenizer(caption, add_special_tokens=False)["input_ids"]
        encoded = words.encode(caption.split())[1:-1]
        assert [words.tokens[id - len(MARKERS)] for id in encoded] == expected
        assert words.decode(encoded) == caption.split()
