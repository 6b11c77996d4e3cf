"""A model with styles: captions, explanations and evaluation begin with the marker of the style."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

import audit_data
import saywhy
import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.datasets import CaptionedImage
from saywhy.data.images import open_image
from saywhy.data.object_words import ObjectWords
from saywhy.data.preprocess import Preprocessing
from saywhy.decoding.config import Decoding, log_probabilities
from saywhy.errors import UserError
from saywhy.explain import Explanation
from saywhy.explain.passes import Targets
from saywhy.explain.request import known_word
from saywhy.hallucination.risk_model import WORD_FEATURES, ObjectVocabulary, word_features
from saywhy.inference.evaluation import caption_split

STYLES = ("coco", "flickr8k")
VOCABULARY = tiny.vocabulary(styles=STYLES)


def saved(name: str = "soft-attention", **decoding) -> SavedModel:
    captioner = tiny.sensitive_captioner(name)
    captioner.styles = len(STYLES)
    decoding = {"beam": 2, "min_words": 3, "max_words": 6} | decoding
    return SavedModel("tiny", captioner, VOCABULARY, Preprocessing(tiny.SIDE), decoding)


@pytest.fixture(scope="module")
def model() -> saywhy.Model:
    return saywhy.Model(saved())


def pixels(model: saywhy.Model, path: Path) -> torch.Tensor:
    return torch.from_numpy(model.preprocessing(open_image(path)))[None]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return tiny.image_files(tmp_path, 3)


def test_captions_say_their_style_and_the_first_style_is_the_default(model, paths):
    by_style = {style: list(model.captions(paths, style=style)) for style in (*STYLES, "")}
    assert [caption.style for caption in model.captions(paths)] == ["coco"] * 3
    assert [caption.as_dict()["style"] for caption in by_style["flickr8k"]] == ["flickr8k"] * 3
    assert [caption.logprobs for caption in by_style[""]] == [caption.logprobs for caption in by_style["coco"]]
    assert all(a.logprobs != b.logprobs for a, b in zip(by_style["coco"], by_style["flickr8k"], strict=True))


def test_a_model_without_styles_has_none_in_captions_explanations_and_signatures(paths):
    model = audit_data.model()
    assert "style" not in model.caption(paths[0]).as_dict()
    assert "style" not in model.explain(paths[0], methods=["lrp"]).as_dict()
    assert "style" not in str(model.decoding)


def test_the_default_style_of_a_model_can_be_another_than_its_first(paths):
    model = saywhy.Model(saved(style="flickr8k"))
    assert model.caption(paths[0]).style == "flickr8k"
    assert str(model.decoding) == "beam2,length0.7,min3,max6,style:flickr8k"


def test_a_saved_model_keeps_its_styles(tmp_path, paths, model):
    saved(style="flickr8k").save(tmp_path / "model")
    loaded = saywhy.load(tmp_path / "model", "cpu")
    assert loaded.captioner.styles == 2
    assert loaded.vocabulary.styles == STYLES
    caption = loaded.caption(paths[0])
    assert (caption.style, caption.words) == ("flickr8k", model.caption(paths[0], style="flickr8k").words)


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_an_explanation_has_the_caption_of_its_style_and_an_exact_budget(name, paths):
    model, explained = saywhy.Model(saved(name)), {}
    for style in STYLES:
        caption = model.caption(paths[0], style=style)
        explanation = model.explain(paths[0], methods=["lrp"], style=style)
        assert (explanation.tokens, explanation.style) == (caption.words, style)
        probabilities = [word.probability for word in explanation.words]
        np.testing.assert_allclose(probabilities, np.exp(caption.logprobs), rtol=1e-3)
        for word in explanation.words:
            assert word.budget.total == pytest.approx(word.score, abs=1e-2 * max(1, abs(word.score)))
        explained[style] = [word.logit for word in explanation.words]
    assert explained["coco"] != explained["flickr8k"]


def test_a_given_caption_is_explained_in_the_style_that_is_asked_for(model, paths):
    text, ids = "word0 word2 word1", VOCABULARY.ids
    logits = {}
    for style in STYLES:
        words = model.explain(paths[0], caption=text, methods=["lrp"], style=style).words
        tokens = torch.tensor([[VOCABULARY.start(style), ids["word0"], ids["word2"]]])
        with torch.no_grad():
            expected, _ = model.captioner(model.captioner.encode(pixels(model, paths[0])), tokens)
        rows = [ids["word0"], ids["word2"], ids["word1"]]
        logits[style] = [word.logit for word in words]
        assert logits[style] == pytest.approx([float(expected[0, t, row]) for t, row in enumerate(rows)], rel=1e-3)
    assert logits["coco"] != pytest.approx(logits["flickr8k"], rel=1e-3)


def test_the_likeliest_position_of_a_word_is_found_in_the_style(model, paths):
    image = pixels(model, paths[0])

    def likeliest(word: str, caption: tuple[str, ...], style: str) -> int:
        tokens = torch.tensor([VOCABULARY.encode(caption, style)[:-1]])
        with torch.no_grad():
            logits, _ = model.captioner(model.captioner.encode(image), tokens)
        return int(log_probabilities(logits, styles=2)[0, : len(caption), VOCABULARY.ids[word]].argmax())

    cases = ((word, caption) for word, *caption in permutations(VOCABULARY.words[VOCABULARY.markers :], 4))
    word, caption = next(case for case in cases if likeliest(*case, "coco") != likeliest(*case, "flickr8k"))
    for style in STYLES:
        options = {"caption": " ".join(caption), "word": word, "methods": ["lrp"], "style": style}
        (explained,) = model.explain(paths[0], **options).words
        assert explained.position == likeliest(word, caption, style)


def test_risks_are_estimated_in_the_style(paths):
    words = (*VOCABULARY.words[: VOCABULARY.markers], *audit_data.WORDS[4:])
    captioner = tiny.sensitive_captioner(words=len(words), seed=3)
    captioner.styles = 2
    contents = SavedModel("tiny", captioner, type(VOCABULARY)(words), Preprocessing(tiny.SIDE), audit_data.LONG)
    model = saywhy.Model(contents, audit_data.some_risk())
    for style in STYLES:
        captions = list(model.captions(paths, risk=True, style=style))
        explanations = list(model.explanations(paths, methods=["lrp"], style=style))
        risks = [risk for caption in captions for risk in caption.risks or () if risk is not None]
        assert risks, "no caption has an object word"
        assert risks == pytest.approx(
            [word.risk for explanation in explanations for word in explanation.words if word.risk is not None], rel=1e-3
        )


def test_the_probability_without_an_image_leaves_the_markers_out(model, paths):
    caption, objects = ["word0", "word2"], ObjectVocabulary(VOCABULARY, ObjectWords.read())
    targets = Targets.of_captions([caption], None, VOCABULARY, torch.device("cpu"), style="flickr8k")
    with torch.no_grad():
        encoded = model.captioner.encode(pixels(model, paths[0]))
        features = word_features(model.captioner, encoded, targets, [["dog", "dog"]], objects)
        without_image = model.captioner.without_image(encoded)
        logits, _ = model.captioner(without_image, torch.tensor([VOCABULARY.encode(caption, "flickr8k")[:-1]]))
    log_p = log_probabilities(logits, styles=2)[0]
    expected = [float(log_p[t, VOCABULARY.ids[word]]) for t, word in enumerate(caption)]
    assert features[0, :, WORD_FEATURES.index("log p without image")] == pytest.approx(expected, rel=1e-4)


def test_texts_are_matched_in_the_style_of_the_model(paths):
    matches = [saywhy.Model(saved("coca", style=style)).match(paths[0], ["word0 word1"]) for style in STYLES]
    assert matches[0] != matches[1]


def test_a_saved_explanation_and_its_page_name_the_style_and_never_its_marker(model, paths, tmp_path):
    explanation = model.explain(paths[0], style="flickr8k")
    explanation.save(tmp_path / "why")
    assert Explanation.load(tmp_path / "why").style == "flickr8k"
    assert explanation.as_dict()["style"] == "flickr8k"
    page = (tmp_path / "why" / "report.html").read_text(encoding="utf-8")
    assert "model tiny, style flickr8k" in page
    for text in (page, (tmp_path / "why" / "explanation.json").read_text(encoding="utf-8")):
        assert "style:flickr8k" not in text


def test_markers_of_styles_are_not_words_of_the_vocabulary():
    with pytest.raises(UserError, match=r"not in the model's vocabulary of 5:"):
        known_word("<style:coco>", VOCABULARY)
    assert known_word("word0", VOCABULARY) == "word0"


@pytest.mark.parametrize("method", ["captions", "explanations"])
def test_an_unknown_style_is_refused_by_the_call_and_before_an_image_is_read(model, method):
    with pytest.raises(UserError, match=r'unknown style .flickr.: did you mean "flickr8k"'):
        getattr(model, method)(["missing.jpg"], style="flickr")
    with pytest.raises(UserError, match="this model has only one style"):
        getattr(audit_data.model(), method)(["missing.jpg"], style="coco")


def test_a_damaged_style_in_the_configuration_is_named():
    with pytest.raises(UserError, match=r"model tiny: config\.json: unknown style .cocoa."):
        saywhy.Model(saved(style="cocoa"))


@pytest.mark.parametrize("style", ["", *STYLES])
def test_a_split_is_captioned_in_the_style_of_the_decoding(model, paths, style):
    images = [CaptionedImage(path.name, path, ("a",), "test") for path in paths]
    decoding = Decoding(beam=2, min_words=3, max_words=6, style=style)
    result = caption_split(model.captioner, VOCABULARY, model.preprocessing, images, decoding, workers=0)
    expected = list(model.captions(paths, style=style))
    assert [caption.words for caption in result.captions.values()] == [caption.words for caption in expected]
    assert {caption.style for caption in result.captions.values()} == {style or "coco"}
