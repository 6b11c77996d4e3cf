"""The hallucination risk: features calculated by hand, equal results by every route, and errors in one line."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import audit_data
import tiny
from reference import audits as reference
from saywhy.captioners import Captioner
from saywhy.data.object_words import ObjectWords
from saywhy.data.tokenizer import END, MARKERS, START, Vocabulary
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.explain.composites import composite
from saywhy.explain.methods import Attributions, attribute
from saywhy.explain.passes import Targets, run_lrp
from saywhy.hallucination.risk_model import WORD_FEATURES, ObjectVocabulary, Risk, word_features
from saywhy.inference.model import Model, load

NAMES = ("soft-attention", "ada-lstm", "mh-fc", "coca")
CAPTION = ("the", "dog", "runs", "with", "a", "red", "puppy", "man")
LEMMAS = [None, "dog", None, None, None, None, "puppy", "man"]
SYNONYMS = {"dog": ("dog", "dogs", "puppy"), "puppy": ("puppy",), "man": ("man",)}
CANDIDATES = [id for id in range(len(audit_data.WORDS)) if id >= len(MARKERS) or id == END]
VOCABULARY = Vocabulary(audit_data.WORDS)
CPU = torch.device("cpu")


@pytest.fixture
def object_vocabulary() -> ObjectVocabulary:
    return ObjectVocabulary(VOCABULARY, ObjectWords.read())


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{n}.png" for n in range(3)]
    for n, path in enumerate(paths):
        audit_data.image(n).save(path)
    return paths


def captioner(name: str) -> Captioner:
    return tiny.sensitive_captioner(name, words=len(audit_data.WORDS))


def with_risk(name: str = "soft-attention", **changed) -> Model:
    return audit_data.model(name, risk=audit_data.some_risk(**changed))


def distribution(captioner: Captioner, features: Features, position: int) -> dict[str, float]:
    """p of every word that may stand at a position of the caption."""
    with torch.no_grad():
        state = captioner.start(features)
        for id in (START, *(VOCABULARY.ids[word] for word in CAPTION[:position])):
            step = captioner.step(torch.tensor([id]), state)
            state = step.state
    exponentials = [math.exp(float(step.logits[0, id])) for id in CANDIDATES]
    pairs = zip(CANDIDATES, exponentials, strict=True)
    return {audit_data.WORDS[id]: value / sum(exponentials) for id, value in pairs}


def lrp_to_features(captioner: Captioner, targets: Targets, composite_name: str = "paper") -> Attributions:
    pixels = tiny.pixels(len(targets.tokens))
    return attribute(captioner, pixels, None, targets, ("lrp",), composite(composite_name), to_pixels=False)


@pytest.mark.parametrize("name", NAMES)
def test_word_features_equal_those_calculated_by_hand(name, object_vocabulary):
    model, pixels = captioner(name), tiny.pixels(1)
    targets = Targets.of_captions([CAPTION], None, VOCABULARY, CPU)
    attributions = lrp_to_features(model, targets, "epsilon-plus")
    values = word_features(model, attributions, targets, [LEMMAS], object_vocabulary)[0]  # (K, F)
    assert values.shape == (8, len(WORD_FEATURES))
    _, relevance = run_lrp(model, pixels, None, targets, composite("epsilon-plus"), 1)
    with torch.no_grad():
        features = model.encode(pixels)
        _, attention = model(features, targets.tokens)
    for i, lemma in enumerate(LEMMAS):
        if lemma is None:
            assert np.isnan(values[i]).all()
            continue
        p = distribution(model, features, i)
        no_image = Features(torch.zeros(1, 1, features.vectors.shape[-1]), (1, 1))
        p_without_image = distribution(model, no_image, i)[CAPTION[i]]
        R = relevance.features[i, 0].double().tolist()
        R_tokens = relevance.tokens[i, 0].double().tolist()
        parts = sum(R), sum(R_tokens[1:]), R_tokens[0] + float(relevance.initial_state[i, 0])
        strength = sum(map(abs, R)) + 1e-6
        alpha = attention.alpha[0, i].double()
        alpha = (alpha if alpha.ndim == 1 else alpha.mean(dim=0)).tolist()
        p_synonyms = sum(p[word] for word in SYNONYMS[lemma])
        expected = {
            "log p": math.log(p[CAPTION[i]] + 1e-6),
            "log p of synonyms": math.log(p_synonyms + 1e-6),
            "p of synonyms": p_synonyms,
            "log p of any object": math.log(sum(p[word] for word in audit_data.OBJECTS) + 1e-6),
            "entropy": -sum(value * math.log(value) for value in p.values() if value),
            "log p without image": max(math.log(p_without_image), math.log(1e-6)),
            "image share": parts[0] / sum(map(abs, parts)),
            "low relevance": reference.quantile(R, 0.05) / strength * len(R),
            "negative relevance": sum(-value for value in R if value < 0) / strength,
            "attention entropy": -sum(value * math.log(value) for value in alpha if value) / math.log(len(alpha)),
            "beta": 0.0 if attention.beta is None else float(attention.beta[0, i]),
            "position": i,
        }
        assert expected.keys() == set(WORD_FEATURES)
        np.testing.assert_allclose(values[i], [expected[name] for name in WORD_FEATURES], rtol=1e-3, atol=1e-4)


def test_position_is_at_most_15(object_vocabulary):
    model = captioner("soft-attention")
    caption = CAPTION[:1] * 17 + ("dog", "dog")
    targets = Targets.of_captions([caption], [(1, 14, 17, 18)], VOCABULARY, CPU)
    attributions = lrp_to_features(model, targets)
    features = word_features(model, attributions, targets, [["dog"] * 4], object_vocabulary)
    assert features[0, :, WORD_FEATURES.index("position")].tolist() == [1, 14, 15, 15]


def test_other_words_and_padding_have_no_features(object_vocabulary):
    model = captioner("soft-attention")
    targets = Targets.of_captions([CAPTION, CAPTION[:2]], [(1, 2, 6), (1,)], VOCABULARY, CPU)
    lemmas = object_vocabulary.target_lemmas(targets)
    assert lemmas == [["dog", None, "puppy"], ["dog"]]
    features = word_features(model, lrp_to_features(model, targets), targets, lemmas, object_vocabulary)
    assert np.isnan(features).all(axis=-1).tolist() == [[False, True, False], [False, True, True]]
    assert not np.isnan(features).any(axis=-1)[[0, 0, 1], [0, 2, 0]].any()


def test_compounds_plurals_and_narrower_words_name_one_object():
    vocabulary = Vocabulary((*MARKERS, "hot", "dog", "dogs", "puppies", "a", "man"))
    objects = ObjectVocabulary(vocabulary, ObjectWords.read())
    assert objects.lemmas(["a", "hot", "dog", "a", "dog", "puppies"]) == [None, None, "hot dog", None, "dog", "puppy"]
    assert {vocabulary.words[id] for id in objects.ids} == {"dog", "dogs", "puppies", "man"}
    assert {vocabulary.words[id] for id in objects.synonyms("dog")} == {"dog", "dogs", "puppies"}
    assert {vocabulary.words[id] for id in objects.synonyms("person")} == {"man"}
    assert objects.synonyms("boat").tolist() == []
    for word, lemma in (("dog", "hot dog"), ("man", "man"), ("a", None)):
        targets = Targets.of_captions([("a", "hot", "dog"), ("a",)], [(2,), ()], vocabulary, CPU, word=word)
        assert objects.target_lemmas(targets) == [[lemma], []]


def test_risk_is_the_logistic_function_of_the_features():
    risk = audit_data.some_risk()
    features = np.random.default_rng(0).normal(size=(4, len(WORD_FEATURES)))
    features[3] = np.nan
    values = risk(features, ["dog", "ball", "unicorn", None])
    for n, prior in enumerate((-1.0, 0.7, -0.2)):
        terms = zip(risk.weights, [*features[n], prior], risk.mean, risk.scale, strict=True)
        odds = risk.bias + sum(w * (f - m) / s for w, f, m, s in terms)
        assert values[n] == pytest.approx(1 / (1 + math.exp(-odds)))
    assert np.isnan(values[3])


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc"])
def test_caption_and_explain_give_the_same_risk(name, images):
    model = with_risk(name)
    captions = list(model.captions(images, risk=True))
    explanations = list(model.explanations(images, methods=["lrp"]))
    risks = [risk for caption in captions for risk in caption.risks if risk is not None]
    assert len({round(risk, 4) for risk in risks}) > 3
    assert all(0 < risk < 1 for risk in risks)
    for caption, explanation in zip(captions, explanations, strict=True):
        assert caption.words == explanation.tokens
        for token, risk, word in zip(caption.words, caption.risks, explanation.words, strict=True):
            assert (risk is not None) == (token in audit_data.OBJECTS)
            assert word.risk == (None if risk is None else pytest.approx(risk, abs=1e-4))


def test_risk_does_not_depend_on_the_batch(images):
    model = with_risk()
    alone, together = ([caption.risks for caption in model.captions(images, batch_size=n, risk=True)] for n in (1, 3))
    for one, other in zip(alone, together, strict=True):
        assert [risk is None for risk in one] == [risk is None for risk in other]
        assert [risk for risk in other if risk] == pytest.approx([risk for risk in one if risk], abs=1e-4)


def test_caption_with_risks_is_the_same_caption(images):
    model = with_risk()
    plain, caption = model.caption(images[0]), next(model.captions([images[0]], risk=True))
    assert replace(caption, risks=None, alpha=plain.alpha, beta=plain.beta).as_dict() == plain.as_dict()
    assert plain.risks is None
    assert plain.text_with_risks == plain.text
    rows = caption.as_dict()["words"]
    assert [row["risk"] for row in rows] == [None if risk is None else round(risk, 6) for risk in caption.risks]
    assert all("risk" not in row for row in plain.as_dict()["words"])
    pairs = zip(caption.words, caption.risks, strict=True)
    expected = [word if risk is None else f"{word} ({round(100 * risk)}%)" for word, risk in pairs]
    assert caption.text_with_risks == " ".join(expected)


def test_one_word_has_the_same_risk_as_in_the_full_caption(images):
    model, options = with_risk(), {"methods": ["lrp"]}
    full = model.explain(images[0], **options)
    i = next(word.position for word in full.words if word.risk is not None)
    alone = model.explain(images[0], position=i + 1, **options)
    assert alone.words[0].risk == pytest.approx(full.words[i].risk, abs=1e-4)
    other = model.explain(images[0], position=i + 1, word="ball", **options).words[0]
    assert 0 < other.risk < 1, "a word that the caption does not have there has a risk, too"
    assert model.explain(images[0], position=i + 1, word="runs", **options).words[0].risk is None


def test_risk_does_not_depend_on_the_rules_of_convolutions(images):
    model = with_risk()
    default, other = (
        [word.risk for word in model.explain(images[0], methods=["lrp"], composite=name).words]
        for name in ("epsilon-plus", "epsilon-gamma-box")
    )
    assert other == [risk if risk is None else pytest.approx(risk, abs=1e-3) for risk in default]


def test_words_with_a_contrast_have_no_risk(images):
    explanation = with_risk().explain(images[0], methods=["lrp"], contrast="red")
    assert {word.risk for word in explanation.words} == {None}


def save_model(folder: Path, risk: Risk | None = None) -> Path:
    audit_data.saved().save(folder / "model")
    if risk is not None:
        risk.save(folder / "model")
    return folder / "model"


def test_model_without_a_risk_explains_and_refuses_risks_in_one_line(tmp_path, images):
    model = load(save_model(tmp_path), "cpu")
    assert model.risk is None
    with pytest.raises(UserError, match=r"has no risk\.json: fit one with `saywhy audit risk --save-risk`"):
        next(model.captions(images, risk=True))
    assert all(word.risk is None for word in model.explain(images[0], methods=["lrp"]).words)


def test_saved_risk_is_that_of_the_loaded_model(tmp_path, images):
    loaded = load(save_model(tmp_path, audit_data.some_risk()), "cpu")
    assert loaded.risk == audit_data.some_risk()
    one, other = (next(model.captions(images, risk=True)).risks for model in (loaded, with_risk()))
    assert one == other


def test_object_table_in_the_model_folder_decides_which_words_have_a_risk(tmp_path, images):
    folder = save_model(tmp_path, audit_data.some_risk())
    (folder / "objects.txt").write_text("[other]\nred (-)\n")
    for caption in load(folder, "cpu").captions(images, risk=True):
        assert [risk is not None for risk in caption.risks] == [word == "red" for word in caption.words]


@pytest.mark.parametrize("table", ["", "# only a comment\n", "[other]\n"])
def test_empty_object_table_is_refused_in_one_line(tmp_path, images, table):
    folder = save_model(tmp_path, audit_data.some_risk())
    (folder / "objects.txt").write_text(table)
    model = load(folder, "cpu")
    with pytest.raises(UserError, match=r"objects\.txt: this table has no object word") as error:
        next(model.captions(images, risk=True))
    assert "\n" not in str(error.value)
    assert {word.risk for word in model.explain(images[0], methods=["lrp"]).words} == {None}


DATA = audit_data.some_risk().as_dict()
DAMAGED = {
    "truncated": json.dumps(DATA)[:100],
    "empty": "",
    "a list": "[]",
    "null": "null",
    "nested too deeply": "[" * 100_000,
    "without weights": json.dumps({name: value for name, value in DATA.items() if name != "weights"}),
    "other features": json.dumps({**DATA, "features": ["luck"]}),
    "too few weights": json.dumps({**DATA, "weights": [1.0]}),
    "an unknown key": json.dumps({**DATA, "more": 1}),
    "weights that are words": json.dumps({**DATA, "weights": ["heavy"] * len(DATA["weights"])}),
    "a bias that is null": json.dumps({**DATA, "bias": None}),
    "object priors in a list": json.dumps({**DATA, "object_priors": [["dog", 1.0]]}),
    "of 0.1, incomplete": json.dumps({"facts": ["log p"]}),
}


@pytest.mark.parametrize("content", DAMAGED)
def test_damaged_risk_is_refused_in_one_line(tmp_path, content, images):
    folder = save_model(tmp_path)
    (folder / "risk.json").write_text(DAMAGED[content])
    model = load(folder, "cpu")
    message = r"risk\.json: (not a risk model of saywhy .*fit it again|malformed JSON)"
    with pytest.raises(UserError, match=message) as error:
        next(model.captions(images, risk=True))
    assert "\n" not in str(error.value)
    assert model.caption(images[0]).words
    assert {word.risk for word in model.explain(images[0], methods=["lrp"]).words} == {None}


def test_missing_file_is_no_risk_and_a_saved_one_is_read(tmp_path):
    assert Risk.read(tmp_path) is None
    audit_data.some_risk().save(tmp_path)
    assert Risk.read(tmp_path) == audit_data.some_risk()


def test_risk_of_0_1_is_upgraded_when_read(tmp_path):
    old_names = ("log p", "log p of its names", "p of its names", "log p of any object", "entropy", "log p unseen")
    old_names += ("picture share", "relevance low", "relevance against", "attention entropy", "beta", "position")
    old = {
        **{name: DATA[name] for name in ("mean", "scale", "weights", "bias")},
        "facts": [*old_names, "habit"],
        "habits": DATA["object_priors"],
        "usual": DATA["default_prior"],
        "about": {"data": "flickr8k", "pictures": 1000, "objects": "2d3a92213d11ce07"},
    }
    (tmp_path / "risk.json").write_text(json.dumps(old))
    about = {"data": "flickr8k", "images": 1000, "object_words": "2d3a92213d11ce07"}
    assert Risk.read(tmp_path) == audit_data.some_risk(about=about)
