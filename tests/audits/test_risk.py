"""The risk audit fits on one split, tests on another, and refuses a risk that has seen the test."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

import audit_data
from reference import audits as reference
from saywhy.audits.context import NotApplicable
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.risk import RiskAudit
from saywhy.audits.risk_words import ObjectWordFeatures, fit
from saywhy.hallucination import fitting
from saywhy.hallucination.labels import is_supported
from saywhy.hallucination.word_features import WORD_FEATURES

run = RiskAudit().run


@pytest.fixture
def _few_words(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn", reason='fitting a risk needs pip install "saywhy[audit]"')
    monkeypatch.setattr(fitting, "MIN_WORDS", 2)


@pytest.mark.usefixtures("_few_words")
def test_the_tested_split_does_not_enter_the_fit(soft, data, tmp_path):
    dev = audit_data.context(data, soft.context.cache, model=soft.context.model, split="dev")
    context = replace(soft.context, fit_contexts=(dev,))
    body = run(context, soft)
    images = tuple(replace(image, captions=("a boat", "a man")) for image in context.data.images)
    changed = run(replace(context, data=replace(context.data, images=images)), soft)
    assert changed["made_up"] != body["made_up"]
    assert changed["fitted_risk"] == body["fitted_risk"]
    assert body["fitted_on"]["split"] == "dev"
    folder = shutil.copytree(data, tmp_path / "data")
    for image in context.data.images:
        (folder / image.name).write_text("not an image")
    alone = fit([audit_data.context(folder, tmp_path / "cache", model=context.model, split="dev")])
    assert alone.as_dict() == body["fitted_risk"]


@pytest.mark.usefixtures("_few_words")
def test_it_is_fitted_to_the_features_and_labels_of_the_other_split(soft, data, tmp_path):
    dev = audit_data.context(data, tmp_path, model=soft.context.model, split="dev")
    risk = fit([dev])
    captions = [(image.name, soft.context.model.caption(image.path).words) for image in dev.data.images]
    objects = [
        (name, audit_data.OBJECTS[word]) for name, words in captions for word in words if word in audit_data.OBJECTS
    ]
    names, lemmas = zip(*objects, strict=True)
    true = is_supported(dev.object_words, dev.references, names, lemmas)
    assert (risk.about["words"], risk.about["made_up"]) == (len(objects), int((~true).sum()))
    assert risk.about["images"] == 4
    assert risk.object_priors.keys() == {*lemmas}
    features = ObjectWordFeatures.compute(replace(dev, cache=tmp_path / "batched", batch_size=4)).features
    assert np.isfinite(features).all()
    constant = features.std(axis=0) == 0
    np.testing.assert_allclose(risk.mean[:-1], features.mean(axis=0), atol=1e-3)
    np.testing.assert_allclose(risk.scale[:-1], np.where(constant, 1, features.std(axis=0)), rtol=1e-2, atol=1e-3)


def test_too_few_words_to_fit_make_it_not_applicable(soft, data):
    pytest.importorskip("sklearn")
    dev = audit_data.context(data, soft.context.cache, model=soft.context.model, split="dev")
    with pytest.raises(NotApplicable, match=r"data dev: \d+ made-up and \d+ true object words are too few"):
        run(replace(soft.context, fit_contexts=(dev,)), soft)


def with_risk(evidence: EvidenceSet, **changes) -> EvidenceSet:
    """The same evidence of a model that has a risk."""
    model = audit_data.model(risk=audit_data.some_risk(**changes))
    return EvidenceSet(replace(evidence.context, model=model))


def test_without_a_split_to_fit_on_the_models_own_risk_is_tested(soft):
    evidence = with_risk(soft)
    body, risk = run(evidence.context, evidence), audit_data.some_risk()
    words = ObjectWordFeatures.compute(evidence.context)
    made_up = words.made_up(evidence.context).tolist()
    predicted = risk(words.features, words.lemmas.tolist()).tolist()
    assert (body["words"], body["made_up"]) == (10, 2)
    assert body["fitted_risk"] == risk.as_dict()
    assert body["auc"]["value"] == pytest.approx(reference.auc(predicted, made_up))
    assert body["ece"] == pytest.approx(reference.expected_calibration_error(predicted, made_up, 10))
    assert body["weights"] == dict(zip(risk.features, risk.weights, strict=True))
    for column, name in enumerate(WORD_FEATURES):
        value = reference.auc(words.features[:, column].tolist(), made_up)
        assert body["single_feature_auc"][name]["value"] == pytest.approx(max(value, 1 - value))


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"data": "data", "split": "test"}, "was fitted on data test; give another --split or --fit"),
        ({"data": "data", "split": "dev", "object_words": "other"}, "fitted with another table of object words"),
    ],
)
def test_a_risk_that_was_fitted_on_the_test_or_with_other_object_words_is_not_applicable(soft, about, reason):
    evidence = with_risk(soft, about=about)
    with pytest.raises(NotApplicable, match=reason):
        run(evidence.context, evidence)


def test_a_model_without_a_risk_needs_another_split(soft):
    with pytest.raises(NotApplicable, match=r"has no risk\.json.*give --fit SPLIT"):
        run(soft.context, soft)
