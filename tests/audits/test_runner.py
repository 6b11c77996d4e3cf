"""Complete audits: they run for every captioner, report why they do not apply, and continue after an interruption."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import audit_data
from saywhy.audits import image_ablation, sanity
from saywhy.audits.audit import audits
from saywhy.audits.context import AuditContext, Progress
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.runner import results_path, run, save, select
from saywhy.data.object_words import ObjectWords
from saywhy.data.region_files import find_regions
from saywhy.data.regions import RegionSettings
from saywhy.errors import UserError
from saywhy.explain.composites import composite
from saywhy.hallucination import fitting
from saywhy.registry import import_plugin
from saywhy.reports.audit_pages import write_pages

AUDITS = ("image-ablation", "word-ablation", "localisation", "specificity", "hallucination", "risk", "sanity")
SETTINGS = {
    "model",
    "captioner",
    "encoder",
    "data",
    "split",
    "images",
    "unreadable",
    "decoding",
    "composite",
    "digests",
}
STAGES = {
    "explaining captions": "hallucination",
    "masking patches": "image-ablation",
    "removing words": "word-ablation",
    "comparing words": "specificity",
    "explaining altered models": "sanity",
    "computing word features": "risk",
}


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MIN_WORDS", 2)
    monkeypatch.setattr(sanity, "IMAGES", 2)


def fit_on_dev(context: AuditContext, data: Path) -> AuditContext:
    """The context with the dev split to fit a risk on."""
    dev = audit_data.context(data, context.cache, model=context.model, split="dev").data
    return replace(context, fit_contexts=(replace(context, data=dev),))


def without_seconds(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if not name.endswith("seconds")}


def estimates(part: Any) -> list[dict[str, Any]]:
    """All estimates in the body of a result."""
    if isinstance(part, list):
        return [estimate for value in part for estimate in estimates(value)]
    if not isinstance(part, dict):
        return []
    if part.keys() == {"value", "low", "high", "n"}:
        return [part]
    return [estimate for value in part.values() for estimate in estimates(value)]


@pytest.mark.parametrize("name", ["soft-attention", "ada-lstm", "mh-fc", "coca"])
def test_every_audit_runs_for_every_captioner_and_its_result_is_json(name, evidence_of, data, tmp_path, monkeypatch):
    monkeypatch.setattr(sanity, "IMAGES", 1)
    results = list(run(select("all"), fit_on_dev(evidence_of(name).context, data)))
    assert [result["audit"] for result in results] == list(AUDITS)
    assert [result["not_applicable"] for result in results] == [None] * len(AUDITS)
    for result in results:
        path = save(tmp_path, result)
        assert path.name == f"audit-tiny-{name}-{result['audit']}.json"
        assert json.loads(path.read_text(encoding="utf-8")) == json.loads(json.dumps(result, allow_nan=False))
        assert result.keys() >= SETTINGS
        counts = (result["split_images"], result["images"], result["unreadable"])
        assert (*counts, result["split"], result["captioner"]) == (3, 3, 0, "test", name)
        values = [estimate for estimate in estimates(result) if estimate["value"] is not None]
        assert len(estimates(result)) > 5
        assert values
        for estimate in values:
            assert estimate["low"] <= estimate["value"] + 1e-9
            assert estimate["value"] <= estimate["high"] + 1e-9
        assert all({"claim", "holds", "difference"} == check.keys() for check in result["checks"])
        audit = audits[result["audit"]]()
        tables = [audit.summary(result), *audit.tables(result)]
        assert all(len(row) == len(table.head) for table in tables for row in table.rows)


def test_all_selects_every_audit_of_explanations_in_the_order_of_the_pages():
    assert select("all") == AUDITS
    assert (*AUDITS, "familiarity") == tuple(audits)
    assert select("familiarity") == ("familiarity",)
    assert select("sanity") == ("sanity",)
    with pytest.raises(UserError, match=r"unknown audit 'sanitary': .*sanity"):
        select("sanitary")


def test_an_audit_that_does_not_apply_says_why_and_the_others_run(soft):
    context = replace(soft.context, phrases=None)
    results = {result["audit"]: result for result in run(("localisation", "word-ablation", "risk"), context)}
    assert results["word-ablation"]["not_applicable"] is None
    for name, reason in (("localisation", "has no boxes"), ("risk", "has no risk.json")):
        assert reason in results[name]["not_applicable"]
        assert "\n" not in results[name]["not_applicable"]
        assert results[name]["checks"] == []
        assert results[name].keys() >= SETTINGS


def test_captions_without_object_words_leave_only_word_ablation(soft, tmp_path):
    table = tmp_path / "objects.txt"
    table.write_text("[vehicles]\nboat\n")
    object_words = ObjectWords.read(table)
    model = audit_data.model(risk=audit_data.some_risk(about={"object_words": object_words.key}))
    context = replace(soft.context, model=model, object_words=object_words, cache=tmp_path / "cache")
    reasons = {result["audit"]: result["not_applicable"] for result in run(AUDITS, context)}
    assert reasons.pop("word-ablation") is None  # it also tests stop words
    assert len(reasons) == 6
    for name, reason in reasons.items():
        assert reason.startswith("no object word in 3 captions"), name


@pytest.mark.parametrize("audit", ["hallucination", "risk"])
def test_one_reference_per_image_is_noted(audit, soft, data):
    images = tuple(replace(image, captions=image.captions[:1]) for image in soft.context.data.images)
    context = fit_on_dev(replace(soft.context, data=replace(soft.context.data, images=images)), data)
    (result,) = run((audit,), context)
    assert [note.split(":")[0] for note in result["notes"]] == ["one reference per image"]


def region_context(data: Path, tmp_path: Path, **options: Any) -> AuditContext:
    """The context of a model that attends to five boxes per image, and to fewer in one image."""
    rows = []
    for name in audit_data.SCENES:
        boxes = [[15, 5, 45, 40], [30, 20, 75, 65], [20, 10, 70, 60], [16, 30, 50, 64]]
        size = {"image": name, "width": 90, "height": 70}
        rows.append({**size, "phrases": [{"boxes": boxes[: 2 if name == "pink.png" else 4]}]})
    table = tmp_path / "regions.jsonl"
    table.write_text("\n".join(map(json.dumps, rows)))
    model = audit_data.model(regions=RegionSettings("boxes", 5), **options)
    regions = find_regions(model.regions, table, "model")
    return audit_data.context(data, tmp_path / "cache", model=model, regions=regions)


def test_a_region_model_is_audited_too(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sanity, "IMAGES", 1)
    context = region_context(data, tmp_path, risk=audit_data.some_risk())
    results = {result["audit"]: result for result in run(AUDITS, context)}
    assert {name: result["not_applicable"] for name, result in results.items()} == dict.fromkeys(AUDITS)
    evidence = EvidenceSet(context)
    for image in evidence.images_with_objects():
        caption = evidence.load(image)
        explanation = context.model.explain(image.path, regions=context.regions.table, methods=["lrp", "attention"])
        assert tuple(caption.words) == explanation.tokens
        for j, position in enumerate(caption.objects):
            expected = explanation.maps["lrp"][int(position)]
            np.testing.assert_allclose(caption.maps["lrp"][j], expected, atol=1e-3 * np.abs(expected).max())
            assert caption.maps["attention"][j].sum() == pytest.approx(1, abs=1e-2)
    for result in results.values():
        json.dumps(result, allow_nan=False)
    translated = {estimate["value"] for estimate in results["sanity"]["translated"].values()}
    assert translated == {None}, "the boxes would have to move too"


def test_a_model_of_region_features_is_refused(data, tmp_path):
    context = region_context(data, tmp_path)
    features = replace(context.regions, settings=RegionSettings("features", 5))
    with pytest.raises(UserError, match="reads region features instead of pixels"):
        replace(context, regions=features)


class Interrupted(Exception):
    """Stands for a crash."""


@pytest.mark.parametrize("stage", STAGES)
def test_an_interrupted_audit_computes_only_the_rest_and_gives_the_same_numbers(stage, soft, data, tmp_path):
    names = (STAGES[stage],)
    cache = tmp_path / "cache"
    if stage != "explaining captions":
        shutil.copytree(soft.cache.folder, cache / soft.cache.folder.name)

    def context(folder: Path, on_progress: Any) -> AuditContext:
        return fit_on_dev(replace(soft.context, cache=folder, unreadable=set(), on_progress=on_progress), data)

    def interrupt(event: Progress) -> None:
        if event.stage == stage and event.done == 1:
            raise Interrupted

    with pytest.raises(Interrupted):
        list(run(names, context(cache, interrupt)))
    events: list[Progress] = []
    (resumed,) = run(names, context(cache, events.append))
    own = [event for event in events if event.stage == stage]
    own = own[: [event.finished for event in own].index(True) + 1]  # the risk has this stage twice: to fit and to test
    total = own[0].total
    assert total > 1
    assert [event.done for event in own] == [*range(1, total + 1), total], "the first image was cached"
    events.clear()
    (cached,) = run(names, context(cache, events.append))
    assert all(event.done == event.total for event in events if event.stage in STAGES), "everything was cached"
    (uninterrupted,) = run(names, context(tmp_path / "other", lambda event: None))
    assert without_seconds(resumed) == without_seconds(uninterrupted) == without_seconds(cached)


def test_every_audit_reports_its_start_and_its_end(soft):
    events: list[Progress] = []
    list(run(("word-ablation", "localisation"), replace(soft.context, on_progress=events.append)))
    for name in ("word-ablation", "localisation"):
        start, end = [event for event in events if event.stage == name]
        assert (start.done, start.finished, start.seconds) == (0, False, 0)
        assert (end.done, end.total, end.finished) == (3, 3, True)
        assert end.seconds > 0
    finished = [event.stage for event in events if event.finished]
    assert finished == ["explaining captions", "removing words", "word-ablation", "localisation"]


def test_an_unreadable_image_is_reported_once_and_left_out(soft, data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "pink.png").write_text("not an image")
    errors: list[UserError] = []
    context = audit_data.context(folder, tmp_path / "cache", model=soft.context.model, on_unreadable=errors.append)
    names = ("word-ablation", "hallucination", "image-ablation")
    results = list(run(names, context))
    assert ["pink.png" in str(error) for error in errors] == [True]
    images = tuple(image for image in soft.context.data.images if image.name != "pink.png")
    without = replace(soft.context, data=replace(soft.context.data, images=images))
    # The references of the unreadable image count for the frequent words, and so for their checks.
    differ = {"unreadable", "split_images", "digests", "frequent_words", "references_per_image", "checks"}
    for result, expected in zip(results, run(names, without), strict=True):
        assert (result["images"], result["unreadable"]) == (2, 1)
        for name in without_seconds(expected).keys() - differ:
            assert result[name] == expected[name]


def test_a_missing_image_is_reported_too(soft, data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    (folder / "gold.png").unlink()
    errors: list[UserError] = []
    context = audit_data.context(folder, tmp_path / "cache", model=soft.context.model, on_unreadable=errors.append)
    (result,) = run(("word-ablation",), context)
    assert (result["images"], result["unreadable"]) == (2, 1)
    assert ["gold.png" in str(error) for error in errors] == [True]


def test_data_without_a_readable_image_is_an_error(data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    for name in ("grey", "pink", "gold"):
        (folder / f"{name}.png").write_text("not an image")
    with pytest.raises(UserError, match="none of its 3 images can be read"):
        list(run(("sanity",), audit_data.context(folder, tmp_path / "cache")))


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "audit-m-sanity.json"),
        ({"composite": "paper"}, "audit-m-paper-sanity.json"),
        ({"composite": "paper, ε 0.1 relative"}, "audit-m-paper-ε-0.1-relative-sanity.json"),
        ({"split": "dev"}, "audit-m-dev-sanity.json"),
        ({"images": 4}, "audit-m-4-sanity.json"),
        ({"model": "../m"}, "audit-..-m-sanity.json"),
    ],
)
def test_results_with_other_rules_splits_or_fewer_images_have_their_own_files(tmp_path, changes, name):
    default = {"model": "m", "audit": "sanity", "composite": str(composite("by-stride")), "split": "test"}
    result = default | {"split_images": 9, "images": 7, "unreadable": 2} | changes
    assert results_path(tmp_path, result) == tmp_path / name


@pytest.fixture
def example_audit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The audit "caption-length" of docs/audits/README.md, imported from a file outside the package."""
    page = Path(__file__).parents[2] / "docs" / "audits" / "README.md"
    source = page.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.setattr(audits, "_entries", dict(audits._entries))
    monkeypatch.setattr(audits, "_modules", dict(audits._modules))
    path = tmp_path / "my_audit.py"
    path.write_text(source)
    import_plugin(str(path))


@pytest.mark.usefixtures("example_audit")
def test_an_audit_outside_the_package_runs_and_gets_a_page(soft, tmp_path):
    assert select("all") == (*AUDITS, "caption-length")
    (result,) = run(select("caption-length"), soft.context)
    assert result["length"]["value"] == pytest.approx(np.mean([len(caption.words) for _, caption in soft]))
    assert result["not_applicable"] is None
    assert audits["caption-length"]().summary(result).rows[0][0] == "test"
    save(tmp_path / "out", result)
    (page,) = write_pages(tmp_path / "out", tmp_path / "out")
    assert page.read_text().startswith("# Caption length: how many words does a caption have?")
    assert f"| test | {result['length']['value']:.3f} [" in page.read_text()


@pytest.mark.slow
@pytest.mark.data
def test_the_shipped_model_is_audited_on_three_images(flickr8k, tmp_path, monkeypatch):
    import saywhy
    from saywhy.data.datasets import read
    from saywhy.data.phrases import find_phrases

    monkeypatch.setattr(sanity, "IMAGES", 1)
    monkeypatch.setattr(sanity, "PARTS", ("whole",))
    monkeypatch.setattr(image_ablation, "FRACTIONS", (0.0, 0.2, 1.0))
    monkeypatch.setattr(image_ablation, "INNER_FRACTIONS", (0.2,))
    data = read(flickr8k)
    images = replace(data, images=data.split("test").images[:3])
    phrases = find_phrases(data.root)
    model = saywhy.load(device="cpu")
    model.decoding = replace(model.decoding, max_words=8)
    model.preprocessing = replace(model.preprocessing, size=112)  # to save time
    context = AuditContext(model, images, tmp_path, phrases=phrases, workers=0)
    for result in run(AUDITS, context):
        json.dumps(result, allow_nan=False)
        if result["audit"] == "localisation" and phrases is None:
            assert "has no boxes" in result["not_applicable"]
        elif result["not_applicable"] is None:
            assert any(estimate["value"] is not None for estimate in estimates(result)), result["audit"]
        else:
            assert result["audit"] in ("hallucination", "localisation"), result["not_applicable"]
