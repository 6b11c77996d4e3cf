"""The risk audit fits on one split, tests on another, and refuses a risk that has seen the test."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import audit_data
from reference import audits as reference
from saywhy.audits.context import AuditContext, NotApplicable
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.risk import RiskAudit
from saywhy.audits.risk_words import ObjectWordFeatures, fit
from saywhy.hallucination import fitting
from saywhy.hallucination.labels import is_supported
from saywhy.hallucination.risk_model import WORD_FEATURES

run = RiskAudit().run
pairs = partial(zip, strict=True)


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
    assert body["brier"]["value"] == pytest.approx(reference.mean([(p - y) ** 2 for p, y in pairs(predicted, made_up)]))
    surprise = [1 - math.exp(log_p) for log_p in words.features[:, 0].tolist()]
    assert body["probability"]["auc"]["value"] == pytest.approx(reference.auc(surprise, made_up))
    assert body["probability"]["ece"] == pytest.approx(reference.expected_calibration_error(surprise, made_up, 10))
    gain = reference.auc(predicted, made_up) - reference.auc(surprise, made_up)
    assert body["auc_over_probability"]["value"] == pytest.approx(gain)
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


def other_data(folder: Path) -> Path:
    """A data set of the same images whose references say something else."""
    scenes = {name: (split, ["a red puppy", "a car"], []) for name, (split, _, _) in audit_data.SCENES.items()}
    return audit_data.write_data(folder, scenes)


@pytest.mark.usefixtures("_few_words")
def test_fitted_on_two_data_sets_it_is_also_tested_without_each(soft, data, tmp_path):
    def dev(folder: Path) -> AuditContext:
        return audit_data.context(folder, tmp_path / "cache", model=soft.context.model, split="dev")

    contexts = dev(data), dev(other_data(tmp_path / "other"))
    body = run(replace(soft.context, fit_contexts=contexts), soft)
    assert body["fitted_on"]["data"] == ["data", "other"]
    assert body["fitted_on"]["words"] == sum(fit([context]).about["words"] for context in contexts)
    assert body["fitted_risk"] == fit(contexts).as_dict()
    words = ObjectWordFeatures.compute(soft.context)
    for row, name, left in zip(body["without_a_data_set"], ("data", "other"), contexts[::-1], strict=True):
        assert (row["left_out"], row["fitted_on"]["data"]) == (name, [left.data.name])
        predicted = fit([left])(words.features, words.lemmas.tolist()).tolist()
        expected = reference.auc(predicted, words.made_up(soft.context).tolist())
        assert row["auc"]["value"] == pytest.approx(expected)
    assert not run(replace(soft.context, fit_contexts=contexts[:1]), soft)["without_a_data_set"]


@pytest.mark.usefixtures("_few_words")
def test_a_risk_of_two_data_sets_is_not_tested_on_the_split_of_either(soft):
    for name in ("data", "other"):
        evidence = with_risk(soft, about={"data": ["data", "other"], "split": "test"})
        data = replace(evidence.context.data, name=name)
        with pytest.raises(NotApplicable, match=rf"was fitted on {name} test"):
            run(replace(evidence.context, data=data), evidence)


def test_a_box_makes_a_word_true_that_no_reference_names(soft, tmp_path):
    scenes = {"grey.png": ("test", ["nothing"], [("two red cars", "vehicles", [[1, 1, 30, 30]])])}
    context = audit_data.context(audit_data.write_data(tmp_path / "data", scenes), tmp_path)
    words = ObjectWordFeatures(
        ["grey.png"] * 4,
        np.array(["car", "vehicle", "taxi", "dog"]),
        np.zeros((4, len(WORD_FEATURES))),
        np.array(["car", "", "car", "dog"]),
    )
    assert words.made_up(context).tolist() == [False, False, True, True]
    assert words.made_up(replace(context, phrases=None)).tolist() == [True] * 4
    rules = words.made_up_by_other_rules(context)
    assert [made_up.tolist() for _, made_up in rules.values()] == [[True] * 4]
    assert words.made_up_by_other_rules(replace(context, phrases=None)) == {}


def test_the_categories_of_coco_boxes_count_and_chair_is_a_second_rule(soft, tmp_path):
    folder = audit_data.write_data(tmp_path / "data", {"grey.png": ("test", ["a lady"], [])}, boxes=False)
    coco = {
        "images": [{"id": 1, "file_name": "grey.png", "width": 90, "height": 70}],
        "categories": [{"id": 1, "name": "person", "supercategory": "person"}, {"id": 2, "name": "tv"}],
        "annotations": [
            {"image_id": 1, "category_id": number, "bbox": [1, 1, 20, 20], "id": number} for number in (1, 2)
        ],
    }
    (folder / "instances_val2017.json").write_text(json.dumps(coco))
    context = audit_data.context(folder, tmp_path)
    words = ObjectWordFeatures(
        ["grey.png"] * 5,
        np.array(["person", "woman", "man", "television", "lamp"]),
        np.zeros((5, len(WORD_FEATURES))),
        np.array(["person", "person", "person", "tv", ""]),
    )
    assert words.made_up(context).tolist() == [False, False, True, False, True]
    rules = words.made_up_by_other_rules(context)
    assert rules["references"][1].tolist() == [False, False, True, True, True]
    covered, made_up = rules["CHAIR, COCO's 80 objects"]
    assert covered.tolist() == [True, True, True, True, False]
    assert made_up[covered].tolist() == [False] * 4, "CHAIR takes a man for a person"
