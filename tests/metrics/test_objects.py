"""Recall of object words, and invented persons."""

from __future__ import annotations

import pytest

from saywhy.errors import UserError
from saywhy.metrics.objects import Share, object_score

CAT, BUS, MAN = ["a cat"] * 5, ["a bus on a road"] * 5, ["a man"] * 5


def test_recall_counts_categories_that_three_references_name():
    three, two = ["a cat", "a kitten", "cats", "fur", "fur"], ["a cat", "a kitten", "fur", "fur", "fur"]
    assert object_score(["a cat"], [three]).recall == Share(1, 1)
    assert object_score(["a cat"], [two]).recall == Share(0, 0)
    assert object_score(["a cat"], [two]).recall.percent is None


def test_a_reference_that_names_a_category_twice_counts_once():
    assert object_score(["a cat"], [["a cat and a cat", "two cats and a kitten", "fur"]]).recall.of == 0


def test_any_word_for_the_category_is_a_hit():
    assert object_score(["a kitten"], [CAT]).recall == Share(1, 1)
    assert object_score(["a hot dog"], [["a dog"] * 3]).recall == Share(0, 1)


def test_categories_are_counted_apart_and_the_most_frequent_comes_first():
    score = object_score(["a man", "a cat", "a bus"], [CAT, CAT, BUS])
    assert [*score.by_category.items()] == [("cat", Share(1, 2)), ("bus", Share(1, 1))]
    assert score.recall == Share(2, 3)
    assert score.by_category["cat"].percent == 50


def test_persons_are_invented_where_no_reference_names_one():
    one_names_a_person = ["a cat"] * 4 + ["a woman with a cat"]
    captions = ["a man on a bed", "a cat", "a girl", "a boy"]
    score = object_score(captions, [CAT, CAT, MAN, one_names_a_person])
    assert (score.invented_persons, score.boxes) == (Share(1, 2), False)


def test_an_image_with_a_box_of_a_person_is_left_out():
    score = object_score(["a man", "a man"], [CAT, CAT], person_boxes=[True, False])
    assert (score.invented_persons, score.boxes) == (Share(1, 1), True)
    with pytest.raises(ValueError, match="shorter"):
        object_score(["a man", "a man"], [CAT, CAT], person_boxes=[True])


def test_captions_are_checked_like_those_of_other_metrics():
    with pytest.raises(UserError, match="no reference caption"):
        object_score(["a cat"], [[]])


def test_json_has_counts_and_percent():
    table = object_score(["a man", "a cat"], [CAT, CAT]).as_dict()
    assert table == {
        "recall": {"percent": 50, "count": 1, "of": 2},
        "invented_persons": {"percent": 50, "count": 1, "of": 2, "boxes": False},
        "by_category": {"cat": {"percent": 50, "count": 1, "of": 2}},
    }
