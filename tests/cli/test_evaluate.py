"""`saywhy evaluate` scores a model, or a file of captions, and writes down what the scores depend on."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from saywhy.metrics import MeteorScore, MetricUnavailable

KEYS = ["bleu", "bleu_no_penalty", "meteor", "rouge_l", "cider", "spice", "n", "signature", "notes"]
SCORE = sys.modules["saywhy.metrics.score"]  # its package has a function of this name in its place
NUMBERS = ("bleu", "bleu_no_penalty", "rouge_l", "cider", "n")


@pytest.fixture
def evaluate(run, data: Path):
    """Trainer `saywhy evaluate --json` and give its object."""

    def call(*more: object) -> dict[str, Any]:
        result = run("evaluate", "--data", data, "--no-meteor", "--json", "--workers", 0, *more)
        assert result.code == 0, result.err
        assert result.out.count("\n") == 1
        return json.loads(result.out)

    return call


def numbers(scores: dict[str, Any]) -> dict[str, Any]:
    return {name: scores[name] for name in NUMBERS}


def test_json_is_one_object_with_every_score_in_percent(evaluate, model: Path) -> None:
    scores = evaluate("--model", model)
    assert list(scores) == KEYS
    assert (len(scores["bleu"]), len(scores["bleu_no_penalty"]), scores["n"]) == (4, 4, 3)
    assert 1 < scores["bleu"][0] <= 100, "a share, not percent?"
    assert 1 < scores["rouge_l"] <= 100
    assert scores["meteor"] is None
    for part in ("tok:ptb", "refs:2", "n:3", "split:data/test", "decode:beam2,length0.7,max6"):
        assert part in scores["signature"].split("|")


def test_what_the_beam_is_told_reaches_the_signature(evaluate, model: Path) -> None:
    assert "decode:beam4,length0.2,max6" in evaluate("--model", model, "--beam", 4, "--length", 0.2)["signature"]


def test_saved_captions_score_the_same(evaluate, model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "new" / "captions.jsonl"
    scores = evaluate("--model", model, "--save-captions", saved)
    again = evaluate("--captions", saved)
    assert numbers(again) == numbers(scores)
    assert "decode:given" in again["signature"]


def test_what_caption_prints_scores_the_same(run, evaluate, model: Path, data: Path, tmp_path: Path) -> None:
    printed = tmp_path / "printed.jsonl"
    printed.write_text(run("caption", data, "--model", model, "--json").out)
    assert numbers(evaluate("--captions", printed)) == numbers(evaluate("--model", model))


def test_plain_captions_are_cut_into_words(evaluate, tmp_path: Path) -> None:
    captions = tmp_path / "captions.jsonl"
    rows = [{"image": f"{n}.png", "caption": f"Word{n % 3} word{n % 2}, word4."} for n in (6, 7, 8)]
    captions.write_text("\n\n".join(map(json.dumps, rows)))
    assert evaluate("--captions", captions)["bleu"][:3] == pytest.approx([100] * 3)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"image": "6.png", "caption": "a"}'], "no caption for 2 of 3 images, such as 7.png"),
        (['{"image": "6.png", "caption": "a"}', '{"image": "x/6.png", "caption": "b"}'], "two captions for 6.png"),
        (['{"image": "6.png", "caption": "a"}', "a dog"], 'line 2: not a JSON object with "image" and "caption"'),
        (['{"image": "6.png"}'], "line 1: not a JSON object"),
        (['{"image": "6.png", "caption": 5}'], "line 1: not a JSON object"),
        (['{"image": "6.png", "words": [{"w": 5}]}'], "line 1: not a JSON object"),
        (["[]"], "line 1: not a JSON object"),
    ],
)
def test_a_file_of_captions_that_does_not_fit_is_refused(
    run, data: Path, tmp_path: Path, lines: list[str], said: str
) -> None:
    captions = tmp_path / "captions.jsonl"
    captions.write_text("\n".join(lines))
    assert said in run("evaluate", "--data", data, "--captions", captions).complaint


def test_a_file_of_captions_and_a_model_are_not_both_scored(run, data: Path, model: Path, tmp_path: Path) -> None:
    arguments = ("--captions", tmp_path / "captions.jsonl", "--model", model)
    assert "one or the other" in run("evaluate", "--data", data, *arguments).complaint
    assert "cannot be read (No such file" in run("evaluate", "--data", data, *arguments[:2]).complaint


def test_a_broken_image_is_skipped_with_a_note(evaluate, model: Path, data: Path, tmp_path: Path) -> None:
    (data / "7.png").write_text("not an image")
    out = tmp_path / "result.json"
    scores = evaluate("--model", model, "--out", out)
    assert scores["n"] == 2
    assert scores["notes"][0].startswith("skipped 1 broken images, the first: 7.png: not an image")
    assert str(tmp_path) not in out.read_text()


def test_a_results_file_holds_the_scores_and_what_they_depend_on_but_no_path(
    evaluate, model: Path, tmp_path: Path
) -> None:
    trained = {
        "recipe": {"seed": 3, "encoder": {"weights": str(tmp_path / "vgg16.safetensors")}},
        "broken": [f"{tmp_path / 'x.jpg'}: not an image; save it as JPEG or PNG"],
    }
    (model / "run.json").write_text(json.dumps(trained))
    out = tmp_path / "results" / "tiny.json"
    try:
        scores = evaluate("--model", model, "--out", out)
    finally:
        (model / "run.json").unlink()
    found = json.loads(out.read_text())
    assert [found[key] for key in ("model", "data", "split")] == ["tiny", "data", "test"]
    assert found["scores"] == {name: value for name, value in scores.items() if name != "notes"}
    assert found["training"] == {
        "recipe": {"seed": 3, "encoder": {"weights": "vgg16.safetensors"}},
        "broken": ["x.jpg: not an image; save it as JPEG or PNG"],
    }
    assert {"device", "threads", "versions", "commit", "captions_per_second"} <= set(found)
    assert not re.search(r'"/|[A-Z]:\\', out.read_text()), "an absolute path"
    assert [path.name for path in out.parent.iterdir()] == ["tiny.json"], "no part of a file is left"


def test_a_results_file_of_given_captions_names_the_file_only(evaluate, model: Path, tmp_path: Path) -> None:
    saved, out = tmp_path / "captions.jsonl", tmp_path / "result.json"
    evaluate("--model", model, "--save-captions", saved)
    evaluate("--captions", saved, "--out", out)
    assert json.loads(out.read_text())["model"] == "captions.jsonl"
    assert str(tmp_path) not in out.read_text()


def test_a_results_file_says_where_the_model_looked(evaluate, model: Path, tmp_path: Path) -> None:
    saved, out, given = tmp_path / "captions.jsonl", tmp_path / "result.json", tmp_path / "given.json"
    evaluate("--model", model, "--save-captions", saved, "--out", out)
    found = json.loads(out.read_text())["attentions"]
    said = [json.loads(line)["words"] for line in saved.read_text().splitlines()]
    assert found["words"] == sum(map(len, said))
    assert found["places"] == 4
    assert found["entropy"] == pytest.approx(found["share"] * math.log(4))
    assert 0 < found["share"] <= 1
    assert found["gate_admits"] == "image"
    evaluate("--captions", saved, "--out", given)
    assert "attentions" not in json.loads(given.read_text()), "nothing is known of how given captions came about"


@pytest.fixture
def measured(evaluate, model: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Captions of a model and the results file of their evaluation, without METEOR."""
    captions, results = tmp_path / "captions.jsonl", tmp_path / "result.json"
    evaluate("--model", model, "--save-captions", captions, "--out", results)
    return captions, results


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> None:
    """A METEOR of 25 percent, whether there is Java or not."""
    monkeypatch.setattr(SCORE, "meteor_score", lambda words, groups: MeteorScore(0.25, np.empty(0)))
    monkeypatch.setattr(SCORE, "java_version", lambda: "17")


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def test_rescoring_adds_meteor_and_leaves_all_else_as_it_was(run, java, measured, data: Path) -> None:
    captions, results = measured
    edited(results, lambda table: table.update(device="a GPU", training={"shared_gpu": True}, mine=[1, 2]))
    before = json.loads(results.read_text())
    done = run("evaluate", "--data", data, "--captions", captions, "--rescore", results, "--json")
    assert done.code == 0, done.err
    after = json.loads(results.read_text())
    assert (before["scores"]["meteor"], after["scores"]["meteor"]) == (None, 25)
    assert numbers(after["scores"]) == numbers(before["scores"])
    assert after["scores"]["signature"] == before["scores"]["signature"].replace(
        "|case:lower|", "|case:lower|meteor:1.5|java:17|"
    )
    assert "decode:beam2,length0.7,max6" in after["scores"]["signature"]
    assert {**after, "scores": None} == {**before, "scores": None}
    assert list(after) == list(before)
    assert json.loads(done.out)["meteor"] == 25


def nudge(amount: float) -> Callable[[dict[str, Any]], None]:
    return lambda table: table["scores"].update(cider=table["scores"]["cider"] + amount)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table.update(data="coco"), "its data is coco, and these captions are scored on data"),
        (lambda table: table.update(split="dev"), "its split is dev, and these captions are scored on test"),
        (nudge(0.02), "its CIDEr is"),
        (nudge(-0.02), "its CIDEr is"),
        (nudge(float("nan")), "its CIDEr is nan"),
        (lambda table: table["scores"]["bleu"].__setitem__(2, 99.0), "its BLEU-3 is 99.00 and that of these captions"),
        (lambda table: table["scores"]["bleu_no_penalty"].__setitem__(0, 1.0), "its BLEU-1 without penalty is 1.00"),
        (lambda table: table["scores"].update(spice=20.0), "has SPICE, which could not be had now"),
        (lambda table: table.pop("decoding"), "not a results file"),
        (lambda table: table["scores"].update(cider=None), "not a results file"),
        (lambda table: table.update(scores=[]), "not a results file"),
    ],
)
def test_captions_that_are_not_those_of_the_results_file_are_refused_and_it_stays(
    run, java, measured, data: Path, monkeypatch, change, said: str
) -> None:
    monkeypatch.setattr(SCORE, "spice_score", unavailable)
    captions, results = measured
    edited(results, change)
    before = results.read_bytes()
    assert said in run("evaluate", "--data", data, "--captions", captions, "--rescore", results).complaint
    assert results.read_bytes() == before


def unavailable(words: object, groups: object) -> None:
    raise MetricUnavailable("not here")


def test_a_score_within_a_hundredth_is_the_same_score(run, java, measured, data: Path) -> None:
    captions, results = measured
    edited(results, nudge(0.009))
    assert run("evaluate", "--data", data, "--captions", captions, "--rescore", results).code == 0


def test_other_captions_and_missing_files_are_not_rescored(run, measured, model: Path, data: Path) -> None:
    captions, results = measured
    before = results.read_bytes()
    rows = [json.loads(line) for line in captions.read_text().splitlines()]
    captions.write_text("\n".join(json.dumps({**row, "words": ["word4", "word4"]}) for row in rows))
    ask = ("evaluate", "--data", data, "--no-meteor", "--rescore")
    assert "they are not its own" in run(*ask, results, "--captions", captions).complaint
    assert "cannot be read (No such file" in run(*ask, data / "gone.json", "--captions", captions).complaint
    for more in ((), ("--model", model), ("--captions", captions, "--out", data / "new.json")):
        assert "--rescore goes with --captions FILE" in run(*ask, results, *more).complaint
    assert results.read_bytes() == before
    assert not (data / "new.json").exists()


def test_a_meteor_that_is_there_is_not_lost_where_java_is_missing(run, java, measured, data: Path) -> None:
    captions, results = measured
    ask = ("evaluate", "--data", data, "--captions", captions, "--rescore", results)
    assert run(*ask).code == 0
    assert "has METEOR, which could not be had now" in run(*ask, "--no-meteor").complaint
    assert json.loads(results.read_text())["scores"]["meteor"] == 25


def test_the_table_shows_the_scores_of_the_json(run, evaluate, model: Path, data: Path) -> None:
    scores = evaluate("--model", model)
    shown = run("evaluate", "--data", data, "--no-meteor", "--workers", 0, "--model", model).out
    for value in (*scores["bleu"], *scores["bleu_no_penalty"], scores["rouge_l"], scores["cider"]):
        assert f"{value:.1f}" in shown
    assert shown.splitlines()[0] == "tiny on data test, 3 images"
    assert shown.splitlines()[-1] == scores["signature"]


def test_results_makes_a_page_of_results_files(run, evaluate, model: Path, tmp_path: Path) -> None:
    assert "no results" in run("results", tmp_path / "results").complaint
    scores = evaluate("--model", model, "--out", tmp_path / "results" / "tiny.json")
    printed = run("results", tmp_path / "results")
    assert printed.code == 0
    assert "tiny" in printed.out
    assert f"{scores['bleu'][0]:.1f}" in printed.out
    assert run("results", tmp_path / "results", "--out", tmp_path / "page.md").out == ""
    assert (tmp_path / "page.md").read_text() == printed.out.removesuffix("\n")
    assert "no such folder of recipes" in run("results", tmp_path / "results", "--recipes", tmp_path / "gone").complaint


def test_images_may_lie_elsewhere_than_the_captions(run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for number in range(3):
        Image.new("RGB", (32, 32), (80 * number, 90, 90)).save(tmp_path / "photos" / f"{number}.png")
    rows = "".join(f"{number}.png,a wall,test\n" for number in range(3))
    (tmp_path / "mine.csv").write_text("image,caption,split\n" + rows)
    result = run(
        "evaluate", "--data", tmp_path / "mine.csv", "--images", tmp_path / "photos", "--model", model, "--no-meteor",
        "--json", "--workers", 0,
    )  # fmt: skip
    assert result.code == 0, result.err
    assert json.loads(result.out)["n"] == 3
