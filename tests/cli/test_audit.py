"""`saywhy audit` tests explanations, keeps what it finds out, and says in one line what it cannot do."""

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
from saywhy.audits import risk, sanity
from saywhy.audits.runner import AUDITS
from saywhy.hallucination.risk import Risk

ABOUT_THE_MACHINE = ("seconds", "explaining_seconds")


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that says words of things."""
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
    monkeypatch.setattr(risk, "FEWEST", 2)
    monkeypatch.setattr(sanity, "IMAGES", 1)


@pytest.fixture
def audit(run, model: Path, scenes: Path, tmp_path: Path):
    """Trainer an audit on the tiny data, in this process."""

    def call(*asked: object, **changed: object):
        usual = {"data": scenes, "model": model, "out": tmp_path / "out", "workers": 0, "device": "cpu"}
        options = [part for name, value in {**usual, **changed}.items() for part in (f"--{name}", value)]
        return run("audit", *asked, *options)

    return call


def results(folder: Path) -> dict[str, dict[str, Any]]:
    told = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob("audit-*.json")]
    return {each["audit"]: each for each in told}


def numbers(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ABOUT_THE_MACHINE}


def test_all_audits_run_and_leave_files_and_pages(audit, tmp_path):
    done = audit("all")
    assert done.code == 0, done.err
    found = results(tmp_path / "out")
    assert sorted(found) == sorted(AUDITS)
    assert [each["not_applicable"] for each in found.values()] == [None] * 6
    for name, each in found.items():
        assert each["model"] == "tiny-soft-attention"
        assert f"{name}: tiny-soft-attention on" in done.out
    assert (tmp_path / "out" / "cache").is_dir()
    assert [path.name for path in (tmp_path / "out").iterdir() if path.suffix in (".md", ".svg", ".html")]
    assert not list((tmp_path / "out").rglob("*.part"))


def test_json_is_a_line_an_audit_as_in_its_file(audit, tmp_path):
    done = audit("word-ablation", "--json")
    assert (done.code, done.err) == (0, "")
    (line,) = done.out.splitlines()
    told = json.loads(line, parse_constant=pytest.fail)
    assert told == results(tmp_path / "out")["word-ablation"]
    assert told["object"]["words"] > 0


def test_the_numbers_that_are_printed_are_those_of_the_file(audit, tmp_path):
    done = audit("hallucination")
    told = results(tmp_path / "out")["hallucination"]["frequent"]
    row = next(line for line in done.out.splitlines() if line.startswith("LRP"))
    assert f"{told['statistics']['lrp']['quantile 5 %']['value']:.3f}" in row
    assert f"{told['words']} words, {told['made_up']} made up" in done.out
    assert str(tmp_path / "out") in done.out


def test_so_many_images_are_taken_evenly_spread(audit, tmp_path):
    assert audit("word-ablation", "--limit", 2).code == 0
    (told,) = results(tmp_path / "out").values()
    assert (told["images"], told["of"]) == (2, 3)
    assert audit("word-ablation", "--limit", 99).code == 0
    every = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("audit-*-word-ablation.json")]
    assert sorted(each["images"] for each in every) == [2, 3], "some images do not take the place of all"


def test_what_is_known_is_not_found_out_again(audit, monkeypatch, tmp_path):
    assert audit("word-ablation").code == 0
    before = results(tmp_path / "out")["word-ablation"]
    monkeypatch.setattr("saywhy.audits.evidence.explain", None)
    monkeypatch.setattr("saywhy.audits.context.AuditContext.encode", None)
    assert audit("word-ablation").code == 0
    assert numbers(results(tmp_path / "out")["word-ablation"]) == numbers(before)


def test_the_cache_may_stand_elsewhere(audit, tmp_path):
    assert audit("word-ablation", cache=tmp_path / "kept").code == 0
    assert list((tmp_path / "kept").glob("cases-*/*.npz"))
    assert not (tmp_path / "out" / "cache").exists()


def no_model_is_loaded(*_: object) -> None:
    raise AssertionError("the mistake should have been found before a model is loaded")


@pytest.mark.parametrize(
    ("asked", "changed", "complaint"),
    [
        (["sanitary"], {}, "unknown audit 'sanitary': "),
        (["sanity"], {"split": "tests"}, "unknown split 'tests'"),
        (["risk"], {"split": "val", "fit": "dev"}, "--fit dev: a risk is tested on images it was not fitted on"),
        (["sanity"], {"fit": "dev"}, "--fit and --save-risk are of the audit risk, and not of sanity"),
        (["sanity", "--save-risk"], {}, "--fit and --save-risk are of the audit risk, and not of sanity"),
        (["sanity"], {"composite": "espilon"}, "unknown composite 'espilon'"),
        (["sanity"], {"data": "nowhere"}, "nowhere: no such file or folder"),
        (["sanity"], {"boxes": "nowhere.jsonl"}, "nowhere.jsonl: cannot be read"),
        (["sanity"], {"objects": "nowhere.txt"}, "nowhere.txt: cannot read this table of object words"),
        (["sanity"], {"limit": 0}, "--limit"),
    ],
)
def test_a_mistake_is_one_line_before_a_model_is_loaded(audit, monkeypatch, asked, changed, complaint):
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    assert complaint in audit(*asked, **changed).complaint


def test_an_unknown_split_names_those_there_are(audit, scenes):
    rows = (scenes / "captions.csv").read_text().replace(",test", ",train")
    (scenes / "captions.csv").write_text(rows)
    assert "no images in split 'test'; splits there are: train (4), dev (4)" in audit("sanity").complaint


def test_a_place_that_cannot_be_written_is_told_first(audit, monkeypatch, tmp_path):
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    (tmp_path / "file").write_text("")
    assert "--out" in audit("sanity", out=tmp_path / "file").complaint
    assert "--cache" in audit("sanity", cache=tmp_path / "file" / "cache").complaint
    assert not (tmp_path / "out").exists()


def test_a_model_that_is_not_there_is_one_line(audit):
    assert "no model at nowhere" in audit("sanity", model="nowhere").complaint


def test_what_is_left_out_is_told_on_stderr_and_the_rest_goes_on(audit, scenes, tmp_path):
    (scenes / "boxes.jsonl").unlink()
    done = audit("localisation")
    assert done.code == 0
    assert done.out.strip() == ""
    (line,) = done.err.splitlines()
    assert line.startswith("saywhy: localisation is left out: ")
    assert "has no boxes" in line
    assert results(tmp_path / "out")["localisation"]["not_applicable"] in line


def test_boxes_may_stand_elsewhere(audit, scenes, tmp_path):
    boxes = shutil.move(scenes / "boxes.jsonl", tmp_path / "elsewhere.jsonl")
    assert audit("localisation", boxes=boxes).code == 0
    assert results(tmp_path / "out")["localisation"]["words"] > 0


def test_a_broken_image_is_named_and_the_exit_code_tells(audit, scenes, tmp_path):
    (scenes / "pink.png").write_text("not an image")
    done = audit("hallucination")
    assert done.code == 2
    (line,) = done.err.splitlines()
    assert "pink.png" in line
    told = results(tmp_path / "out")["hallucination"]
    assert (told["images"], told["broken"]) == (2, 1)


def test_a_risk_is_fitted_on_dev_and_kept_only_if_asked(audit, model, tmp_path):
    done = audit("risk")
    assert done.code == 0, done.err
    assert not (model / "risk.json").exists()
    told = results(tmp_path / "out")["risk"]
    assert told["fitted_on"]["split"] == "dev"
    done = audit("risk", "--save-risk", fit="dev")
    assert done.code == 0, done.err
    assert f"the risk is kept in {model / 'risk.json'}" in done.err
    assert Risk.read(model).as_dict() == {**told["fitted"], **_tuples(told["fitted"])}


def _tuples(fitted: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(fitted[name]) for name in ("facts", "mean", "scale", "weights")}


def test_a_saved_risk_is_what_caption_tells_and_what_the_next_audit_tests(run, audit, model, scenes, tmp_path):
    assert audit("risk", "--save-risk").code == 0
    first = results(tmp_path / "out")["risk"]
    said = run("caption", scenes / "grey.png", "--model", model, "--risk", "--json", "--device", "cpu")
    assert (said.code, said.err) == (0, "")
    words = json.loads(said.out)["words"]
    assert [word["risk"] is not None for word in words] == [word["word"] in audit_data.OBJECTS for word in words]
    plain = run("caption", scenes / "grey.png", "--model", model, "--risk", "--device", "cpu").out
    wanted = [w["word"] + (f" ({round(100 * w['risk'])}%)" if w["risk"] is not None else "") for w in words]
    assert plain.strip() == f"{scenes / 'grey.png'}: {' '.join(wanted)}"
    assert audit("risk").code == 0
    again = results(tmp_path / "out")["risk"]
    assert again["fitted"] == first["fitted"]
    assert again["auc"] == first["auc"]
    assert "--save-risk has nothing to save" in audit("risk", "--save-risk").complaint


def test_a_table_of_words_is_kept_with_the_risk_that_was_fitted_with_it(run, audit, model, scenes, tmp_path):
    table = tmp_path / "things.txt"
    table.write_text("[animals]\ndog\n[vehicles]\ncar\n[other]\nball\n")
    done = audit("risk", "--save-risk", objects=table)
    assert done.code == 0, done.err
    assert (model / "objects.txt").read_text() == table.read_text()
    said = run("caption", scenes / "pink.png", "--model", model, "--risk", "--json", "--device", "cpu")
    words = json.loads(said.out)["words"]
    assert {word["word"] for word in words if word["risk"] is not None} <= {"dog", "dogs", "car", "ball"}
    before = (model / "risk.json").read_text()
    again = audit("risk", "--save-risk", fit="dev", objects=model / "objects.txt")
    assert again.code == 0, again.err
    assert (model / "risk.json").read_text() == before


def test_a_risk_that_could_not_be_fitted_is_not_kept_and_the_exit_code_tells(audit, model, monkeypatch):
    monkeypatch.setattr(risk, "FEWEST", 1000)
    done = audit("risk", "--save-risk")
    assert done.code == 2
    assert "too few to fit a risk to" in done.err
    assert not (model / "risk.json").exists()


def test_a_model_that_may_not_be_written_to_is_told_before_it_is_loaded(audit, model, monkeypatch):
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    usual = os.access
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != model and usual(path, mode))  # of root, too
    complaint = audit("risk", "--save-risk").complaint
    assert complaint.startswith(f"saywhy: --save-risk {model}: cannot be written")


def test_caption_risk_of_a_model_without_one_is_one_line(run, model, scenes):
    done = run("caption", scenes / "grey.png", "--model", model, "--risk", "--device", "cpu")
    assert "has no risk.json" in done.complaint


def test_explain_tells_that_a_damaged_risk_is_left_out_and_goes_on(run, model, scenes, tmp_path):
    (model / "risk.json").write_text("{}")
    asked = ("--model", model, "--method", "attention", "--device", "cpu", "--out", tmp_path / "why")
    done = run("explain", scenes / "grey.png", *asked)
    assert (done.code, len(done.err.splitlines())) == (0, 1)
    assert done.err.startswith(f"saywhy: no risks are told: {model / 'risk.json'}")
    assert (tmp_path / "why" / "report.html").is_file()


def start(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "saywhy", *map(str, arguments)]
    told = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, env=told, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_an_audit_killed_with_sigkill_goes_on_and_ends_with_the_numbers_of_one_left_alone(
    run, audited, tmp_path, monkeypatch
):
    scenes = {name: ("test", said, boxes) for name, (_, said, boxes) in [*audit_data.SCENES.items()][:6]}
    data = audit_data.write_data(tmp_path / "data", scenes)
    asked = ("audit", "hallucination", "--data", data, "--model", audited, "--workers", 0, "--device", "cpu")
    killed = start(*asked, "--out", tmp_path / "killed")
    deadline = time.monotonic() + 120
    while not list((tmp_path / "killed").glob("cache/cases-*/*.npz")):
        assert killed.poll() is None, killed.communicate()[0]
        assert time.monotonic() < deadline, "the audit did not get anywhere"
        time.sleep(0.005)
    killed.send_signal(signal.SIGKILL)
    assert killed.wait() == -signal.SIGKILL
    killed.communicate()
    there = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("cache/cases-*/*.npz")}
    assert 0 < len(there) < 6
    assert not list((tmp_path / "killed").glob("audit-*.json"))
    assert run(*asked, "--out", tmp_path / "killed").code == 0
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").glob("cache/cases-*/*.npz")}
    assert len(after) == 6
    assert {path: after[path] for path in there} == there, "what was known is not found out again"
    assert run(*asked, "--out", tmp_path / "alone").code == 0
    one, other = (results(tmp_path / name)["hallucination"] for name in ("killed", "alone"))
    assert numbers(one) == numbers(other)
