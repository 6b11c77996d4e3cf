"""`saywhy audit` tests explanations, caches its work, and reports in one line what does not apply."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import audit_data
from saywhy.audits import sanity
from saywhy.audits.audit import audits
from saywhy.hallucination import fitting
from saywhy.hallucination.risk_model import Risk

TIMES = ("seconds", "explanation_seconds")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose captions have object words."""
    folder = tmp_path_factory.mktemp("models") / "model"
    audit_data.saved().save(folder)
    return folder


@pytest.fixture
def model(audited: Path, tmp_path: Path) -> Path:
    """A copy of it, for tests that write into it."""
    return shutil.copytree(audited, tmp_path / "model")


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    return audit_data.write_data(tmp_path / "scenes")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "MIN_WORDS", 2)
    monkeypatch.setattr(sanity, "IMAGES", 1)


@pytest.fixture
def audit(run, model: Path, scenes: Path, tmp_path: Path):
    """Run an audit on the tiny data, in this process."""

    def call(*arguments: object, **changes: object):
        defaults = {"data": scenes, "model": model, "out": tmp_path / "out", "workers": 0, "device": "cpu"}
        options = [part for name, value in {**defaults, **changes}.items() for part in (f"--{name}", value)]
        return run("audit", *arguments, *options)

    return call


def results(folder: Path) -> dict[str, dict[str, Any]]:
    contents = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("audit-*.json")]
    return {result["audit"]: result for result in contents}


def without_times(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in TIMES}


def errors(text: str) -> list[str]:
    """The lines of stderr that are messages, not progress."""
    return [line for line in text.splitlines() if line.startswith("saywhy: ")]


def test_all_audits_write_results_and_pages(audit, tmp_path: Path) -> None:
    result = audit("all")
    assert result.code == 0, result.err
    written = results(tmp_path / "out")
    assert sorted(written) == sorted(name for name in audits if audits[name].tests_explanations)
    assert [body["not_applicable"] for body in written.values()] == [None] * 7
    for name, body in written.items():
        assert body["model"] == "tiny-soft-attention"
        assert f"{name}: tiny-soft-attention on" in result.out
    assert (tmp_path / "out" / "cache").is_dir()
    assert [path.name for path in (tmp_path / "out").iterdir() if path.suffix in (".md", ".svg", ".html")]
    assert not list((tmp_path / "out").rglob("*.part"))


def test_log_has_the_start_and_end_of_every_stage(audit) -> None:
    lines = audit("word-ablation").err.splitlines()
    stages = list(dict.fromkeys(line.split(": ")[0] for line in lines))
    assert len(stages) > 1
    for stage in stages:
        start, *_, end = [line for line in lines if line.startswith(f"{stage}: ")]
        assert start.startswith(f"{stage}: 3 images")
        assert end.startswith(f"{stage}: finished in "), "with the seconds it took"
        assert end.endswith(" s")


def test_json_is_one_line_per_audit_equal_to_its_file(audit, tmp_path: Path) -> None:
    result = audit("word-ablation", "--json")
    assert (result.code, errors(result.err)) == (0, [])
    (line,) = result.out.splitlines()
    body = json.loads(line, parse_constant=pytest.fail)
    assert body == results(tmp_path / "out")["word-ablation"]
    assert body["object_words"]["words"] > 0


def test_printed_numbers_are_those_of_the_file(audit, tmp_path: Path) -> None:
    result = audit("hallucination")
    body = results(tmp_path / "out")["hallucination"]["frequent_words"]
    row = next(line for line in result.out.splitlines() if line.startswith("LRP"))
    assert f"{body['statistics']['lrp']['quantile 5 %']['value']:.3f}" in row
    assert str(tmp_path / "out") in result.out


def test_limit_takes_evenly_spaced_images_and_does_not_replace_the_full_results(audit, tmp_path: Path) -> None:
    assert audit("word-ablation", "--limit", 2).code == 0
    (body,) = results(tmp_path / "out").values()
    assert (body["images"], body["split_images"]) == (2, 3)
    assert audit("word-ablation", "--limit", 99).code == 0
    files = (tmp_path / "out").glob("audit-*-word-ablation.json")
    assert sorted(json.loads(path.read_text())["images"] for path in files) == [2, 3]


def test_second_run_uses_the_cache(audit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert audit("word-ablation").code == 0
    before = results(tmp_path / "out")["word-ablation"]
    monkeypatch.setattr("saywhy.audits.context.AuditContext.encode", None)
    monkeypatch.setattr("saywhy.audits.evidence.attribute", None)
    again = audit("word-ablation")
    assert again.code == 0
    assert "3 images, 3 of them cached" in again.err
    assert without_times(results(tmp_path / "out")["word-ablation"]) == without_times(before)


def test_cache_can_be_in_another_folder(audit, tmp_path: Path) -> None:
    assert audit("word-ablation", cache=tmp_path / "cached").code == 0
    assert list((tmp_path / "cached").rglob("*.npz"))
    assert not (tmp_path / "out" / "cache").exists()


@pytest.mark.parametrize(
    ("arguments", "changes", "message"),
    [
        (["sanitary"], {}, "unknown audit 'sanitary': "),
        (["sanity"], {"split": "tests"}, "unknown split 'tests'"),
        (["risk"], {"split": "val", "fit": "dev"}, "--fit dev: a risk model is tested on other images"),
        (["sanity"], {"fit": "dev"}, "--fit, --fit-risk and --save-risk belong to the audit risk, not to sanity"),
        (["sanity", "--occlusion"], {}, "--occlusion belongs to the audit specificity, not to sanity"),
        (["sanity", "--save-risk"], {}, "--fit, --fit-risk and --save-risk belong to the audit risk, not to sanity"),
        (["sanity"], {"composite": "espilon"}, "unknown composite 'espilon'"),
        (["sanity"], {"data": "nowhere"}, "nowhere: no such file or folder"),
        (["sanity"], {"boxes": "nowhere.jsonl"}, "nowhere.jsonl"),
        (["sanity"], {"object-words": "nowhere.txt"}, "nowhere.txt"),
        (["sanity"], {"limit": 0}, "--limit"),
    ],
)
def test_mistake_is_one_line_before_a_model_is_loaded(audit, no_model, arguments, changes, message: str) -> None:
    assert message in audit(*arguments, **changes).error


def test_missing_split_lists_the_others(audit, scenes: Path) -> None:
    rows = (scenes / "captions.csv").read_text().replace(",test", ",train")
    (scenes / "captions.csv").write_text(rows)
    error = audit("sanity").error
    assert "no images in split 'test'" in error
    assert "train (4), dev (4)" in error


def test_folder_that_cannot_be_written_is_refused_before_a_model_is_loaded(audit, no_model, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "--out" in audit("sanity", out=tmp_path / "file").error
    assert "--cache" in audit("sanity", cache=tmp_path / "file" / "cache").error
    assert not (tmp_path / "out").exists()


def test_audit_that_does_not_apply_is_reported_and_recorded(audit, scenes: Path, tmp_path: Path) -> None:
    (scenes / "boxes.jsonl").unlink()
    result = audit("localisation")
    assert (result.code, result.out.strip()) == (0, "")
    (line,) = errors(result.err)
    assert line.startswith("saywhy: localisation does not apply: ")
    assert results(tmp_path / "out")["localisation"]["not_applicable"] in line


def test_boxes_can_be_in_another_file(audit, scenes: Path, tmp_path: Path) -> None:
    boxes = shutil.move(scenes / "boxes.jsonl", tmp_path / "elsewhere.jsonl")
    assert audit("localisation", boxes=boxes).code == 0
    assert results(tmp_path / "out")["localisation"]["words"] > 0


def test_unreadable_image_is_named_and_the_exit_code_is_2(audit, scenes: Path, tmp_path: Path) -> None:
    (scenes / "pink.png").write_text("not an image")
    result = audit("hallucination")
    assert result.code == 2
    (line,) = errors(result.err)
    assert "pink.png" in line
    body = results(tmp_path / "out")["hallucination"]
    assert (body["images"], body["unreadable"]) == (2, 1)


def test_risk_model_is_fitted_on_dev_and_saved_only_on_request(audit, model: Path, tmp_path: Path) -> None:
    result = audit("risk")
    assert result.code == 0, result.err
    assert not (model / "risk.json").exists()
    body = results(tmp_path / "out")["risk"]
    assert body["fitted_on"]["split"] == "dev"
    result = audit("risk", "--save-risk", fit="dev")
    assert result.code == 0, result.err
    assert f"the risk model is saved in {model / 'risk.json'}" in result.err
    assert Risk.read(model) == Risk.from_dict(body["fitted_risk"])


def test_saved_risk_model_is_used_by_caption_and_tested_by_the_next_audit(run, audit, model, scenes, tmp_path) -> None:
    assert audit("risk", "--save-risk").code == 0
    first = results(tmp_path / "out")["risk"]
    command = ("caption", scenes / "grey.png", "--model", model, "--risk", "--device", "cpu")
    result = run(*command, "--json")
    assert (result.code, result.err) == (0, "")
    words = json.loads(result.out)["words"]
    assert [word["risk"] is not None for word in words] == [word["word"] in audit_data.OBJECTS for word in words]
    expected = [w["word"] + (f" ({round(100 * w['risk'])}%)" if w["risk"] is not None else "") for w in words]
    assert run(*command).out.strip() == f"{scenes / 'grey.png'}: {' '.join(expected)}"
    assert audit("risk").code == 0
    second = results(tmp_path / "out")["risk"]
    assert second["fitted_risk"] == first["fitted_risk"]
    assert second["auc"] == first["auc"]
    assert "--save-risk: nothing is fitted" in audit("risk", "--save-risk").error


def test_risk_model_is_fitted_on_several_data_sets_and_tested_without_each(audit, model, scenes, tmp_path) -> None:
    other = audit_data.write_data(tmp_path / "other", {**audit_data.SCENES, "red.png": ("train", ["a dog"], [])})
    result = audit("risk", "--save-risk", "--fit-risk", scenes, "--fit-risk", other)
    assert result.code == 0, result.err
    body = results(tmp_path / "out")["risk"]
    assert body["fitted_on"]["data"] == ["scenes", "other"]
    assert [row["left_out"] for row in body["without_a_data_set"]] == ["scenes", "other"]
    assert Risk.read(model).about["split"] == "dev"
    page = (tmp_path / "out" / "risk.md").read_text()
    assert "risk, fitted without other" in page
    assert "Fitted on 8 images of scenes and other dev." in page


def test_mistakes_in_the_data_sets_to_fit_on_are_one_line(audit, no_model, scenes, tmp_path) -> None:
    (tmp_path / "again").mkdir()
    twin = audit_data.write_data(tmp_path / "again" / "scenes")
    assert "two data sets have the name 'scenes'" in audit("risk", "--fit-risk", scenes, "--fit-risk", twin).error
    assert "no such file or folder" in audit("risk", "--fit-risk", tmp_path / "nowhere").error
    assert "tested on other images" in audit("risk", "--fit-risk", scenes, split="dev").error
    assert "belong to the audit risk" in audit("sanity", "--fit-risk", scenes).error


def test_table_of_object_words_is_saved_with_its_risk_model(run, audit, model, scenes, tmp_path: Path) -> None:
    table = tmp_path / "things.txt"
    table.write_text("[animals]\ndog\n[vehicles]\ncar\n[other]\nball\n")
    result = audit("risk", "--save-risk", **{"object-words": table})
    assert result.code == 0, result.err
    assert (model / "objects.txt").read_text() == table.read_text()
    captioned = run("caption", scenes / "pink.png", "--model", model, "--risk", "--json", "--device", "cpu")
    words = json.loads(captioned.out)["words"]
    assert {word["word"] for word in words if word["risk"] is not None} <= {"dog", "dogs", "car", "ball"}
    before = (model / "risk.json").read_text()
    again = audit("risk", "--save-risk", fit="dev", **{"object-words": model / "objects.txt"})
    assert again.code == 0, again.err
    assert (model / "risk.json").read_text() == before


def test_risk_model_that_cannot_be_fitted_is_not_saved_and_the_exit_code_is_2(audit, model, monkeypatch) -> None:
    monkeypatch.setattr(fitting, "MIN_WORDS", 1000)
    result = audit("risk", "--save-risk")
    assert result.code == 2
    assert "no risk model was fitted" in result.err
    assert not (model / "risk.json").exists()


def test_model_folder_without_permission_is_refused_before_it_is_loaded(audit, no_model, model, monkeypatch) -> None:
    access = os.access
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != model and access(path, mode))  # also for root
    assert audit("risk", "--save-risk").error.startswith(f"saywhy: --save-risk {model}: cannot be written")


def test_caption_risk_without_a_risk_model_is_one_line(run, model: Path, scenes: Path) -> None:
    assert "has no risk.json" in run("caption", scenes / "grey.png", "--model", model, "--risk").error


def test_explain_reports_a_damaged_risk_model_and_continues(run, model: Path, scenes: Path, tmp_path: Path) -> None:
    (model / "risk.json").write_text("{}")
    options = ("--model", model, "--method", "attention", "--device", "cpu", "--out", tmp_path / "why")
    result = run("explain", scenes / "grey.png", *options)
    assert (result.code, len(result.err.splitlines())) == (0, 1)
    assert result.err.startswith(f"saywhy: risks are left out: {model / 'risk.json'}")
    assert (tmp_path / "why" / "report.html").is_file()


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "saywhy", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def cached(out: Path) -> dict[Path, int]:
    """The cached evidence, with the time of each file."""
    return {path: path.stat().st_mtime_ns for path in out.glob("cache/evidence-*/*/*.npz")}


def test_killed_audit_continues_and_gives_the_same_numbers(run, audited: Path, tmp_path: Path) -> None:
    scenes = {name: ("test", captions, boxes) for name, (_, captions, boxes) in [*audit_data.SCENES.items()][:6]}
    data = audit_data.write_data(tmp_path / "data", scenes)
    command = ("audit", "hallucination", "--data", data, "--model", audited, "--workers", 0, "--device", "cpu")
    process = start(*command, "--out", tmp_path / "killed")
    deadline = time.monotonic() + 120
    while not cached(tmp_path / "killed"):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "the audit has cached nothing"
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    process.communicate()
    before = cached(tmp_path / "killed")
    assert 0 < len(before) < 6
    assert not list((tmp_path / "killed").glob("audit-*.json"))
    assert run(*command, "--out", tmp_path / "killed").code == 0
    after = cached(tmp_path / "killed")
    assert len(after) == 6
    assert {path: after[path] for path in before} == before, "cached results are not computed again"
    assert run(*command, "--out", tmp_path / "uninterrupted").code == 0
    killed, uninterrupted = (results(tmp_path / name)["hallucination"] for name in ("killed", "uninterrupted"))
    assert without_times(killed) == without_times(uninterrupted)
