"""The hallucination risk: features calculated by hand, equal results by every route, and errors in one line."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import audit_data
import tiny
from reference import hallucination as reference
from saywhy.captioners import Captioner
from saywhy.data.object_words import ObjectWords
from saywhy.data.tokenizer import END, MARKERS, START, Vocabulary
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.explain.passes import Targets
from saywhy.hallucination import risk_model
from saywhy.hallucination.risk_model import (
    LIMIT,
    LOWEST,
    PRIOR_FEATURE,
    WORD_FEATURES,
    ObjectVocabulary,
    Risk,
    word_features,
)
from saywhy.inference.model import SHIPPED, Model, load, locate

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


def distribution(captioner: Captioner, features: Features, words: Sequence[str], temperature: float = 1) -> list[float]:
    """p of every word that may follow the first words of a caption."""
    with torch.no_grad():
        state = captioner.start(features)
        for id in (START, *(VOCABULARY.ids[word] for word in words)):
            step = captioner.step(torch.tensor([id]), state)
            state = step.state
    logits = step.logits[0].tolist()
    exponentials = [math.exp(logits[id] / temperature) if id in CANDIDATES else 0.0 for id in range(len(logits))]
    return [value / sum(exponentials) for value in exponentials]


def p_of(p: list[float], words: Iterable[str]) -> float:
    return sum(p[VOCABULARY.ids[word]] for word in words)


def log(p: float) -> float:
    return max(math.log(p), LOWEST)


def entropy(p: list[float]) -> float:
    return -sum(value * math.log(value) for value in p if value)


def encoded(captioner: Captioner, images: int = 1) -> Features:
    with torch.no_grad():
        return captioner.encode(tiny.pixels(images))


@pytest.mark.parametrize("name", NAMES)
def test_word_features_equal_those_calculated_by_hand(name, object_vocabulary):
    model = captioner(name)
    features, targets = encoded(model), Targets.of_captions([CAPTION], None, VOCABULARY, CPU)
    values = word_features(model, features, targets, [LEMMAS], object_vocabulary, [0.25])[0]  # (K, F)
    assert values.shape == (8, len(WORD_FEATURES))
    with torch.no_grad():
        _, attention = model(features, targets.tokens)
    offsets = np.random.default_rng(0).random(risk_model.MAX_WORDS).tolist()
    samples = reference.sampled_captions(
        lambda ids: distribution(model, features, [audit_data.WORDS[id] for id in ids], risk_model.TEMPERATURE),
        risk_model.SAMPLES,
        offsets,
        END,
    )
    prompted = [distribution(model, features, prompt) for prompt in (("a",), ("the",))]
    for i, lemma in enumerate(LEMMAS):
        if lemma is None:
            assert np.isnan(values[i]).all()
            continue
        p = distribution(model, features, CAPTION[:i])
        no_image = Features(torch.zeros(1, 1, features.vectors.shape[-1]), (1, 1))
        without_image = distribution(model, no_image, CAPTION[:i])
        alpha = attention.alpha[0, i].double()
        alpha = (alpha if alpha.ndim == 1 else alpha.mean(dim=0)).tolist()
        after_prompts = [log(p_of(q, SYNONYMS[lemma])) for q in prompted]
        mentions = [any(audit_data.WORDS[id] in SYNONYMS[lemma] for id in sample) for sample in samples]
        expected = {
            "log p": log(p_of(p, [CAPTION[i]])),
            "log p of synonyms": log(p_of(p, SYNONYMS[lemma])),
            "log p of any object": log(p_of(p, audit_data.OBJECTS)),
            "p of another object": max(p_of(p, [word]) for word in audit_data.OBJECTS if word not in SYNONYMS[lemma]),
            "entropy": entropy(p),
            "log p without image": log(p_of(without_image, [CAPTION[i]])),
            "attention entropy": entropy(alpha) / math.log(len(alpha)),
            "beta": 0.0 if attention.beta is None else float(attention.beta[0, i]),
            "position": i,
            "prompted, highest": max(after_prompts),
            "prompted, mean": sum(after_prompts) / 2,
            "mentions": sum(mentions) / len(mentions),
            "unfamiliarity": math.log(4),
        }
        assert expected.keys() == set(WORD_FEATURES)
        np.testing.assert_allclose(values[i], [expected[name] for name in WORD_FEATURES], rtol=1e-3, atol=1e-4)


def test_unfamiliarity_grows_as_familiarity_falls_and_is_bounded(object_vocabulary):
    model, targets = captioner("soft-attention"), Targets.of_captions([("dog",)] * 4, None, VOCABULARY, CPU)
    features = word_features(model, encoded(model, 4), targets, [["dog"]] * 4, object_vocabulary, [1, 0.1, 0, None])
    values = features[:, 0, WORD_FEATURES.index("unfamiliarity")].tolist()
    assert values == pytest.approx([0, math.log(10), math.log(100), 1])


def test_position_is_at_most_15(object_vocabulary):
    model = captioner("soft-attention")
    caption = CAPTION[:1] * 17 + ("dog", "dog")
    targets = Targets.of_captions([caption], [(1, 14, 17, 18)], VOCABULARY, CPU)
    features = word_features(model, encoded(model), targets, [["dog"] * 4], object_vocabulary)
    assert features[0, :, WORD_FEATURES.index("position")].tolist() == [1, 14, 15, 15]


def test_other_words_and_padding_have_no_features(object_vocabulary):
    model = captioner("soft-attention")
    targets = Targets.of_captions([CAPTION, CAPTION[:2]], [(1, 2, 6), (1,)], VOCABULARY, CPU)
    lemmas = object_vocabulary.target_lemmas(targets)
    assert lemmas == [["dog", None, "puppy"], ["dog"]]
    features = word_features(model, encoded(model, 2), targets, lemmas, object_vocabulary)
    assert np.isnan(features).all(axis=-1).tolist() == [[False, True, False], [False, True, True]]
    assert not np.isnan(features).any(axis=-1)[[0, 0, 1], [0, 2, 0]].any()


def test_prompts_with_unknown_words_are_left_out():
    vocabulary, objects = Vocabulary((*MARKERS, "a", "the", "is", "there")), ObjectWords.read()
    ids = vocabulary.ids
    assert ObjectVocabulary(vocabulary, objects).prompts == [
        [ids["a"]],
        [ids["the"]],
        [ids["there"], ids["is"], ids["a"]],
    ]
    assert ObjectVocabulary(Vocabulary((*MARKERS, "un", "chien")), objects).prompts == [[]]


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
    features[0, 0], features[3] = 50, np.nan
    values = risk(features, ["dog", "ball", "unicorn", None])
    for n, prior in enumerate((-1.0, 0.7, -0.2)):
        terms = zip(risk.weights, [*features[n], prior], risk.mean, risk.scale, strict=True)
        odds = risk.bias + sum(w * min(max((f - m) / s, -LIMIT), LIMIT) for w, f, m, s in terms)
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


@pytest.mark.parametrize("format", [None, 1, 2, 4])
def test_risk_of_another_format_is_refused_in_one_line(tmp_path, format):
    (tmp_path / "risk.json").write_text(json.dumps({**DATA, "format": format}))
    with pytest.raises(UserError, match=r"its format is that of another version of saywhy, not 3\); delete it or fit"):
        Risk.read(tmp_path)


def test_no_prior_makes_a_word_safe_by_itself():
    """In the shipped risk, the safest object is risky if all else is at its worst, and the other way round."""
    risk = Risk.read(locate(SHIPPED))
    *weights, _ = risk.weights
    worst = np.array(risk.mean[:-1]) + 2 * np.sign(weights) * np.array(risk.scale[:-1])
    priors = risk.object_priors
    assert risk(worst[None], [min(priors, key=priors.get)])[0] > 0.75
    best = np.array(risk.mean[:-1]) - 2 * np.sign(weights) * np.array(risk.scale[:-1])
    assert risk(best[None], [max(priors, key=priors.get)])[0] < 0.25
    assert risk.weights[-1] >= 0
    assert risk.features[-1] == PRIOR_FEATURE
