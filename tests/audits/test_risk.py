"""A risk is fitted to what was planted, is calibrated, and knows nothing of what it is tested on."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import audit_data
from reference import audits as reference
from saywhy.audits import risk as audit_of_risk
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.results import NotApplicable
from saywhy.audits.risk import PRIOR, fit, of_cases
from saywhy.audits.risk import risk as audit
from saywhy.audits.statistics import auc, calibration
from saywhy.hallucination.labels import is_supported
from saywhy.hallucination.risk import PRIOR_FEATURE, WORD_FEATURES, Risk

pytest.importorskip("sklearn", reason='fitting a risk needs pip install "saywhy[audit]"')


@dataclass
class Planted:
    """Object words of which all is known, five an image."""

    facts: np.ndarray
    lemmas: np.ndarray
    made_up: np.ndarray

    @property
    def images(self) -> list[str]:
        return [f"{n // 5}.jpg" for n in range(len(self.lemmas))]

    def fit(self, monkeypatch: pytest.MonkeyPatch, bench: AuditContext) -> Risk:
        monkeypatch.setattr(audit_of_risk, "_told", lambda _: (self.images, self.lemmas, self.facts))
        monkeypatch.setattr(audit_of_risk, "is_supported", lambda *_: ~self.made_up)
        return fit(bench)


RULE = np.zeros(len(WORD_FEATURES))
RULE[0], RULE[4] = 1.5, -1.0


def planted(seed: int, words: int = 4000) -> Planted:
    """Facts 0 and 4 decide, by σ(−1 + 1.5 f_0 − f_4 / 2) where f_4 is twice as wide as the others."""
    random = np.random.default_rng(seed)
    scaled = random.normal(size=(words, len(WORD_FEATURES)))
    odds = -1 + scaled @ RULE
    facts = 3 + scaled * np.where(np.arange(len(WORD_FEATURES)) == 4, 2, 1)
    lemmas = random.choice(["dog", "man", "car"], words)
    return Planted(facts, lemmas, random.random(words) < 1 / (1 + np.exp(-odds)))


def test_a_planted_rule_is_recovered_and_calibrated(monkeypatch, bench):
    found = planted(0).fit(monkeypatch, bench)
    assert found.facts == (*WORD_FEATURES, PRIOR_FEATURE)
    np.testing.assert_allclose(found.weights[:-1], RULE, atol=0.15)
    np.testing.assert_allclose(found.mean[:-1], 3, atol=0.15)
    np.testing.assert_allclose(found.scale[4], 2, atol=0.1)
    unseen = planted(1)
    predicted = found(unseen.facts, unseen.lemmas.tolist())
    assert calibration(predicted, unseen.made_up).ece < 0.03
    best = auc((unseen.facts - 3) / np.where(np.arange(len(WORD_FEATURES)) == 4, 2, 1) @ RULE, unseen.made_up)
    assert best > 0.8
    assert auc(predicted, unseen.made_up) > best - 0.01
    assert found.about["cross_validated"]["auc"] == pytest.approx(best, abs=0.02)
    assert found.about["cross_validated"]["ece"] < 0.03


def test_the_risk_of_a_word_is_the_logistic_function_of_its_facts(monkeypatch, bench):
    words = planted(0, 300)
    found = words.fit(monkeypatch, bench)
    for n in range(5):
        known = [*words.facts[n], found.object_priors[words.lemmas[n]]]
        parts = zip(found.weights, known, found.mean, found.scale, strict=True)
        odds = found.bias + sum(w * (f - m) / s for w, f, m, s in parts)
        assert found(words.facts[n : n + 1], [words.lemmas[n]])[0] == pytest.approx(1 / (1 + np.exp(-odds)))


def only_habits(seed: int, shares: np.ndarray, times: int = 6) -> Planted:
    """Things said so many times each, made up with these shares, of which facts tell nothing."""
    random = np.random.default_rng(seed)
    which = random.permutation(np.repeat(np.arange(len(shares)), times))
    lemmas = np.array([f"thing{n}" for n in which])
    return Planted(np.zeros((len(which), len(WORD_FEATURES))), lemmas, random.random(len(which)) < shares[which])


@pytest.mark.parametrize("seed", range(3))
def test_a_habit_of_pure_chance_tells_nothing_of_other_images(monkeypatch, bench, seed):
    words = only_habits(seed, np.full(300, 0.5))
    found = words.fit(monkeypatch, bench)
    assert found.about["cross_validated"]["auc"] == pytest.approx(0.5, abs=0.06)
    told = np.array([found.object_priors[lemma] for lemma in words.lemmas])
    assert auc(told, words.made_up) > 0.65, "object_priors counted on the words themselves would have told"
    assert abs(found.weights[-1]) < 0.25


def test_habits_that_things_have_are_learnt(monkeypatch, bench):
    shares = np.where(np.arange(100) % 2, 0.9, 0.1)
    found = only_habits(0, shares, times=20).fit(monkeypatch, bench)
    assert found.about["cross_validated"]["auc"] > 0.85
    assert found.weights[-1] > 1
    risks = found(np.zeros((2, len(WORD_FEATURES))), ["thing0", "thing1"])
    assert risks[0] < 0.2
    assert risks[1] > 0.8


def test_a_habit_is_counted_as_if_every_thing_had_been_met_some_times_before(monkeypatch, bench):
    words = planted(0, 200)
    words.lemmas[:3] = "cat"
    words.made_up[:3] = True
    found = words.fit(monkeypatch, bench)
    usual = (words.made_up.sum() + 1) / (200 + 2)
    share = (3 + PRIOR * usual) / (3 + PRIOR)
    assert found.object_priors["cat"] == pytest.approx(np.log(share / (1 - share)), abs=1e-4)
    assert found.usual == pytest.approx(np.log(usual / (1 - usual)), abs=1e-4)
    never = found(words.facts[:1], ["never met"]), found(words.facts[:1], ["cat"])
    habit = found.weights[-1] * (found.usual - found.object_priors["cat"]) / found.scale[-1]
    np.testing.assert_allclose(np.log(never[0] / (1 - never[0])) - np.log(never[1] / (1 - never[1])), habit)


@pytest.mark.parametrize(("made_up", "true"), [(19, 200), (200, 19), (0, 0)])
def test_too_few_words_of_a_kind_are_left_out_with_a_reason(monkeypatch, bench, made_up, true):
    words = planted(0, made_up + true)
    words.made_up = np.arange(made_up + true) < made_up
    with pytest.raises(NotApplicable, match=f"test: {made_up} made-up and {true} true object words are too few"):
        words.fit(monkeypatch, bench)


def test_words_of_both_kinds_in_few_images_are_fitted_or_left_out(monkeypatch, bench):
    words = planted(0, 40)
    words.made_up = np.arange(40) < 20
    monkeypatch.setattr(Planted, "images", ["one.jpg"] * 20 + ["other.jpg"] * 20)
    try:
        found = words.fit(monkeypatch, bench)
    except NotApplicable:
        return
    assert np.isfinite(found.weights).all()


def test_a_risk_saved_and_read_gives_the_same(monkeypatch, bench, tmp_path):
    words = planted(0, 300)
    found = words.fit(monkeypatch, bench)
    found.save(tmp_path)
    again = Risk.read(tmp_path)
    assert again == found
    np.testing.assert_array_equal(again(words.facts, words.lemmas.tolist()), found(words.facts, words.lemmas.tolist()))
    assert again.about["words"] == 300
    assert again.about["made_up"] == words.made_up.sum()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_of_risk, "FEWEST", 2)


def fitting(bench: AuditContext, data: Path) -> AuditContext:
    """The bench that this one's risk is fitted on: the dev split."""
    return audit_data.bench(data, bench.cache, model=bench.model, split="dev")


@pytest.mark.usefixtures("few")
def test_the_split_that_is_tested_never_enters_the_fit(soft, data, tmp_path):
    bench = replace(soft.bench, fitting=fitting(soft.bench, data))
    told = audit(bench, soft)
    others = tuple(replace(each, captions=("a boat", "a man")) for each in bench.data.images)
    elsewhere = replace(bench, data=replace(bench.data, images=others))
    again = audit(elsewhere, soft)
    assert again["made_up"] != told["made_up"]
    assert again["fitted"] == told["fitted"]
    assert told["fitted_on"]["split"] == "dev"
    folder = shutil.copytree(data, tmp_path / "data")
    for image in bench.data.images:
        (folder / image.name).write_text("gone")
    alone = fit(audit_data.bench(folder, tmp_path / "cache", model=bench.model, split="dev"))
    assert alone.as_dict() == {**told["fitted"], "facts": tuple(told["fitted"]["facts"])}


@pytest.mark.usefixtures("few")
def test_it_is_fitted_to_the_facts_and_truths_of_the_other_split(soft, data, tmp_path):
    dev = audit_data.bench(data, tmp_path, model=soft.bench.model, split="dev")
    found = fit(dev)
    words = [(each.name, w) for each in dev.data.images for w in soft.bench.model.caption(each.path).words]
    said = [(name, audit_data.OBJECTS[word]) for name, word in words if word in audit_data.OBJECTS]
    true = is_supported(dev.objects, dev.references, [name for name, _ in said], [lemma for _, lemma in said])
    assert (found.about["words"], found.about["made_up"]) == (len(said), int((~true).sum()))
    assert found.about["images"] == 4
    assert found.object_priors.keys() == {lemma for _, lemma in said}
    facts = of_cases(EvidenceSet(dev))[2]
    constant = facts.std(axis=0) == 0
    np.testing.assert_allclose(found.mean[:-1], facts.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(found.scale[:-1], np.where(constant, 1, facts.std(axis=0)), rtol=1e-2, atol=1e-3)


def test_the_models_own_risk_is_tested_where_none_is_to_be_fitted(soft):
    own = audit_data.some_risk()
    soft.bench.model.risk = own
    try:
        told = audit(soft.bench, soft)
    finally:
        soft.bench.model.risk = None
    images, lemmas, facts = of_cases(soft)
    made_up = ~is_supported(soft.bench.objects, soft.bench.references, images, lemmas)
    predicted = own(facts, lemmas.tolist())
    assert told["words"] == 10
    assert told["made_up"] == 2
    assert told["fitted"] == own.as_dict()
    assert told["auc"]["value"] == pytest.approx(reference.auc(predicted.tolist(), made_up.tolist()))
    assert told["ece"] == pytest.approx(reference.expected_calibration_error(predicted.tolist(), made_up.tolist(), 10))
    assert told["weights"] == dict(zip(own.facts, own.weights, strict=True))
    for column, name in enumerate(WORD_FEATURES):
        one_way = reference.auc(facts[:, column].tolist(), made_up.tolist())
        assert told["alone"][name]["value"] == pytest.approx(max(one_way, 1 - one_way))


def test_a_model_without_a_risk_and_data_without_another_split_are_left_out_with_a_reason(soft):
    with pytest.raises(NotApplicable, match=r"has no risk\.json.*give --fit SPLIT"):
        audit(soft.bench, soft)
