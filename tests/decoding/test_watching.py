"""Watching captions while they are decoded."""

from __future__ import annotations

import pytest

import tiny
from saywhy.decoding import Decoding, decode
from saywhy.decoding.beam import beam_search


def watched(decoding: Decoding, images: int = 3):
    captioner, features, seen = tiny.sensitive_captioner("ada-lstm"), tiny.features(images), []
    hypotheses = decode(captioner, features, decoding, watch=lambda row, tokens: seen.append((row, tuple(tokens))))
    return captioner, features, seen, hypotheses


@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_the_words_are_seen_one_after_the_other(method):
    _, _, seen, hypotheses = watched(Decoding(method=method, max_words=6))
    for row, hypothesis in enumerate(hypotheses):
        prefixes = [tokens for image, tokens in seen if image == row]
        expected = [hypothesis.tokens[:count] for count in range(1, len(hypothesis.tokens) + 1)]
        assert prefixes[: len(expected)] == expected


def test_beam_search_is_not_changed_by_a_watcher():
    captioner, features, seen, hypotheses = watched(Decoding(beam=4, max_words=6, min_words=3))
    unwatched = beam_search(captioner, features, Decoding(beam=4, max_words=6, min_words=3))
    assert [hypothesis.tokens for hypothesis in hypotheses] == [best.tokens for best, *_ in unwatched]
    assert {row for row, _ in seen} == {0, 1, 2}


def test_the_first_seen_word_of_a_beam_is_the_most_probable_one():
    _, _, seen, _ = watched(Decoding(beam=4, max_words=6, min_words=3))
    _, _, greedy, _ = watched(Decoding(method="greedy", max_words=6, min_words=3))
    for row in range(3):
        first, expected = (next(tokens for image, tokens in each if image == row) for each in (seen, greedy))
        assert first == expected


def test_guided_captions_are_seen_too():
    _, _, seen, hypotheses = watched(Decoding(method="greedy", max_words=5, guidance=1.5))
    assert hypotheses[1].tokens[:2] in [tokens for row, tokens in seen if row == 1]
