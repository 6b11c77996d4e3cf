"""The rarest reference word of images that got better and of images that got worse."""

from __future__ import annotations

import random

import pytest

from reference import hallucination as slow
from saywhy.data.stop_words import STOP_WORDS
from saywhy.errors import UserError
from saywhy.metrics.rarity import count_words, rarest_count, rarity

TRAINING = ["a dog runs", "the dog runs fast", "a zebra"]


def test_the_rarest_word_is_the_one_least_frequent_in_training():
    counts = count_words(TRAINING)
    assert counts["dog"] == 2
    assert rarest_count(["The dog runs.", "A dog"], counts) == 2
    assert rarest_count(["A dog", "a zebra and a dog"], counts) == 1
    assert rarest_count(["a dog and an okapi"], counts) == 0, "a word that training does not have"
    assert rarest_count(["it is on the", ""], counts) is None, "stop words do not count"


def test_images_are_divided_by_the_change_of_their_score():
    references = [["a dog"], ["a zebra"], ["a dog", "runs fast"], ["a dog"], ["the"]]
    result = rarity(references, count_words(TRAINING), before=[1, 1, 1, 1, 1], after=[2, 3, 0, 1, 9])
    assert (result.improved, result.degraded) == ((2 + 1) / 2, 1)
    assert (result.improved_images, result.degraded_images, result.unchanged_images) == (2, 1, 1)
    assert result.as_dict()["improved"] == {"mean_count": 1.5, "images": 2}


def test_without_a_change_there_is_no_mean():
    result = rarity([["a dog"]], {}, [1], [1])
    assert (result.improved, result.degraded, result.unchanged_images) == (None, None, 1)
    with pytest.raises(UserError, match="references of 1 images, but 2 and 1 scores"):
        rarity([["a dog"]], {}, [1, 2], [1])


@pytest.mark.parametrize("seed", range(5))
def test_means_equal_a_loop_over_equation_33(seed: int):
    rng = random.Random(seed)
    words = ["dog", "ball", "zebra", "runs", "red", "sky", "a", "the", "on"]

    def caption() -> list[str]:
        return [rng.choice(words[:6]), *rng.choices(words, [9, 7, 1, 5, 3, 2, 20, 9, 9], k=rng.randint(0, 6))]

    training, references = [caption() for _ in range(80)], [[caption() for _ in range(3)] for _ in range(40)]
    before, after = ([rng.randint(0, 3) for _ in references] for _ in range(2))
    result = rarity(references, count_words(training), before, after)
    expected = slow.rarity(references, training, STOP_WORDS, before, after)
    assert (result.improved, result.degraded) == pytest.approx(expected)
