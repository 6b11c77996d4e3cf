"""The risk of a word: its facts by hand, the same by every way, and what is said where there is none."""

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
from saywhy.data.vocabulary import END, MARKERS, START, Vocabulary
from saywhy.encoders.features import Features
from saywhy.errors import UserError
from saywhy.explain.composites import composite
from saywhy.explain.methods import explain
from saywhy.explain.passes import run_relevance
from saywhy.explain.request import Asked, question
from saywhy.hallucination.risk import WORD_FEATURES, Names, Risk, facts
from saywhy.inference.model import Model, load

NAMES = ("soft-attention", "ada-lstm", "mh-fc", "coca")
CAPTION = ("the", "dog", "runs", "with", "a", "red", "puppy", "man")
LEMMAS = [None, "dog", None, None, None, None, "puppy", "man"]
ATTESTING = {"dog": ("dog", "dogs", "puppy"), "puppy": ("puppy",), "man": ("man",)}
SPEAKABLE = [number for number in range(len(audit_data.WORDS)) if number >= len(MARKERS) or number == END]
NUMBERS = Vocabulary(audit_data.WORDS).numbers


@pytest.fixture
def names() -> Names:
    return Names(Vocabulary(audit_data.WORDS), ObjectWords.read())


@pytest.fixture
def images(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{n}.png" for n in range(3)]
    for n, path in enumerate(paths):
        audit_data.image(n).save(path)
    return paths


def captioner(name: str) -> Captioner:
    return tiny.opinionated(name, words=len(audit_data.WORDS))


def with_risk(name: str = "soft-attention", **changed) -> Model:
    return audit_data.model(name, risk=audit_data.some_risk(**changed))


def distribution(captioner: Captioner, features: Features, place: int) -> dict[str, float]:
    """p of every word that may stand at a place of the caption."""
    with torch.no_grad():
        state = captioner.start(features)
        for number in (START, *(NUMBERS[word] for word in CAPTION[:place])):
            step = captioner.step(torch.tensor([number]), state)
            state = step.state
    odds = [math.exp(float(step.logits[0, number])) for number in SPEAKABLE]
    return {audit_data.WORDS[number]: each / sum(odds) for number, each in zip(SPEAKABLE, odds, strict=True)}


@pytest.mark.parametrize("name", NAMES)
def test_the_facts_of_a_word_are_those_calculated_by_hand(name, names):
    model = captioner(name)
    asking = question(
        [Asked(CAPTION, tuple(range(8)), CAPTION)], Vocabulary(audit_data.WORDS), None, torch.device("cpu")
    )
    pixels, rules = tiny.pixels(1), composite("epsilon-plus")
    told = explain(model, pixels, None, asking, ("lrp",), rules, 1, to_pixels=False)
    found = facts(model, told, asking, [LEMMAS], names)[0]  # (K, F)
    assert found.shape == (8, len(WORD_FEATURES))
    _, relevances = run_relevance(model, pixels, None, asking, rules, 1)
    with torch.no_grad():
        features = model.encode(pixels)
        _, attention = model(features, asking.said)
    for place, lemma in enumerate(LEMMAS):
        if lemma is None:
            assert np.isnan(found[place]).all()
            continue
        p = distribution(model, features, place)
        nothing = Features(torch.zeros(1, 1, features.vectors.shape[-1]), (1, 1))
        unseen = distribution(model, nothing, place)[CAPTION[place]]
        R = relevances.places[place, 0].double().tolist()
        said = relevances.said[place, 0].double().tolist()
        parts = sum(R), sum(said[1:]), said[0] + float(relevances.start[place, 0])
        strength = sum(map(abs, R)) + 1e-6
        alpha = attention.alpha[0, place].double()
        alpha = (alpha if alpha.ndim == 1 else alpha.mean(dim=0)).tolist()
        named = sum(p[word] for word in ATTESTING[lemma])
        slow = {
            "log p": math.log(p[CAPTION[place]] + 1e-6),
            "log p of its names": math.log(named + 1e-6),
            "p of its names": named,
            "log p of any object": math.log(sum(p[word] for word in audit_data.OBJECTS) + 1e-6),
            "entropy": -sum(each * math.log(each) for each in p.values() if each),
            "log p unseen": max(math.log(unseen), math.log(1e-6)),
            "image share": parts[0] / sum(map(abs, parts)),
            "relevance low": reference.quantile(R, 0.05) / strength * len(R),
            "relevance against": sum(-each for each in R if each < 0) / strength,
            "attention entropy": -sum(each * math.log(each) for each in alpha if each) / math.log(len(alpha)),
            "beta": 0.0 if attention.beta is None else float(attention.beta[0, place]),
            "position": place,
        }
        assert slow.keys() == set(WORD_FEATURES)
        np.testing.assert_allclose(found[place], [slow[each] for each in WORD_FEATURES], rtol=1e-3, atol=1e-4)


def test_a_word_far_back_counts_as_the_fifteenth(names):
    model = captioner("soft-attention")
    long = CAPTION[:1] * 17 + ("dog", "dog")
    asking = question([Asked(long, (1, 14, 17, 18), long[:4])], Vocabulary(audit_data.WORDS), None, torch.device("cpu"))
    told = explain(model, tiny.pixels(1), None, asking, ("lrp",), composite("paper"), 1, to_pixels=False)
    found = facts(model, told, asking, [["dog"] * 4], names)
    assert found[0, :, WORD_FEATURES.index("position")].tolist() == [1, 14, 15, 15]


def test_words_that_name_no_thing_and_rows_that_are_filled_up_have_no_facts(names):
    model = captioner("soft-attention")
    asked = [Asked(CAPTION, (1, 2, 6), ("dog", "runs", "puppy")), Asked(CAPTION[:2], (1,), ("dog",))]
    asking = question(asked, Vocabulary(audit_data.WORDS), None, torch.device("cpu"))
    told = explain(model, tiny.pixels(2), None, asking, ("lrp",), composite("paper"), 1, to_pixels=False)
    found = facts(model, told, asking, [["dog", None, "puppy"], ["dog"]], names)
    assert np.isnan(found).all(axis=-1).tolist() == [[False, True, False], [False, True, True]]
    assert not np.isnan(found).any(axis=-1)[[0, 0, 1], [0, 2, 0]].any()


def test_names_of_several_words_and_plurals_name_one_thing():
    vocabulary = Vocabulary((*MARKERS, "hot", "dog", "dogs", "puppies", "a", "man"))
    names = Names(vocabulary, ObjectWords.read())
    assert names.lemmas(["a", "hot", "dog", "a", "dog", "puppies"]) == [None, None, "hot dog", None, "dog", "puppy"]
    assert {vocabulary.words[n] for n in names.every} == {"dog", "dogs", "puppies", "man"}
    assert {vocabulary.words[n] for n in names.attesting("dog")} == {"dog", "dogs", "puppies"}
    assert {vocabulary.words[n] for n in names.attesting("person")} == {"man"}
    assert names.attesting("boat").tolist() == []
    asked = Asked(("a", "hot", "dog"), (2, 2), ("dog", "man"))
    assert names.asked_about(asked) == ["hot dog", "man"]


def test_a_risk_is_the_logistic_function_of_what_is_known():
    own = audit_data.some_risk()
    told = np.random.default_rng(0).normal(size=(4, len(WORD_FEATURES)))
    told[3] = np.nan
    found = own(told, ["dog", "ball", "never met", None])
    for n, habit in enumerate((-1.0, 0.7, -0.2)):
        parts = zip(own.weights, [*told[n], habit], own.mean, own.scale, strict=True)
        odds = own.bias + sum(w * (f - m) / s for w, f, m, s in parts)
        assert found[n] == pytest.approx(1 / (1 + math.exp(-odds)))
    assert np.isnan(found[3])


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc"])
def test_caption_and_explain_give_the_same_risk(name, images):
    model = with_risk(name)
    said = list(model.captions(images, risk=True))
    why = list(model.explanations(images, methods=["lrp"]))
    risks = [risk for caption in said for risk in caption.risks if risk is not None]
    assert len({round(each, 4) for each in risks}) > 3
    assert all(0 < each < 1 for each in risks)
    for caption, explanation in zip(said, why, strict=True):
        assert caption.words == explanation.tokens
        for word, risk, other in zip(caption.words, caption.risks, explanation.words, strict=True):
            assert (risk is not None) == (word in audit_data.OBJECTS)
            assert other.risk == (None if risk is None else pytest.approx(risk, abs=1e-4))


def test_the_batch_changes_no_risk(images):
    model = with_risk()
    alone, together = ([each.risks for each in model.captions(images, batch=n, risk=True)] for n in (1, 3))
    for one, other in zip(alone, together, strict=True):
        assert [each is None for each in one] == [each is None for each in other]
        assert [each for each in other if each] == pytest.approx([each for each in one if each], abs=1e-4)


def test_a_caption_is_the_same_with_its_risks_and_tells_them(images):
    model = with_risk()
    plain, told = model.caption(images[0]), next(model.captions([images[0]], risk=True))
    assert replace(told, risks=None, alpha=plain.alpha, beta=plain.beta).as_dict() == plain.as_dict()
    assert plain.risks is None
    assert plain.text_with_risks == plain.text
    rows = told.as_dict()["words"]
    assert [row["risk"] for row in rows] == [None if each is None else round(each, 6) for each in told.risks]
    assert all("risk" not in row for row in plain.as_dict()["words"])
    pairs = zip(told.words, told.risks, strict=True)
    wanted = [word if risk is None else f"{word} ({round(100 * risk)}%)" for word, risk in pairs]
    assert told.text_with_risks == " ".join(wanted)


def test_the_risk_of_a_word_is_that_of_the_same_word_alone_and_of_one_that_was_not_said(images):
    model = with_risk()
    whole = model.explain(images[0], methods=["lrp"])
    place = next(each.position for each in whole.words if each.risk is not None)
    alone = model.explain(images[0], methods=["lrp"], at=place + 1)
    assert alone.words[0].risk == pytest.approx(whole.words[place].risk, abs=1e-4)
    other = model.explain(images[0], methods=["lrp"], at=place + 1, word="ball").words[0]
    assert 0 < other.risk < 1
    assert model.explain(images[0], methods=["lrp"], at=place + 1, word="runs").words[0].risk is None


def test_how_likely_a_word_is_made_up_does_not_depend_on_the_rules_of_the_encoder(images):
    model = with_risk()
    usual, other = (
        [each.risk for each in model.explain(images[0], methods=["lrp"], composite=rules).words]
        for rules in ("epsilon-plus", "epsilon-gamma-box")
    )
    assert other == [each if each is None else pytest.approx(each, abs=1e-3) for each in usual]


def test_words_held_against_another_have_no_risk(images):
    why = with_risk().explain(images[0], methods=["lrp"], instead="red")
    assert {word.risk for word in why.words} == {None}


def test_a_model_without_a_risk_explains_and_says_in_one_line_that_it_has_none(tmp_path, images):
    audit_data.saved().save(tmp_path / "model")
    model = load(tmp_path / "model", "cpu")
    assert model.risk is None
    with pytest.raises(UserError, match=r"has no risk\.json: `saywhy audit risk --save-risk` fits one"):
        next(model.captions(images, risk=True))
    assert all(word.risk is None for word in model.explain(images[0], methods=["lrp"]).words)


def test_a_saved_risk_is_that_of_the_model_loaded(tmp_path, images):
    audit_data.saved().save(tmp_path / "model")
    audit_data.some_risk().save(tmp_path / "model")
    loaded = load(tmp_path / "model", "cpu")
    assert loaded.risk == audit_data.some_risk()
    one, other = (next(each.captions(images, risk=True)).risks for each in (loaded, with_risk()))
    assert one == other


def test_the_table_beside_a_model_says_which_of_its_words_have_a_risk(tmp_path, images):
    audit_data.saved().save(tmp_path / "model")
    audit_data.some_risk().save(tmp_path / "model")
    (tmp_path / "model" / "objects.txt").write_text("[other]\nred (-)\n")
    said = list(load(tmp_path / "model", "cpu").captions(images, risk=True))
    for caption in said:
        assert [risk is not None for risk in caption.risks] == [word == "red" for word in caption.words]


WHOLE = audit_data.some_risk().as_dict()
DAMAGED = {
    "cut short": json.dumps(WHOLE)[:100],
    "empty": "",
    "a list": "[]",
    "nothing": "null",
    "without weights": json.dumps({name: value for name, value in WHOLE.items() if name != "weights"}),
    "other facts": json.dumps({**WHOLE, "facts": ["luck"]}),
    "too few weights": json.dumps({**WHOLE, "weights": [1.0]}),
    "something more": json.dumps({**WHOLE, "more": 1}),
    "weights that are words": json.dumps({**WHOLE, "weights": ["heavy"] * len(WHOLE["weights"])}),
    "a bias that is none": json.dumps({**WHOLE, "bias": None}),
    "object_priors in a list": json.dumps({**WHOLE, "object_priors": [["dog", 1.0]]}),
}


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_risk_is_told_in_one_line(tmp_path, how, images):
    audit_data.saved().save(tmp_path / "model")
    (tmp_path / "model" / "risk.json").write_text(DAMAGED[how])
    model = load(tmp_path / "model", "cpu")
    with pytest.raises(UserError, match=r"risk\.json: not what `saywhy audit risk` wrote .*fit it again") as told:
        next(model.captions(images, risk=True))
    assert "\n" not in str(told.value)
    assert model.caption(images[0]).words, "it still says what it sees"
    assert {word.risk for word in model.explain(images[0], methods=["lrp"]).words} == {None}


def test_no_file_is_no_risk_and_a_whole_one_is_read(tmp_path):
    assert Risk.read(tmp_path) is None
    audit_data.some_risk().save(tmp_path)
    assert Risk.read(tmp_path) == audit_data.some_risk()
