"""Words for things, and what makes them true."""

from __future__ import annotations

import gzip
import json

import pytest

from saywhy.data.datasets import read
from saywhy.data.object_words import KINDS, Mention, ObjectWords
from saywhy.data.stop_words import STOP_WORDS
from saywhy.data.tokenizer import tokenize
from saywhy.errors import UserError

COCO = """
    person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, stop sign,
    parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, backpack, umbrella,
    handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, baseball bat, baseball glove, skateboard,
    surfboard, tennis racket, bottle, wine glass, cup, fork, knife, spoon, bowl, banana, apple, sandwich, oranges,
    broccoli, carrot, hot dog, pizza, donut, cake, chair, couch, potted plant, bed, dining table, toilet, tv, laptop,
    mouse, remote, keyboard, cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, scissors,
    teddy bear, hair drier, toothbrush
"""
COLOURS = frozenset(
    ["black", "white", "red", "blue", "green", "yellow", "orange", "pink", "purple", "brown", "gray", "grey", "tan"]
)


@pytest.fixture(scope="module")
def objects() -> ObjectWords:
    return ObjectWords.read()


@pytest.fixture
def table(tmp_path):
    def write(text: str) -> ObjectWords:
        (tmp_path / "things.txt").write_text(text, encoding="utf-8")
        return ObjectWords.read(tmp_path / "things.txt")

    return write


def lemmas(objects: ObjectWords, caption: str) -> list[str]:
    return [mention.lemma for mention in objects.mentions(tokenize(caption))]


@pytest.mark.parametrize(
    ("form", "lemma"),
    [
        *[("dogs", "dog"), ("horses", "horse"), ("buses", "bus"), ("dresses", "dress"), ("puppies", "puppy")],
        *[("toys", "toy"), ("benches", "bench"), ("bushes", "bush"), ("boxes", "box"), ("leaves", "leaf")],
        *[("knives", "knife"), ("scarves", "scarf"), ("wolves", "wolf"), ("men", "man"), ("women", "woman")],
        *[("children", "child"), ("people", "person"), ("persons", "person"), ("geese", "goose"), ("feet", "foot")],
        *[("teeth", "tooth"), ("mice", "mouse"), ("sheep", "sheep"), ("fish", "fish"), ("potatoes", "potato")],
        *[("stomachs", "stomach"), ("policemen", "policeman"), ("hot dogs", "hot dog"), ("shorts", "shorts")],
        *[("glasses", "glasses"), ("glass", "glass"), ("wine glasses", "wine glass"), ("bikes", "bike")],
    ],
)
def test_a_plural_is_its_singular(objects, form, lemma):
    assert objects.lemma(form) == lemma
    assert objects.lemma(lemma) == lemma


@pytest.mark.parametrize(
    "word", ["hor", "dres", "bu", "glas", "gras", "running", "a", "air", "background", "day", "trick", "orange", "does"]
)
def test_other_words_are_no_things(objects, word):
    assert objects.lemma(word) is None


def test_a_mention_says_where_what_was_said_and_the_thing(objects):
    words = tokenize("Two men feed hot dogs to their puppies.")
    assert objects.mentions(words) == (
        Mention(1, "men", "man"),
        Mention(4, "hot dogs", "hot dog"),
        Mention(7, "puppies", "puppy"),
    )


@pytest.mark.parametrize(
    ("caption", "told"),
    [
        ("A teddy bear eats ice cream.", ["teddy bear", "ice cream"]),
        ("A bear on the ice", ["bear", "ice"]),
        ("A football player and a football", ["football player", "football"]),
        ("A boy smiles at the camera.", ["boy"]),
        ("A boy holds a camera.", ["boy", "camera"]),
        ("A couple of dogs and a couple", ["dog", "couple"]),
        ("An orange shirt", ["shirt"]),
        ("", []),
    ],
)
def test_the_longest_name_wins_and_some_phrases_name_nothing(objects, caption, told):
    assert lemmas(objects, caption) == told


def test_names_that_overlap_are_found_from_the_left(table):
    objects = table("[other]\na_b\nb_c_d\nb\nc\nd\n")
    found = [(mention.position, mention.lemma) for mention in objects.mentions(["a", "b", "c", "d", "b", "c", "d"])]
    assert found == [(1, "a b"), (2, "c"), (3, "d"), (6, "b c d")]


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("bike", "bicycle"),
        ("guy", "man"),
        ("kid", "child"),
        ("couch", "sofa"),
        ("t-shirt", "tee shirt"),
        ("lady", "woman"),
    ],
)
def test_other_words_for_the_same_make_each_other_true(objects, said, seen):
    assert objects.attests(said) == objects.attests(seen) >= {said, seen}
    assert objects.is_attested(said, [["a", *seen.split()]])
    assert objects.is_attested(seen, [["a", *said.split()]])


@pytest.mark.parametrize(
    ("broad", "narrow"),
    [
        *[("person", "man"), ("person", "boy"), ("person", "goalie"), ("child", "girl"), ("animal", "poodle")],
        *[("dog", "puppy"), ("ball", "basketball"), ("vehicle", "taxi"), ("water", "ocean"), ("water", "creek")],
        *[("crowd", "audience"), ("tree", "woods"), ("food", "hot dog")],
    ],
)
def test_a_narrower_kind_makes_the_broader_true_and_not_the_other_way(objects, broad, narrow):
    assert objects.is_attested(broad, [["nothing"], ["a", *narrow.split()]])
    assert not objects.is_attested(narrow, [["a", broad]])


@pytest.mark.parametrize(("one", "other"), [("boy", "man"), ("girl", "woman"), ("dog", "cat"), ("man", "woman")])
def test_neighbours_do_not_make_each_other_true(objects, one, other):
    assert not objects.is_attested(one, [["the", other]])
    assert not objects.is_attested(other, [["the", one]])


def test_what_tells_of_a_thing_makes_it_true_and_leads_no_further(table):
    objects = table("[other]\nboard > skateboard\nskateboard ~ skater wheeled\n[people]\nskater = glider > star\n")
    for word in ("skater", "skaters", "wheeled"):
        assert objects.is_attested("board", [[word]])
    assert not objects.is_attested("board", [["star", "glider"]])
    assert objects.attests("board") == {"board", "skateboard", "skater"}
    assert objects.mentions(["wheeled"]) == ()


def test_a_word_within_a_longer_name_makes_nothing_true(objects):
    assert not objects.is_attested("dog", [tokenize("she eats a hot dog")])
    assert not objects.is_attested("orange", [tokenize("an orange shirt")])
    assert not objects.is_attested("dog", [])


def test_every_category_of_coco_is_known(objects):
    assert len(COCO.split(",")) == 80
    unknown = [name for name in map(str.strip, COCO.split(",")) if not objects.mentions(name.split())]
    assert unknown == []


def test_every_thing_is_of_a_kind_and_makes_itself_true(objects):
    assert len(objects.lemmas) > 500
    for lemma in objects.lemmas:
        assert objects.kind(lemma) in KINDS
        assert lemma in objects.attests(lemma)
    assert [objects.kind(word) for word in ("guy", "poodle", "t-shirt", "nose")] == list(KINDS[:4])
    assert [objects.kind(word) for word in ("bike", "violin", "lake", "hot dog")] == list(KINDS[4:])


def test_things_make_only_broader_ones_true(objects):
    for lemma in objects.lemmas:
        for other in objects.attests(lemma):
            same = lemma in objects.attests(other)
            assert not same or objects.kind(lemma) == objects.kind(other)


@pytest.mark.parametrize(("thing", "kind"), [("person", "people"), ("animal", "animals")])
def test_a_person_is_any_of_the_people_and_an_animal_any_of_the_animals(objects, thing, kind):
    assert objects.attests(thing) == {lemma for lemma in objects.lemmas if objects.kind(lemma) == kind}


@pytest.mark.parametrize("thing", ["vehicle", "instrument"])
def test_only_things_of_its_kind_and_who_uses_them_make_a_kind_true(objects, thing):
    assert {objects.kind(lemma) for lemma in objects.attests(thing)} == {objects.kind(thing), "people"}


def test_no_stop_word_names_a_thing(objects):
    assert [word for word in STOP_WORDS if objects.lemma(word)] == []


def test_stop_words_are_words_as_the_tokeniser_cuts_them():
    cut = tokenize("The dog's owner isn't there, and they're (all) near him; I'd say I can't, we've gone, they'll see")
    assert set(cut) - {"dog", "owner", "say", "gone", "see"} <= STOP_WORDS


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("dog\n", 1, "heading"),
        ("# x\n[beasts]\ndog\n", 2, r"unknown heading '\[beasts\]'"),
        ("[animals\ndog\n", 1, "unknown heading"),
        ("[animals]\ndog cat\n", 2, "2 names"),
        ("[animals]\ndog =\n", 2, "form"),
        ("[animals]\ndog = = cat\n", 2, "form"),
        ("[animals]\ndog > a > b\n", 2, "form"),
        ("[animals]\n> puppy\n", 2, "form"),
        ("[animals]\ngoose (geese\n", 2, "brackets"),
        ("[animals]\ngoose ()\n", 2, "brackets"),
        ("[animals]\n(geese)\n", 2, "brackets"),
        ("[animals]\nDog\n", 2, "'Dog' is no name"),
        ("[animals]\nhot__dog\n", 2, "no name"),
        ("[animals]\ndog\n\ncat = dog\n", 4, "'dog' is named in line 2"),
        ("[animals]\ndog > pup\npup > dog\n", 2, "dog > pup > dog"),
        ("[animals]\ndog = hound > hound\n", 2, "dog > dog"),
        ("[animals]\ngoose (geese)\nbird > goose (geese)\n", 3, "line 2"),
        ("[animals]\nhen\nhens\n", 3, "'hens' would be both 'hens' and 'hen'"),
        ("[other]\nhot_dog\n[nothing]\nhot_dog\n", 4, "named as a thing in line 2"),
    ],
)
def test_a_mistake_in_a_table_is_told_in_one_line_with_its_place(table, text, line, what):
    with pytest.raises(UserError, match=what) as caught:
        table(text)
    assert f"things.txt, line {line}: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_is_missing_or_no_text_is_a_users_error(tmp_path):
    with pytest.raises(UserError, match=r"gone\.txt: cannot read"):
        ObjectWords.read(tmp_path / "gone.txt")
    (tmp_path / "bytes.txt").write_bytes(b"[animals]\ndog\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"bytes\.txt, line 3: not UTF-8"):
        ObjectWords.read(tmp_path / "bytes.txt")


def test_a_line_that_starts_with_a_space_goes_on_with_the_one_above(table):
    objects = table("[animals]\ndog = hound\n  > puppy\n    poodle\ncat\n")
    assert objects.attests("hound") == {"dog", "hound", "puppy", "poodle"}
    assert objects.attests("cat") == {"cat"}


def test_the_key_changes_with_the_table(table):
    keys = [table(f"[animals]\n{names}\n").key for names in ("dog", "dog", "dog = hound")]
    assert keys[0] == keys[1] != keys[2]


def test_the_shipped_table_is_read_once(objects):
    assert ObjectWords.read() is objects


@pytest.mark.data
def test_what_people_drew_boxes_around_in_flickr8k_is_known(objects, flickr8k):
    """Of the phrases that say more than a colour or a function word, 95 in a hundred name a thing of the table."""
    test = {image.name for image in read(flickr8k).split("test").images}
    known = []
    with gzip.open(flickr8k / "boxes.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            for phrase in row["phrases"] if row["image"] in test else ():
                words = tokenize(phrase["phrase"])
                if phrase["boxes"] and not set(words) <= STOP_WORDS | COLOURS:
                    known.append(bool(objects.mentions(words)))
    assert len(known) > 10_000
    assert sum(known) / len(known) > 0.95
