"""Self-BLEU equals BLEU of each caption against the others; the rest is counted by hand."""

from __future__ import annotations

import random
import time

import pytest

from saywhy.errors import UserError
from saywhy.metrics.bleu import bleu
from saywhy.metrics.diversity import diversity, self_bleu


def bleu_against_the_others(captions: list[list[str]]) -> list[float]:
    others = [captions[:index] + captions[index + 1 :] for index in range(len(captions))]
    return [bleu([caption], [group]).bleu[3] for caption, group in zip(captions, others, strict=True)]


def test_self_bleu_is_the_bleu_of_each_caption_against_all_others(random_corpus) -> None:
    captions, references = random_corpus
    captions = [*captions, *(caption for group in references for caption in group)]
    assert self_bleu(captions).tolist() == pytest.approx(bleu_against_the_others(captions), rel=1e-9, abs=1e-12)


@pytest.mark.data
def test_self_bleu_is_that_of_a_loop_on_flickr8k(flickr_corpus) -> None:
    captions = flickr_corpus[0][:150]
    assert self_bleu(captions).tolist() == pytest.approx(bleu_against_the_others(captions), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(
    "captions",
    [
        [[], []],
        [["a"], ["b", "a"]],
        [["a"] * 9, ["a"] * 4, ["a", "b"] * 3],  # counts are clipped
        [list("abcdefgh"), list("abcd"), list("abcdefghijkl")],  # closest lengths 4 and 12: the shorter
    ],
)
def test_self_bleu_of_unusual_captions(captions: list[list[str]]) -> None:
    assert self_bleu(captions).tolist() == pytest.approx(bleu_against_the_others(captions), rel=1e-9, abs=1e-12)


def test_captions_that_are_all_alike_have_self_bleu_one_and_different_ones_zero() -> None:
    alike = diversity(["a dog runs on grass"] * 4)
    assert (alike.self_bleu, alike.unique.count, alike.distinct_words) == (pytest.approx(1), 1, 5)
    assert diversity(["a dog runs on grass", "two men sit there now"]).self_bleu == pytest.approx(0, abs=1e-3)


def test_words_captions_and_lengths_are_counted() -> None:
    found = diversity(["A dog.", "a dog", "Two dogs run!", ["a", "cat"]])
    assert found.as_dict() == {
        "distinct_words": 6,
        "unique_captions": {"percent": 75, "count": 3, "of": 4},
        "mean_length": 9 / 4,
        "self_bleu": pytest.approx(100 * found.self_bleu),
    }


def test_a_single_caption_has_no_self_bleu() -> None:
    assert diversity(["a dog runs"]).as_dict()["self_bleu"] is None
    with pytest.raises(UserError, match="give at least two"):
        self_bleu(["a dog runs"])


@pytest.mark.parametrize("captions", [[], "a dog"])
def test_what_is_no_list_of_captions_is_refused(captions) -> None:
    with pytest.raises(UserError, match="a list of at least one caption"):
        diversity(captions)


def test_five_thousand_captions_take_seconds() -> None:
    rng = random.Random(0)
    captions = [[f"word{int(rng.paretovariate(1)) % 1000}" for _ in range(11)] for _ in range(5000)]
    began = time.process_time()
    diversity(captions)
    assert time.process_time() - began < 5
