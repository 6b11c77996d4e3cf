"""Precision and recall of frequent object words."""

from __future__ import annotations

import random

import pytest

from reference import hallucination as slow
from saywhy.metrics.word_precision import count_objects, frequent_objects, word_precision

NAMES = {
    **{"dog": "dog", "dogs": "dog", "hot dog": "hot dog", "man": "man", "men": "man", "ball": "ball", "balls": "ball"},
    **{"person": "person", "people": "person", "grass": "grass", "cat": "cat"},
}


def test_hand_counted_words():
    captions = ["a dog and a man", "two dogs", "a man", "a cat"]
    references = [["a dog", "a man and a ball"], ["a man", "men"], ["men", "a person"], ["a dog", "two dogs"]]
    score = word_precision(captions, references, {"dog": 8, "man": 9, "ball": 5, "zebra": 4, "cat": 3}, frequent=4)
    assert [(word.word, word.tp, word.fp, word.fn) for word in score.words] == [
        *[("man", 2, 0, 1), ("dog", 1, 1, 1), ("ball", 0, 0, 1), ("zebra", 0, 0, 0)]
    ]
    assert [(word.in_training, word.in_captions) for word in score.words] == [(9, 2), (8, 2), (5, 0), (4, 0)]
    assert score.precision == pytest.approx((1 + 1 / 2) / 2), "words that no caption has are left out"
    assert score.recall == pytest.approx((2 / 3 + 1 / 2 + 0) / 3)
    assert score.f1 == pytest.approx((4 / 5 + 2 / 4 + 0) / 3)


def test_a_word_counts_once_per_image_and_synonyms_do_not_count():
    score = word_precision(["a man and a man"], [["a guy"]], {"man": 1})
    assert [(word.tp, word.fp, word.in_captions) for word in score.words] == [(0, 1, 2)]
    assert (score.precision, score.recall, score.f1) == (0, None, 0)


@pytest.mark.parametrize("seed", range(5))
def test_scores_equal_loops_over_the_definition(seed: int):
    rng = random.Random(seed)

    def caption() -> list[str]:
        return " ".join(rng.choices([*NAMES, "a", "on", "red"], k=rng.randint(1, 6))).split()

    captions, references = [caption() for _ in range(30)], [[caption() for _ in range(3)] for _ in range(30)]
    training = count_objects(caption() for _ in range(200))
    score = word_precision(captions, references, training, frequent=4)
    counts, means = slow.word_precision(captions, references, [word.word for word in score.words], NAMES)
    assert [(word.tp, word.fp, word.fn) for word in score.words] == counts
    assert [score.precision, score.recall, score.f1] == pytest.approx(means)


def test_the_most_frequent_words_come_first_and_equal_counts_are_alphabetical():
    counts = count_objects(["Dogs and a dog.", "a hot dog", "a cat, a ball", "people"])
    assert counts == {"dog": 2, "hot dog": 1, "cat": 1, "ball": 1, "person": 1}
    assert frequent_objects(counts, 3) == ["dog", "ball", "cat"]


def test_json_has_means_in_percent_and_every_word():
    table = word_precision(["a dog", "a dog"], [["a dog"], ["a cat"]], {"dog": 7, "cow": 2}).as_dict()
    assert [table[name] for name in ("map", "recall", "f1")] == [50, 100, pytest.approx(200 / 3)]
    assert [word["word"] for word in table["words"]] == ["dog", "cow"]
    assert table["words"][1] == {
        **{"word": "cow", "precision": None, "recall": None, "f1": None},
        **{"tp": 0, "fp": 0, "fn": 0, "in_training": 2, "in_captions": 0},
    }
