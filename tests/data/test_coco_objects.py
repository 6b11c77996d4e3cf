"""COCO's categories: which words name them."""

from __future__ import annotations

import pytest

from saywhy.data.coco_objects import coco_categories, coco_mentions, named_categories
from saywhy.data.tokenizer import tokenize

CATEGORIES = """
    person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign,
    parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella,
    handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard,
    surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, orange,
    broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv, laptop,
    mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, scissors,
    teddy bear, hair drier, toothbrush
"""


def named(caption: str) -> list[str]:
    return sorted(named_categories(tokenize(caption)))


def test_the_table_has_the_80_categories_of_coco():
    assert sorted(coco_categories()) == sorted(" ".join(CATEGORIES.split()).split(", "))


def test_a_category_is_named_by_its_own_name():
    for category in coco_categories():
        expected = [] if category == "orange" else [category]  # "orange" alone is mostly a colour
        assert named(f"a {category}") == expected, category


@pytest.mark.parametrize(
    ("words", "category"),
    [
        *[
            ("puppy", "dog"),
            ("puppies", "dog"),
            ("kittens", "cat"),
            ("motorbike", "motorcycle"),
            ("planes", "airplane"),
        ],
        *[("television", "tv"), ("TVs", "tv"), ("sofa", "couch"), ("fridge", "refrigerator"), ("doughnuts", "donut")],
        *[("knives", "knife"), ("geese", "bird"), ("lambs", "sheep"), ("oxen", "cow"), ("people", "person")],
        *[("women", "person"), ("skateboarder", "person"), ("buses", "bus"), ("benches", "bench"), ("mice", "mouse")],
        *[("oranges", "orange"), ("hydrants", "fire hydrant"), ("stoplight", "traffic light"), ("luggage", "suitcase")],
        *[("cellphones", "cell phone"), ("tooth brushes", "toothbrush"), ("racquet", "tennis racket")],
        *[("surf board", "surfboard"), ("table", "dining table"), ("stove", "oven"), ("glasses of wine", "wine glass")],
    ],
)
def test_synonyms_kinds_and_plurals_name_a_category(words, category):
    assert named(f"two {words}") == [category]


@pytest.mark.parametrize(
    ("caption", "categories"),
    [
        ("a hot dog", ["hot dog"]),
        ("a dog eats hot dogs", ["dog", "hot dog"]),
        ("a teddy bear", ["teddy bear"]),
        ("a cell phone on a dining table", ["cell phone", "dining table"]),
        ("a coffee table", []),
        ("toilet paper", []),
        ("a toilet bowl", ["toilet"]),
        ("a carrot cake", ["cake"]),
        ("a microwave oven", ["microwave"]),
        ("a bus stop near train tracks", []),
        ("a train car", ["train"]),
        ("an orange cat", ["cat"]),
        ("a zebra crossing", []),
        ("a horse's saddle", ["horse"]),
        ("a carpet, a catalogue and a scar", []),
    ],
)
def test_names_of_several_words_are_not_their_parts(caption, categories):
    assert named(caption) == categories


@pytest.mark.parametrize(
    ("caption", "has_person"),
    [
        ("a baby in a crib", True),
        ("a baby elephant", False),
        ("a giraffe with her baby", False),
        ("a baby and a dog", True),
        ("a man and a baby elephant", True),
        ("a couple on a bench", True),
        ("a couple of zebras", False),
        ("a family of ducks", False),
        ("a passenger train", False),
        ("a record player", False),
        ("a police car", False),
        ("a mannequin", False),
    ],
)
def test_a_young_animal_or_a_device_is_no_person(caption, has_person):
    assert ("person" in named(caption)) == has_person


def test_mentions_have_the_position_of_their_last_word_and_repeat():
    words = tokenize("A dog and two puppies eat a hot dog.")
    mentions = coco_mentions(words)
    assert [(m.position, m.word, m.lemma) for m in mentions] == [
        (1, "dog", "dog"),
        (4, "puppies", "dog"),
        (8, "hot dog", "hot dog"),
    ]
