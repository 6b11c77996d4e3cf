"""Words and their token ids."""

from __future__ import annotations

import json
import random

import pytest

from saywhy.data.tokenizer import END, MARKERS, PAD, START, UNK, Vocabulary
from saywhy.errors import UserError

CAPTIONS = [["a", "dog", "and", "a", "cat"], ["a", "cat"], ["the", "dog"], ["a", "bird"]]


def words(**limits) -> tuple[str, ...]:
    return Vocabulary.build(CAPTIONS, **limits).words[len(MARKERS) :]


def test_words_are_sorted_by_frequency_then_alphabetically():
    assert words() == ("a", "cat", "dog", "and", "bird", "the")


def test_the_order_of_captions_does_not_matter():
    mixed = [random.Random(1).sample(caption, len(caption)) for caption in CAPTIONS[::-1]]
    assert Vocabulary.build(mixed) == Vocabulary.build(CAPTIONS)


def test_rare_words_and_words_beyond_the_size_are_dropped():
    assert words(min_count=2) == ("a", "cat", "dog")
    assert words(size=2) == ("a", "cat")
    assert words(min_count=2, size=9) == ("a", "cat", "dog")
    assert words(min_count=3, size=2) == ("a",)


def test_captions_are_encoded_between_markers_with_unknown_words_marked():
    vocabulary = Vocabulary.build(CAPTIONS, size=2)
    assert vocabulary.encode(["a", "zebra", "cat"]) == [START, 4, UNK, 5, END]
    assert vocabulary.encode([]) == [START, END]
    assert vocabulary.decode([4, 5]) == ["a", "cat"]
    assert "cat" in vocabulary
    assert "zebra" not in vocabulary
    assert len(vocabulary) == 6


def test_a_marker_in_a_caption_is_an_unknown_word():
    captions = [["a", "<unk>", "<end>", "<pad>", "<start>"]] * 3
    vocabulary = Vocabulary.build(captions)
    assert vocabulary.words == (*MARKERS, "a")
    assert vocabulary.encode(captions[0]) == [START, 4, UNK, UNK, UNK, UNK, END]


def test_a_saved_vocabulary_has_one_word_per_line_and_loads_unchanged(tmp_path):
    vocabulary = Vocabulary((*MARKERS, "naïve", '"', "\\", "犬", "n't"))
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == vocabulary
    lines = (tmp_path / "vocabulary.json").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(vocabulary) + 2
    assert '"naïve",' in lines


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "{}",
            "null",
            "3",
            '"<pad>"',
            "[]",
            '["a", "b"]',
            json.dumps([*MARKERS, "a", "a"]),
            "[[1], [2], [3], [4]]",
        ),
        *(json.dumps([*MARKERS, 7]), json.dumps([*MARKERS, None]), "[" * 100_000),
    ],
)
def test_an_invalid_file_is_one_line_with_its_name(tmp_path, text):
    (tmp_path / "vocabulary.json").write_text(text)
    with pytest.raises(UserError, match=r"vocabulary\.json") as caught:
        Vocabulary.load(tmp_path / "vocabulary.json")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="missing"):
        Vocabulary.load(tmp_path / "gone.json")


@pytest.mark.parametrize("invalid", [["a"], [*MARKERS, "a", "a"], [*MARKERS[::-1], "a"], list(MARKERS[:3])])
def test_markers_are_first_and_words_are_unique(invalid):
    with pytest.raises(ValueError, match="starts with"):
        Vocabulary(invalid)


def test_the_markers_have_the_ids_of_their_constants():
    assert [MARKERS[index] for index in (PAD, START, END, UNK)] == ["<pad>", "<start>", "<end>", "<unk>"]
