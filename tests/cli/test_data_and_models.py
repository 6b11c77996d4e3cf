"""`saywhy data check` tells whole data sets from broken ones; `saywhy models` lists what there is."""

from __future__ import annotations

import json
from pathlib import Path

from saywhy.captioners import captioners
from saywhy.encoders import encoders


def test_a_whole_data_set_is_called_whole(run, data: Path) -> None:
    result = run("data", "check", data, "--min-count", 1)
    assert (result.code, result.err) == (0, "")
    assert "9 images, 18 captions" in result.out
    assert "nothing to mend" in result.out
    assert "problem" not in result.out


def test_what_is_wrong_with_a_data_set_is_named_and_the_exit_code_is_2(run, data: Path) -> None:
    (data / "0.png").unlink()
    (data / "1.png").write_text("not an image")
    (data / "8.png").write_bytes((data / "2.png").read_bytes())
    result = run("data", "check", data)
    assert result.code == 2
    assert "nothing to mend" not in result.out
    broken = [line for line in result.out.splitlines() if line.startswith("broken")]
    assert [line.split(maxsplit=1)[1].partition("; ")[0] for line in broken] == [
        "1.png: not an image in a format that is known"
    ]
    problems = [line.split(maxsplit=1)[1] for line in result.out.splitlines() if line.startswith("problem")]
    assert problems == [
        "images missing: 1 (0.png)",
        "images that cannot be read: 1 (1.png)",
        "images that are in two splits: 1 (train/2.png = test/8.png)",
    ]


def test_names_with_brackets_are_printed_as_they_are(run, data: Path) -> None:
    (data / "0.png").rename(data / "[red]0.png")
    table = (data / "captions.csv").read_text()
    (data / "captions.csv").write_text(table.replace("0.png", "[red]0.png"))
    (data / "[red]0.png").write_text("not an image")
    assert "([red]0.png)" in run("data", "check", data).out


def test_the_report_as_json_is_one_object(run, data: Path) -> None:
    result = run("data", "check", data, "--json", "--no-open")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    report = json.loads(result.out)
    assert (report["ok"], report["images"], report["splits"]) == (True, 9, {"train": 4, "dev": 2, "test": 3})


def test_models_lists_all_that_is_shipped_and_registered(run) -> None:
    result = run("models", "--json")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    tables = json.loads(result.out)
    assert "soft-attention-flickr8k" in [row["name"] for row in tables["models"]]
    assert [row["name"] for row in tables["captioners"]] == list(captioners)
    assert [row["name"] for row in tables["encoders"]] == list(encoders)
    about = next(row["about"] for row in tables["captioners"] if row["name"] == "soft-attention")
    assert about.startswith("Show, attend and tell")
    vgg = next(row for row in tables["encoders"] if row["name"] == "vgg16")
    assert vgg["annotations"] == [14, 14, 512]


def test_models_prints_the_same_for_people(run) -> None:
    shown = run("models").out
    for name in ("soft-attention-flickr8k", *captioners, *encoders, "14 × 14 × 512"):
        assert name in shown
