"""Words and their numbers."""

from __future__ import annotations

import json
import random

import pytest

from saywhy.data.vocabulary import END, MARKERS, PAD, START, UNK, Vocabulary
from saywhy.errors import UserError

CAPTIONS = [["a", "dog", "and", "a", "cat"], ["a", "cat"], ["the", "dog"], ["a", "bird"]]


def words(**how) -> tuple[str, ...]:
    return Vocabulary.build(CAPTIONS, **how).words[len(MARKERS) :]


def test_words_come_by_frequency_and_ties_by_the_alphabet():
    assert words() == ("a", "cat", "dog", "and", "bird", "the")


def test_the_order_of_captions_does_not_matter():
    mixed = [random.Random(1).sample(caption, len(caption)) for caption in CAPTIONS[::-1]]
    assert Vocabulary.build(mixed) == Vocabulary.build(CAPTIONS)


def test_rare_words_and_words_beyond_the_size_are_left_out():
    assert words(min_count=2) == ("a", "cat", "dog")
    assert words(size=2) == ("a", "cat")
    assert words(min_count=2, size=9) == ("a", "cat", "dog")
    assert words(min_count=3, size=2) == ("a",)


def test_captions_are_numbered_between_markers_and_unknown_words_are_marked():
    vocabulary = Vocabulary.build(CAPTIONS, size=2)
    assert vocabulary.encode(["a", "zebra", "cat"]) == [START, 4, UNK, 5, END]
    assert vocabulary.encode([]) == [START, END]
    assert vocabulary.decode([4, 5]) == ["a", "cat"]
    assert "cat" in vocabulary
    assert "zebra" not in vocabulary
    assert len(vocabulary) == 6


def test_a_marker_written_out_in_a_caption_is_an_unknown_word():
    captions = [["a", "<unk>", "<end>", "<pad>", "<start>"]] * 3
    vocabulary = Vocabulary.build(captions)
    assert vocabulary.words == (*MARKERS, "a")
    assert vocabulary.encode(captions[0]) == [START, 4, UNK, UNK, UNK, UNK, END]


def test_saved_and_loaded_it_is_the_same_and_one_word_a_line(tmp_path):
    vocabulary = Vocabulary((*MARKERS, "naïve", '"', "\\", "犬", "n't"))
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == vocabulary
    lines = (tmp_path / "vocabulary.json").read_text(encoding="utf-8").splitlines()
    assert len(lines) == len(vocabulary) + 2
    assert '"naïve",' in lines


@pytest.mark.parametrize(
    "text",
    ["", "{}", "null", "3", '"<pad>"', "[]", '["a", "b"]', json.dumps([*MARKERS, "a", "a"]), "[[1], [2], [3], [4]]"],
)
def test_a_broken_file_is_a_users_error_of_one_line_that_names_it(tmp_path, text):
    (tmp_path / "vocabulary.json").write_text(text)
    with pytest.raises(UserError, match=r"vocabulary\.json") as caught:
        Vocabulary.load(tmp_path / "vocabulary.json")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_a_users_error(tmp_path):
    with pytest.raises(UserError, match="missing"):
        Vocabulary.load(tmp_path / "gone.json")


@pytest.mark.parametrize("wrong", [["a"], [*MARKERS, "a", "a"], [*MARKERS[::-1], "a"], list(MARKERS[:3])])
def test_markers_come_first_and_words_once(wrong):
    with pytest.raises(ValueError, match="starts with"):
        Vocabulary(wrong)


def test_the_markers_are_numbered_as_everything_else_assumes():
    assert [MARKERS[number] for number in (PAD, START, END, UNK)] == ["<pad>", "<start>", "<end>", "<unk>"]
