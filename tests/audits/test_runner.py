"""Whole audits: they run for every captioner, say why they are left out, and go on after an interruption."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import audit_data
from saywhy.audits import image_ablation, risk, sanity
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.results import audits
from saywhy.audits.runner import AUDITS, chosen, file_of, run, save
from saywhy.data.object_words import ObjectWords
from saywhy.data.region_inputs import find_regions
from saywhy.data.regions import RegionSettings
from saywhy.errors import UserError
from saywhy.explain.composites import composite

ABOUT = {"model", "captioner", "encoder", "data", "split", "images", "broken", "decoding", "composite", "objects"}
STAGES = {
    "explaining": "hallucination",
    "masking": "image-ablation",
    "leaving words out": "word-ablation",
    "altering the model": "sanity",
    "reading facts": "risk",
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(risk, "FEWEST", 2)
    monkeypatch.setattr(sanity, "IMAGES", 2)


def fitted(bench: AuditContext, data: Path, split: str = "train") -> AuditContext:
    """The bench with another split to fit a risk on."""
    bench.fitting = replace(bench, data=audit_data.bench(data, bench.cache, model=bench.model, split=split).data)
    return bench


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    """All but how long it took."""
    return {name: value for name, value in result.items() if not name.endswith("seconds")}


def estimates(told: Any) -> list[dict[str, Any]]:
    if isinstance(told, list):
        return [each for part in told for each in estimates(part)]
    if not isinstance(told, dict):
        return []
    if told.keys() == {"value", "low", "high", "n"}:
        return [told]
    return [each for part in told.values() for each in estimates(part)]


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_every_audit_runs_and_its_results_are_json(name, heard, data, tmp_path, monkeypatch):
    monkeypatch.setattr(sanity, "IMAGES", 1)
    bench = fitted(replace(heard(name).bench), data, "dev")
    told = list(run(chosen("all"), bench))
    assert [each["audit"] for each in told] == list(AUDITS)
    assert {each["audit"]: each["not_applicable"] for each in told if each["not_applicable"]} == {}
    for each in told:
        path = save(tmp_path, each)
        assert path.name == f"audit-tiny-{name}-{each['audit']}.json"
        text = path.read_text(encoding="utf-8")
        assert json.loads(text) == json.loads(json.dumps(each, allow_nan=False))
        assert each.keys() >= ABOUT
        assert (each["of"], each["broken"], each["split"], each["captioner"]) == (3, 0, "test", name)
        found = estimates(each)
        assert len(found) > 5
        assert any(estimate["value"] is not None for estimate in found)
        for estimate in found:
            if estimate["value"] is not None:
                assert estimate["low"] <= estimate["value"] + 1e-9
                assert estimate["value"] <= estimate["high"] + 1e-9
        assert all({"claim", "holds", "difference"} == check.keys() for check in each["checks"])


def test_the_audits_are_those_that_are_registered():
    assert sorted(AUDITS) == sorted(audits)
    assert chosen("all") == AUDITS
    assert chosen("sanity") == ("sanity",)
    with pytest.raises(UserError, match=r"unknown audit 'sanitary': .*sanity"):
        chosen("sanitary")


def test_an_audit_that_cannot_be_is_left_out_with_a_line_and_the_others_run(soft):
    bench = replace(soft.bench, phrases=None)
    told = {each["audit"]: each for each in run(("localisation", "word-ablation", "risk"), bench)}
    assert told["word-ablation"]["not_applicable"] is None
    for name, why in (("localisation", "has no boxes"), ("risk", "has no risk.json")):
        assert why in told[name]["not_applicable"]
        assert "\n" not in told[name]["not_applicable"]
        assert told[name]["checks"] == []
        assert told[name].keys() >= ABOUT


def test_captions_without_object_words_leave_out_all_audits_of_these(soft, tmp_path):
    table = tmp_path / "objects.txt"
    table.write_text("[vehicles]\nboat\n")
    bench = replace(soft.bench, objects=ObjectWords.read(table), cache=tmp_path / "cache")
    bench.model.risk = audit_data.some_risk(about={"objects": bench.objects.key})
    try:
        told = {each["audit"]: each["not_applicable"] for each in run(AUDITS, bench)}
    finally:
        bench.model.risk = None
    assert told.pop("word-ablation") is None  # stop words are left
    assert len(told) == 5
    for name, why in told.items():
        assert why.startswith("no object word in 3 captions"), name


@pytest.mark.parametrize("audit", ["hallucination", "risk"])
def test_one_reference_a_image_is_noted(audit, soft, data):
    images = tuple(replace(each, captions=each.captions[:1]) for each in soft.bench.data.images)
    bench = fitted(replace(soft.bench, data=replace(soft.bench.data, images=images)), data, "dev")
    (told,) = run((audit,), bench)
    assert [note.split(":")[0] for note in told["notes"]] == ["one reference an image"]


def looking_at_regions(data: Path, tmp_path: Path) -> AuditContext:
    """A bench of a model that looks at five boxes of each image, and of one at fewer."""
    rows = []
    for name in audit_data.SCENES:
        boxes = [[15, 5, 45, 40], [30, 20, 75, 65], [20, 10, 70, 60], [16, 30, 50, 64]]
        about = {"image": name, "width": 90, "height": 70}
        rows.append({**about, "phrases": [{"boxes": boxes[: 2 if name == "pink.png" else 4]}]})
    table = tmp_path / "regions.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    model = audit_data.model(regions=RegionSettings("boxes", 5))
    return audit_data.bench(data, tmp_path / "cache", model=model, regions=find_regions(model.regions, table, "model"))


def test_a_model_of_regions_is_audited_too(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sanity, "IMAGES", 1)
    bench = looking_at_regions(data, tmp_path)
    bench.model.risk = audit_data.some_risk()
    told = {each["audit"]: each for each in run(AUDITS, bench)}
    assert {name: each["not_applicable"] for name, each in told.items() if each["not_applicable"]} == {}
    cases = EvidenceSet(bench)
    for image in cases.with_objects():
        case = cases.of(image)
        why = bench.model.explain(image.path, regions=bench.regions.table, methods=["lrp", "attention"])
        assert tuple(case.words) == why.tokens
        for j, place in enumerate(case.objects):
            wanted = why.maps["lrp"][int(place)]
            np.testing.assert_allclose(case.maps["lrp"][j], wanted, atol=1e-3 * np.abs(wanted).max())
            # attention is spread over the boxes it is of
            assert case.maps["attention"][j].sum() == pytest.approx(1, abs=1e-2)
    for each in told.values():
        json.dumps(each, allow_nan=False)
    assert {each["value"] for each in told["sanity"]["moved"].values()} == {None}, "boxes would have to move along"


def test_a_model_of_given_features_and_one_that_draws_are_refused(soft, data, tmp_path):
    bench = looking_at_regions(data, tmp_path)
    features = replace(bench.regions, settings=RegionSettings("features", 5))
    with pytest.raises(UserError, match="looks at given features, not at pixels"):
        replace(bench, regions=features)
    for drawn in ({"method": "sample"}, {"attend": "sampled"}):
        with pytest.raises(UserError, match="draws its words or places at random"):
            audit_data.bench(data, tmp_path, model=audit_data.model(**drawn))


class Interrupted(Exception):
    """The lights went out."""


@pytest.mark.parametrize("stage", STAGES)
def test_after_an_interruption_the_rest_only_is_computed_and_the_results_are_those_of_one_left_alone(
    stage, soft, data, tmp_path
):
    audit = STAGES[stage]
    # nothing is known of this bench, but for its cases where these are not what is interrupted
    cache = tmp_path / "cache"
    bench = fitted(replace(soft.bench, cache=cache), data, "dev")
    if stage != "explaining":
        shutil.copytree(soft.kept.folder, cache / soft.kept.folder.name)

    def unplug(what: str, done: int, total: int) -> None:
        if what == stage and done == 1:
            raise Interrupted

    def unplugged(of: AuditContext, progress: Any) -> AuditContext:
        again = replace(of, progress=progress, broken=set())
        again.fitting = replace(of.fitting, progress=progress)
        return again

    with pytest.raises(Interrupted):
        list(run((audit,), unplugged(bench, unplug)))
    calls = []
    (resumed,) = run((audit,), unplugged(bench, lambda *call: calls.append(call)))
    done = [number for what, number, _ in calls if what == stage]
    total = next(total for what, _, total in calls if what == stage)
    assert done == list(range(1, total + 1)), "the first was known, and each other was computed once"
    assert total > 1
    calls.clear()
    (again,) = run((audit,), unplugged(bench, lambda *call: calls.append(call)))
    assert all(number == of for _, number, of in calls), "nothing was computed again"
    alone = fitted(replace(soft.bench, cache=tmp_path / "alone", broken=set()), data, "dev")
    (untouched,) = run((audit,), alone)
    assert numbers(resumed) == numbers(untouched) == numbers(again)


def test_a_broken_image_is_named_once_and_left_out(soft, data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "pink.png").write_text("not an image")
    told: list[str] = []
    bench = audit_data.bench(folder, tmp_path / "cache", model=soft.bench.model, on_unreadable=told.append)
    names = ("word-ablation", "hallucination", "image-ablation")
    results = list(run(names, bench))
    assert len(told) == 1
    assert "pink.png" in told[0]
    images = tuple(each for each in soft.bench.data.images if each.name != "pink.png")
    without = replace(soft.bench, data=replace(soft.bench.data, images=images))
    for one, other in zip(results, run(names, without), strict=True):
        assert (one["images"], one["broken"]) == (2, 1)
        # of what people said of it, the frequent words know, and the checks of these
        apart = ("broken", "of", "digests", "frequent", "references", "checks")
        one, other = (
            {name: value for name, value in numbers(each).items() if name not in apart} for each in (one, other)
        )
        assert one == other


def test_a_image_that_is_missing_is_named_too(soft, data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "gold.png").unlink()
    told: list[str] = []
    bench = audit_data.bench(folder, tmp_path / "cache", model=soft.bench.model, on_unreadable=told.append)
    (result,) = run(("word-ablation",), bench)
    assert (result["images"], result["broken"], len(told)) == (2, 1, 1)
    assert "gold.png" in told[0]


def test_images_that_are_all_broken_are_told_in_one_line(data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    for name in ("grey", "pink", "gold"):
        (folder / f"{name}.png").write_text("not an image")
    with pytest.raises(UserError, match="none of its 3 images could be read"):
        list(run(("sanity",), audit_data.bench(folder, tmp_path / "cache")))


def test_a_image_without_captions_is_refused(soft):
    images = tuple(replace(each, captions=()) for each in soft.bench.data.images)
    with pytest.raises(UserError, match=r"grey\.png has no caption"):
        replace(soft.bench, data=replace(soft.bench.data, images=images))


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({}, "audit-m-sanity.json"),
        ({"composite": "paper"}, "audit-m-paper-sanity.json"),
        ({"composite": "paper, ε 0.1 relative"}, "audit-m-paper-ε-0.1-relative-sanity.json"),
        ({"split": "dev"}, "audit-m-dev-sanity.json"),
        ({"images": 4}, "audit-m-4-sanity.json"),
        ({"model": "../m"}, "audit-..-m-sanity.json"),
    ],
)
def test_results_of_other_rules_splits_and_fewer_images_have_files_of_their_own(tmp_path, other, name):
    usual = {"model": "m", "audit": "sanity", "composite": str(composite("epsilon-plus"))}
    told = usual | {"split": "test", "of": 9, "images": 7, "broken": 2} | other
    assert file_of(tmp_path, told) == tmp_path / name


@pytest.mark.data
def test_the_shipped_model_is_audited_on_three_images(flickr8k, tmp_path, monkeypatch):
    import saywhy
    from saywhy.data.datasets import read
    from saywhy.data.phrases import find_phrases

    monkeypatch.setattr(sanity, "IMAGES", 1)
    monkeypatch.setattr(sanity, "PARTS", ("whole",))
    monkeypatch.setattr(image_ablation, "FRACTIONS", (0.0, 0.2, 1.0))
    monkeypatch.setattr(image_ablation, "BETWEEN", (0.2,))
    data = read(flickr8k)
    some = replace(data, images=data.split("test").images[:3])
    phrases = find_phrases(data.root)
    model = saywhy.load(device="cpu")
    model.risk, model.decoding = audit_data.some_risk(), replace(model.decoding, max_words=8)
    model.preprocessing = replace(model.preprocessing, size=112)  # for the sake of time
    bench = AuditContext(model, some, tmp_path, phrases=phrases, workers=0)
    for told in run(AUDITS, bench):
        json.dumps(told, allow_nan=False)
        if told["audit"] == "localisation" and phrases is None:
            assert "has no boxes" in told["not_applicable"]
            continue
        if told["not_applicable"] is None:
            assert any(each["value"] is not None for each in estimates(told)), told["audit"]
        else:
            assert told["audit"] in ("hallucination", "localisation"), told["not_applicable"]
