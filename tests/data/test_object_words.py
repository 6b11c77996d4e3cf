"""Object words: which words name objects, and which words support them."""

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
        (tmp_path / "objects.txt").write_text(text, encoding="utf-8")
        return ObjectWords.read(tmp_path / "objects.txt")

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
def test_the_lemma_of_a_plural_is_its_singular(objects, form, lemma):
    assert objects.lemma(form) == lemma
    assert objects.lemma(lemma) == lemma


@pytest.mark.parametrize(
    "word", ["hor", "dres", "bu", "glas", "gras", "running", "a", "air", "background", "day", "trick", "orange", "does"]
)
def test_other_words_have_no_lemma(objects, word):
    assert objects.lemma(word) is None


def test_a_mention_has_position_word_and_lemma(objects):
    words = tokenize("Two men feed hot dogs to their puppies.")
    assert objects.mentions(words) == (
        Mention(1, "men", "man"),
        Mention(4, "hot dogs", "hot dog"),
        Mention(7, "puppies", "puppy"),
    )


@pytest.mark.parametrize(
    ("caption", "expected"),
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
def test_the_longest_name_counts_and_some_phrases_name_nothing(objects, caption, expected):
    assert lemmas(objects, caption) == expected


def test_names_that_overlap_are_found_from_the_left(table):
    objects = table("[other]\na_b\nb_c_d\nb\nc\nd\n")
    mentions = objects.mentions(["a", "b", "c", "d", "b", "c", "d"])
    assert [(mention.position, mention.lemma) for mention in mentions] == [(1, "a b"), (2, "c"), (3, "d"), (6, "b c d")]


@pytest.mark.parametrize(
    ("word", "synonym"),
    [
        ("bike", "bicycle"),
        ("guy", "man"),
        ("kid", "child"),
        ("couch", "sofa"),
        ("t-shirt", "tee shirt"),
        ("lady", "woman"),
    ],
)
def test_synonyms_support_each_other(objects, word, synonym):
    assert objects.supporting(word) == objects.supporting(synonym) >= {word, synonym}
    assert objects.is_supported(word, [["a", *synonym.split()]])
    assert objects.is_supported(synonym, [["a", *word.split()]])


@pytest.mark.parametrize(
    ("broad", "narrow"),
    [
        *[("person", "man"), ("person", "boy"), ("person", "goalie"), ("child", "girl"), ("animal", "poodle")],
        *[("dog", "puppy"), ("ball", "basketball"), ("vehicle", "taxi"), ("water", "ocean"), ("water", "creek")],
        *[("crowd", "audience"), ("tree", "woods"), ("food", "hot dog")],
    ],
)
def test_a_narrower_kind_supports_the_broader_and_not_the_reverse(objects, broad, narrow):
    assert objects.is_supported(broad, [["nothing"], ["a", *narrow.split()]])
    assert not objects.is_supported(narrow, [["a", broad]])


@pytest.mark.parametrize(("one", "other"), [("boy", "man"), ("girl", "woman"), ("dog", "cat"), ("man", "woman")])
def test_sibling_kinds_do_not_support_each_other(objects, one, other):
    assert not objects.is_supported(one, [["the", other]])
    assert not objects.is_supported(other, [["the", one]])


def test_a_hint_supports_an_object_and_implies_nothing_else(table):
    objects = table("[other]\nboard > skateboard\nskateboard ~ skater wheeled\n[people]\nskater = glider > star\n")
    for word in ("skater", "skaters", "wheeled"):
        assert objects.is_supported("board", [[word]])
    assert not objects.is_supported("board", [["star", "glider"]])
    assert objects.supporting("board") == {"board", "skateboard", "skater"}
    assert objects.mentions(["wheeled"]) == ()


def test_a_word_within_a_longer_name_supports_nothing(objects):
    assert not objects.is_supported("dog", [tokenize("she eats a hot dog")])
    assert not objects.is_supported("orange", [tokenize("an orange shirt")])
    assert not objects.is_supported("dog", [])


def test_supported_objects_are_those_that_is_supported_finds(objects):
    captions = [caption.split() for caption in ("a cyclist eats a hot dog", "two puppies on a grassy hill", "orange")]
    assert objects.supported(captions) == {name for name in objects.lemmas if objects.is_supported(name, captions)}
    assert objects.supported([]) == frozenset()


def test_every_category_of_coco_is_known(objects):
    assert len(COCO.split(",")) == 80
    unknown = [name for name in map(str.strip, COCO.split(",")) if not objects.mentions(name.split())]
    assert unknown == []


def test_every_object_has_a_kind_and_supports_itself(objects):
    assert len(objects.lemmas) > 500
    for lemma in objects.lemmas:
        assert objects.kind(lemma) in KINDS
        assert lemma in objects.supporting(lemma)
    assert [objects.kind(word) for word in ("guy", "poodle", "t-shirt", "nose")] == list(KINDS[:4])
    assert [objects.kind(word) for word in ("bike", "violin", "lake", "hot dog")] == list(KINDS[4:])


def test_objects_that_support_each_other_are_of_one_kind(objects):
    for lemma in objects.lemmas:
        for other in objects.supporting(lemma):
            same = lemma in objects.supporting(other)
            assert not same or objects.kind(lemma) == objects.kind(other)


@pytest.mark.parametrize(("lemma", "kind"), [("person", "people"), ("animal", "animals")])
def test_all_people_support_person_and_all_animals_animal(objects, lemma, kind):
    assert objects.supporting(lemma) == {name for name in objects.lemmas if objects.kind(name) == kind}


@pytest.mark.parametrize("lemma", ["vehicle", "instrument"])
def test_only_objects_of_its_kind_and_their_users_support_a_kind(objects, lemma):
    assert {objects.kind(name) for name in objects.supporting(lemma)} == {objects.kind(lemma), "people"}


def test_no_stop_word_names_an_object(objects):
    assert [word for word in STOP_WORDS if objects.lemma(word)] == []


def test_stop_words_are_tokens_of_the_tokeniser():
    tokens = tokenize(
        "The dog's owner isn't there, and they're (all) near him; I'd say I can't, we've gone, they'll see"
    )
    assert set(tokens) - {"dog", "owner", "say", "gone", "see"} <= STOP_WORDS


@pytest.mark.parametrize(
    ("text", "line", "problem"),
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
        ("[animals]\nDog\n", 2, "'Dog' is not a name"),
        ("[animals]\nhot__dog\n", 2, "not a name"),
        ("[animals]\ndog\n\ncat = dog\n", 4, "'dog' is already named in line 2"),
        ("[animals]\ndog > pup\npup > dog\n", 2, "dog > pup > dog"),
        ("[animals]\ndog = hound > hound\n", 2, "dog > dog"),
        ("[animals]\ngoose (geese)\nbird > goose (geese)\n", 3, "line 2"),
        ("[animals]\nhen\nhens\n", 3, "'hens' would be both 'hens' and 'hen'"),
        ("[other]\nhot_dog\n[nothing]\nhot_dog\n", 4, "name of an object in line 2"),
    ],
)
def test_a_mistake_in_a_table_is_one_line_with_the_line_number(table, text, line, problem):
    with pytest.raises(UserError, match=problem) as caught:
        table(text)
    assert f"objects.txt, line {line}: " in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# nothing\n", "[people]\n", "[nothing]\nhot_dog\n", "[other]\ndog (only)\n"]
)
def test_a_table_without_object_words_is_refused(table, text):
    with pytest.raises(UserError, match=r"objects\.txt: this table has no object word; add one") as caught:
        table(text)
    assert "\n" not in str(caught.value)


def test_a_missing_or_binary_table_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match=r"gone\.txt: cannot read"):
        ObjectWords.read(tmp_path / "gone.txt")
    (tmp_path / "bytes.txt").write_bytes(b"[animals]\ndog\n\xff\xfe\n")
    with pytest.raises(UserError, match=r"bytes\.txt, line 3: not UTF-8"):
        ObjectWords.read(tmp_path / "bytes.txt")


def test_a_line_that_starts_with_a_space_continues_the_line_above(table):
    objects = table("[animals]\ndog = hound\n  > puppy\n    poodle\ncat\n")
    assert objects.supporting("hound") == {"dog", "hound", "puppy", "poodle"}
    assert objects.supporting("cat") == {"cat"}


def test_the_key_changes_with_the_table(table):
    keys = [table(f"[animals]\n{names}\n").key for names in ("dog", "dog", "dog = hound")]
    assert keys[0] == keys[1] != keys[2]


def test_the_default_table_is_read_once(objects):
    assert ObjectWords.read() is objects


@pytest.mark.data
def test_phrases_with_boxes_in_flickr8k_mention_an_object(objects, flickr8k):
    """At least 95 % of the phrases that are more than a colour or a function word."""
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
