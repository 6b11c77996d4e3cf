"""What a user may ask: words by their vocabulary, places by the caption, and one line where it cannot be asked."""

from __future__ import annotations

import re

import pytest
import torch

import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.data.vocabulary import MARKERS, PAD, START, Vocabulary
from saywhy.errors import UserError
from saywhy.explain.composites import Composite
from saywhy.explain.request import Ask, Asked, caption_words, in_question, known_word, question
from saywhy.inference.model import Model

VOCABULARY = Vocabulary((*MARKERS, "a", "dog", "dogs", "runs", "n't", "does"))
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def model() -> Model:
    decoding = {"beam": 2, "min_words": 4, "max_words": 6}
    return Model(SavedModel("tiny", tiny.opinionated(), tiny.vocabulary(), Preprocessing(tiny.SIDE), decoding))


@pytest.fixture
def image(tmp_path):
    return tiny.image_files(tmp_path, 1)[0]


def test_a_word_is_known_in_any_case_and_between_spaces():
    assert known_word(" Dog ", VOCABULARY) == "dog"


def test_a_word_that_is_not_known_is_answered_with_near_ones():
    with pytest.raises(
        UserError, match=r"^the word 'dogz' is not in the model's vocabulary of 6: near it are dog.*dog"
    ):
        known_word("dogz", VOCABULARY)
    with pytest.raises(UserError, match="nothing is near it"):
        known_word("zeppelin", VOCABULARY)


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_is_no_word(marker):
    with pytest.raises(UserError, match="not in the model's vocabulary"):
        known_word(marker, VOCABULARY)


def test_a_typed_caption_is_cut_into_words_as_captions_of_training_are():
    words = caption_words("A dog doesn't... Dogs, dogs!", VOCABULARY, 9)
    assert words == ("a", "dog", "does", "n't", "dogs", "dogs")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the caption '' has no words"),
        (" . !", "has no words"),
        ("a dog runs a dog", "the caption has 5 words, and this model says at most 4: shorten it"),
        ("a dog flies", "the word 'flies' is not in the model's vocabulary"),
    ],
)
def test_a_caption_that_the_model_could_never_say_is_refused(text, said):
    with pytest.raises(UserError, match=re.escape(said)):
        caption_words(text, VOCABULARY, 4)


def test_every_word_is_in_question_or_one_wherever_it_stands_or_any_at_a_place():
    tokens = ("a", "dog", "a")
    assert in_question(tokens, None, None) == Asked(tokens, (0, 1, 2), tokens)
    assert in_question(tokens, "a", None) == Asked(tokens, (0, 2), ("a", "a"))
    assert in_question(tokens, None, 2) == Asked(tokens, (1,), ("dog",))
    assert in_question(tokens, "runs", 2) == Asked(tokens, (1,), ("runs",))
    assert in_question(tokens, "runs", None) is None, "only the model knows where it would fit"


@pytest.mark.parametrize("at", [-1, 0, 4])
def test_a_place_outside_the_caption_is_refused(at):
    with pytest.raises(UserError, match=f"^there is no word {at} in 'a dog a': it has 3$"):
        in_question(("a", "dog", "a"), None, at)


def test_a_question_is_of_numbers_and_shorter_rows_are_filled_up():
    a, dog, runs = (VOCABULARY.numbers[word] for word in ("a", "dog", "runs"))
    asked = [Asked(("a", "dog", "runs"), (0, 1, 2), ("a", "dog", "runs")), Asked(("dog",), (0,), ("runs",))]
    found = question(asked, VOCABULARY, "dogs", CPU)
    assert found.said.tolist() == [[START, a, dog, runs], [START, dog, PAD, PAD]]
    assert found.places.tolist() == [[0, 1, 2], [0, 0, 0]]
    assert found.words.tolist() == [[a, dog, runs], [runs, PAD, PAD]]
    assert found.instead.unique().tolist() == [VOCABULARY.numbers["dogs"]]
    assert question(asked, VOCABULARY, None, CPU).instead.unique().tolist() == [-1]


def test_what_is_asked_is_read_in_the_words_of_the_model():
    assert Ask.read(VOCABULARY, 5, "A dog runs.", "Dogs", 2, "RUNS") == Ask(("a", "dog", "runs"), "dogs", 2, "runs")
    assert Ask.read(VOCABULARY, 5) == Ask()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"word": ""}, "'' is not one word"),
        ({"instead": "cat"}, "the word 'cat' is not in the model's vocabulary"),
        ({"at": 6}, "there is no word 6: this model says at most 5 words"),
        ({"at": 0}, "there is no word 0"),
        ({"caption": "a dog", "at": 3}, "there is no word 3 in 'a dog'"),
        ({"word": "dog", "instead": "Dog"}, "why 'dog' and not 'dog': these are the same word"),
        ({"caption": "a dog", "at": 2, "instead": "dog"}, "these are the same word"),
    ],
)
def test_what_cannot_be_asked_is_refused(asked, said):
    with pytest.raises(UserError, match=re.escape(said)):
        Ask.read(VOCABULARY, 5, **asked)


def test_a_word_that_the_caption_lacks_is_explained_where_it_fits_best(model, image):
    tokens = ("word0", "word1", "word2", "word1")
    asked = {"methods": ["attention"], "caption": " ".join(tokens)}
    places = set()
    for word in ("word3", "word4", "word5", "word6"):
        likely = [model.explain(image, word=word, at=at, **asked).words[0].probability for at in (1, 2, 3, 4)]
        (best,) = model.explain(image, word=word, **asked).words
        assert (best.word, best.position, best.said) == (word, likely.index(max(likely)), tokens[best.position])
        assert best.probability == pytest.approx(max(likely), rel=1e-4)
        places.add(best.position)
    assert len(places) > 1, "one place is best for all: it was not chosen by the word"


def test_of_a_batch_each_caption_has_its_own_best_place(model, tmp_path):
    asked = {"images": tiny.image_files(tmp_path, 4), "methods": ["attention"], "word": "word6"}
    together, alone = (list(model.explanations(batch=batch, **asked)) for batch in (4, 1))
    places = [[each.position for each in found.words] for found in together]
    assert places == [[each.position for each in found.words] for found in alone]
    assert any("word6" not in found.tokens for found in together)


def test_a_contrast_explains_the_difference_of_two_logits(model, image):
    asked = {"methods": ["lrp"], "caption": "word0 word1 word2", "at": 2}
    one, other, both = (
        model.explain(image, word=word, instead=instead, **asked).words[0]
        for word, instead in (("word1", None), ("word4", None), ("word1", "word4"))
    )
    assert (both.word, both.instead) == ("word1", "word4")
    assert both.logit == pytest.approx(one.logit - other.logit, abs=1e-4)
    assert both.budget.total == pytest.approx(both.logit, abs=1e-3)
    assert both.budget.image == pytest.approx(one.budget.image - other.budget.image, abs=1e-3)
    assert both.probability == one.probability


def test_images_whose_captions_lack_the_place_are_left_out_and_told_of(model, tmp_path):
    images = tiny.image_files(tmp_path, 6)
    lengths = {str(path): len(model.caption(path).words) for path in images}
    longest = max(lengths.values())
    short = [path for path, length in lengths.items() if length < longest]
    assert 0 < len(short) < len(images)
    told: list[UserError] = []
    found = list(model.explanations(images, methods=["attention"], at=longest, batch=6, on_unreadable=told.append))
    assert [each.source for each in found] == [str(path) for path in images if str(path) not in short]
    assert [each.words[0].position for each in found] == [longest - 1] * len(found)
    assert [str(error).split(": ")[0] for error in told] == short
    with pytest.raises(UserError, match=f"there is no word {longest} in"):
        list(model.explanations(images, methods=["attention"], at=longest))


@pytest.mark.parametrize(
    "asked", [{"caption": "word1", "instead": "word1"}, {"caption": "word2 word1", "at": 2, "instead": "word1"}]
)
def test_a_word_is_not_held_against_itself(model, image, asked):
    with pytest.raises(UserError, match="why 'word1' and not 'word1'"):
        model.explain(image, methods=["lrp"], **asked)


def test_a_image_whose_own_word_is_the_other_is_told_of_and_the_rest_go_on(model, image):
    own, told = model.caption(image).words[0], []
    assert list(model.explanations([image], at=1, instead=own, methods=["lrp"], on_unreadable=told.append)) == []
    assert "these are the same word" in str(told[0])


def test_arguments_that_are_none_are_named(model, image):
    with pytest.raises(UserError, match="explain has no argument 'foo'"):
        model.explain(image, foo=1)
    with pytest.raises(UserError, match="methods="):
        model.explain(image, method="lrp")
    with pytest.raises(UserError, match="a list"):
        next(model.explanations(str(image)))
    with pytest.raises(UserError, match="not a list"):
        model.explain([image])


def test_methods_may_be_one_string(model, image):
    assert model.explain(image, methods="lrp, attention").methods == ("lrp", "attention")


def test_under_inference_mode_it_explains_all_the_same(model, image):
    with torch.inference_mode():
        found = model.explain(image, methods=["lrp"])
    assert found.words == model.explain(image, methods=["lrp"]).words


def test_the_model_is_as_it_was_between_two_explanations(model, image):
    before = model.captioner.attend
    for _ in model.explanations([image, image], methods=["lrp"]):
        assert model.captioner.attend == before


@pytest.mark.parametrize(
    "wrong", [{"first": "Flat"}, {"attention": "atnlrp"}, {"convolution": "gama"}, {"epsilon": -1.0}]
)
def test_rules_that_there_are_not_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Composite(**wrong)
