"""Captions that end in the middle of a phrase."""

from __future__ import annotations

import pytest

from saywhy.metrics.endings import bad_endings, has_bad_ending
from saywhy.metrics.objects import Share


@pytest.mark.parametrize("ending", ["a", "in a", "on the", "with", "and", "of an", "while", "that", "to", "in"])
def test_an_ending_that_needs_another_word_is_bad(ending: str):
    assert has_bad_ending(f"A man sitting {ending}.")
    assert has_bad_ending(f"a man sitting {ending}".split())


@pytest.mark.parametrize(
    "caption", ["a dog", "a man looks up", "two people stand outside", "a dog with its toy behind", ""]
)
def test_other_endings_are_not(caption: str):
    assert not has_bad_ending(caption)


def test_share_of_captions():
    assert bad_endings(["a man on a", "a dog", ["a", "cat", "in"], "A dog in the snow."]) == Share(2, 4)
