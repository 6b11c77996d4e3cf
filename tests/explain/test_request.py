"""Explanation requests: words of the vocabulary, positions of the caption, and one line for an impossible request."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import MARKERS, PAD, START, Vocabulary
from saywhy.errors import UserError
from saywhy.explain.composites import Composite, composites
from saywhy.explain.methods import REPORT_METHODS
from saywhy.explain.passes import Targets
from saywhy.explain.request import ExplanationRequest, known_word, parse_caption
from saywhy.inference.model import Model

VOCABULARY = Vocabulary((*MARKERS, "a", "dog", "dogs", "runs", "n't", "does"))
CPU = torch.device("cpu")


def request_for(max_words: int = 5, **options: Any) -> ExplanationRequest:
    return ExplanationRequest.parse(VOCABULARY, max_words, **options)


@pytest.fixture(scope="module")
def model() -> Model:
    decoding = {"beam": 2, "min_words": 4, "max_words": 6}
    return Model(SavedModel("tiny", tiny.sensitive_captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE), decoding))


@pytest.fixture
def image(tmp_path):
    return tiny.image_files(tmp_path, 1)[0]


def test_word_is_known_regardless_of_case_and_spaces():
    assert known_word(" Dog ", VOCABULARY) == "dog"


def test_unknown_word_is_refused_with_similar_words():
    message = r"^the word 'dogz' is not in the model's vocabulary of 6: similar words are dog.*dog"
    with pytest.raises(UserError, match=message):
        known_word("dogz", VOCABULARY)
    with pytest.raises(UserError, match="no word is similar"):
        known_word("zeppelin", VOCABULARY)


@pytest.mark.parametrize("marker", MARKERS)
def test_marker_is_not_a_word(marker):
    with pytest.raises(UserError, match="not in the model's vocabulary"):
        known_word(marker, VOCABULARY)


def test_caption_is_tokenised_like_training_captions():
    words = parse_caption("A dog doesn't... Dogs, dogs!", VOCABULARY, 9)
    assert words == ("a", "dog", "does", "n't", "dogs", "dogs")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the caption '' has no words"),
        (" . !", "has no words"),
        ("a dog runs a dog", "the caption has 5 words, and this model's captions at most 4: shorten it"),
        ("a dog flies", "the word 'flies' is not in the model's vocabulary"),
    ],
)
def test_caption_that_the_model_cannot_generate_is_refused(text, message):
    with pytest.raises(UserError, match=re.escape(message)):
        parse_caption(text, VOCABULARY, 4)


def test_positions_are_all_or_those_of_a_word_or_the_given_one():
    caption = ("a", "dog", "a")
    assert request_for().positions(caption) == (0, 1, 2)
    assert request_for(word="a").positions(caption) == (0, 2)
    assert request_for(position=2).positions(caption) == (1,)
    assert request_for(word="runs", position=2).positions(caption) == (1,)
    assert request_for(contrast="a").positions(caption) == (1,), "a word is not contrasted with itself"
    assert request_for(word="runs").positions(caption) is None, "only the model knows the likeliest position"


def test_position_after_the_end_of_the_caption_is_refused():
    with pytest.raises(UserError, match=r"^no word 4 in 'a dog a': it has 3 words$"):
        request_for(position=4).check(("a", "dog", "a"))


def test_targets_are_ids_and_shorter_rows_are_padded():
    a, dog, runs = (VOCABULARY.ids[word] for word in ("a", "dog", "runs"))
    captions = [("a", "dog", "runs"), ("dog",)]
    targets = Targets.of_captions(captions, None, VOCABULARY, CPU, contrast="dogs")
    assert targets.tokens.tolist() == [[START, a, dog, runs], [START, dog, PAD, PAD]]
    assert targets.positions.tolist() == [[0, 1, 2], [0, 0, 0]]
    assert targets.words.tolist() == [[a, dog, runs], [dog, PAD, PAD]]
    assert targets.labels == [["a", "dog", "runs"], ["dog"]]
    assert targets.contrast.unique().tolist() == [VOCABULARY.ids["dogs"]]
    other = Targets.of_captions(captions, [(2,), (0,)], VOCABULARY, CPU, word="runs")
    assert other.words.tolist() == [[runs], [runs]]
    assert other.positions.tolist() == [[2], [0]]
    assert other.contrast.unique().tolist() == [-1]


def test_request_is_parsed_into_words_of_the_vocabulary():
    options = {"caption": "A dog runs.", "word": "Dogs", "position": 2, "contrast": "RUNS"}
    request = request_for(**options, methods="lrp,attention", composite="paper")
    caption = ("a", "dog", "runs")
    expected = ExplanationRequest(caption, "dogs", 2, "runs", ("lrp", "attention"), composites["paper"])
    assert request == expected
    assert request_for() == ExplanationRequest(None, None, None, None, REPORT_METHODS, composites["by-stride"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"word": ""}, "'' is not one word"),
        ({"contrast": "cat"}, "the word 'cat' is not in the model's vocabulary"),
        ({"position": 6}, "position 6 is out of range: captions have at most 5 words"),
        ({"position": 0}, "position 0 is out of range"),
        ({"position": -1}, "position -1 is out of range"),
        ({"caption": "a dog", "position": 3}, "no word 3 in 'a dog'"),
        ({"word": "dog", "contrast": "Dog"}, "the contrast of 'dog' is the same word"),
        ({"caption": "a dog", "position": 2, "contrast": "dog"}, "is the same word"),
        ({"methods": "lrp,gradcamm"}, "unknown method 'gradcamm': did you mean"),
        ({"methods": []}, "name at least one method"),
        ({"composite": "papper"}, "unknown composite 'papper'"),
    ],
)
def test_impossible_request_is_refused(options, message):
    with pytest.raises(UserError, match=re.escape(message)):
        request_for(**options)


def test_word_that_the_caption_lacks_is_explained_at_its_likeliest_position(model, image):
    tokens = ("word0", "word1", "word2", "word1")
    options = {"methods": ["attention"], "caption": " ".join(tokens)}
    positions = set()
    for word in ("word3", "word4", "word5", "word6"):
        p = [model.explain(image, word=word, position=i, **options).words[0].probability for i in (1, 2, 3, 4)]
        (best,) = model.explain(image, word=word, **options).words
        assert (best.word, best.position, best.caption_word) == (word, p.index(max(p)), tokens[best.position])
        assert best.probability == pytest.approx(max(p), rel=1e-4)
        positions.add(best.position)
    assert len(positions) > 1, "the position does not depend on the word"


def test_every_caption_of_a_batch_has_its_own_likeliest_position(model, tmp_path):
    options = {"images": tiny.image_files(tmp_path, 4), "methods": ["attention"], "word": "word6"}
    together, alone = (list(model.explanations(batch_size=size, **options)) for size in (4, 1))
    positions = [[word.position for word in explanation.words] for explanation in together]
    assert positions == [[word.position for word in explanation.words] for explanation in alone]
    assert any("word6" not in explanation.tokens for explanation in together)


def test_contrast_explains_the_difference_of_two_logits(model, image):
    options = {"methods": ["lrp"], "caption": "word0 word1 word2", "position": 2, "composite": "paper"}
    one, other, both = (
        model.explain(image, word=word, contrast=contrast, **options).words[0]
        for word, contrast in (("word1", None), ("word4", None), ("word1", "word4"))
    )
    assert (both.word, both.contrast) == ("word1", "word4")
    assert both.logit == pytest.approx(one.logit - other.logit, abs=1e-4)
    assert both.budget.total == pytest.approx(both.logit, abs=1e-3)
    assert both.budget.image == pytest.approx(one.budget.image - other.budget.image, abs=1e-3)
    assert both.probability == one.probability


def test_images_whose_captions_lack_the_position_are_reported_and_left_out(model, tmp_path):
    images = tiny.image_files(tmp_path, 6)
    lengths = {str(path): len(model.caption(path).words) for path in images}
    longest = max(lengths.values())
    short = [path for path, length in lengths.items() if length < longest]
    assert 0 < len(short) < len(images)
    errors: list[UserError] = []
    options = {"methods": ["attention"], "position": longest}
    explanations = list(model.explanations(images, batch_size=6, on_unreadable=errors.append, **options))
    assert [explanation.source for explanation in explanations] == [str(p) for p in images if str(p) not in short]
    assert {explanation.words[0].position for explanation in explanations} == {longest - 1}
    assert [str(error).split(": ")[0] for error in errors] == short
    with pytest.raises(UserError, match=f"no word {longest} in"):
        list(model.explanations(images, **options))


def test_image_whose_caption_has_only_the_contrast_is_reported(model, image):
    first, errors = model.caption(image).words[0], []
    options = {"position": 1, "contrast": first, "methods": ["lrp"]}
    assert list(model.explanations([image], on_unreadable=errors.append, **options)) == []
    assert "is the same word" in str(errors[0])


def test_sampled_attention_explains_the_draws_of_the_decoded_caption(tmp_path):
    captioner = tiny.sensitive_captioner("hard-attention")
    saved = SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE), {"min_words": 4, "max_words": 6})
    model, images = Model(saved), tiny.image_files(tmp_path, 6)
    for method in ({"beam": 1}, {"beam": 3}):
        captions = list(model.captions(images, attention="sampled", **method))
        for batch_size in (1, 6):
            options = {"methods": ["lrp"], "attention": "sampled", "batch_size": batch_size, **method}
            for caption, explanation in zip(captions, model.explanations(images, **options), strict=True):
                assert explanation.tokens == caption.words
                p = [word.probability for word in explanation.words]
                assert p == pytest.approx(torch.tensor(caption.logprobs).exp().tolist()[: len(p)], rel=1e-3)


def test_wrong_arguments_are_named(model, image):
    with pytest.raises(UserError, match="explain has no argument 'foo'"):
        model.explain(image, foo=1)
    with pytest.raises(UserError, match="methods="):
        model.explain(image, method="lrp")
    with pytest.raises(UserError, match="a list"):
        next(model.explanations(str(image)))
    with pytest.raises(UserError, match="not an image: list"):
        model.explain([image])


def test_under_inference_mode_the_explanation_is_the_same(model, image):
    with torch.inference_mode():
        explanation = model.explain(image, methods=["lrp"])
    assert explanation.words == model.explain(image, methods=["lrp"]).words


def test_attention_mode_is_unchanged_between_two_explanations(model, image):
    before = model.captioner.attention_mode
    for _ in model.explanations([image, image], methods=["lrp"]):
        assert model.captioner.attention_mode == before


@pytest.mark.parametrize(
    "settings",
    [
        *({"first": "Flat"}, {"attention": "atnlrp"}, {"convolution": "gama"}, {"alpha": 0.5}, {"gamma": torch.inf}),
        *({"epsilon": -1.0}, {"epsilon": 1e308}, {"epsilon": torch.inf}, {"epsilon": torch.nan}),
    ],
)
def test_composite_with_unknown_rules_or_values_out_of_range_is_refused(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        Composite(**settings)
