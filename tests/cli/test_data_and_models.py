"""`saywhy data check` finds the defects of a dataset; `saywhy models` lists models, captioners and encoders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from saywhy.captioners import captioners
from saywhy.encoders import encoders
from saywhy.inference.model import SHIPPED


def lines(text: str, label: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in text.splitlines() if line.startswith(label)]


def test_complete_dataset_has_no_problems(run, data: Path) -> None:
    result = run("data", "check", data, "--min-count", 1)
    assert (result.code, result.err) == (0, "")
    assert "9 images, 18 captions" in result.out
    assert lines(result.out, "complete") == ["no problems"]
    assert lines(result.out, "problem") == []


def test_problems_of_a_dataset_are_listed_and_the_exit_code_is_2(run, data: Path) -> None:
    (data / "0.png").unlink()
    (data / "1.png").write_text("not an image")
    (data / "8.png").write_bytes((data / "2.png").read_bytes())
    result = run("data", "check", data)
    assert result.code == 2
    assert lines(result.out, "complete") == []
    (unreadable,) = lines(result.out, "unreadable")
    assert unreadable.startswith("1.png: not an image")
    missing, broken, shared = lines(result.out, "problem")
    assert "(0.png)" in missing
    assert "(1.png)" in broken
    assert "(train/2.png = test/8.png)" in shared


def test_images_in_another_folder_are_found_with_the_option_that_is_suggested(run, data: Path, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for image in data.glob("*.png"):
        image.rename(photos / image.name)
    result = run("data", "check", data)
    assert result.code == 2
    assert "--images" in result.out
    assert run("data", "check", data, "--images", photos).code == 0


def test_names_are_printed_without_markup_or_control_characters(run, data: Path) -> None:
    name = "[red]\x1b[2J0.png"
    (data / "0.png").rename(data / name)
    table = (data / "captions.csv").read_text()
    (data / "captions.csv").write_text(table.replace("0.png", name))
    (data / name).write_text("not an image")
    printed = run("data", "check", data).out
    assert "([red]\\x1b[2J0.png)" in printed
    assert "\x1b" not in printed


def test_report_as_json_is_one_object(run, data: Path) -> None:
    result = run("data", "check", data, "--json", "--no-open")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    report = json.loads(result.out)
    assert (report["ok"], report["images"], report["splits"]) == (True, 9, {"train": 4, "dev": 2, "test": 3})


def test_overlap_lists_near_duplicates_and_writes_their_names(run, data: Path, tmp_path: Path) -> None:
    for number in range(9):  # 0 to 3 are train, 4 and 5 dev, 6 to 8 test
        noise = np.random.default_rng(number % 6).integers(0, 256, (12, 12, 3), np.uint8)
        Image.fromarray(noise).resize((120 - number, 90), Image.Resampling.BICUBIC).save(data / f"{number}.png")
    out = tmp_path / "names.txt"
    result = run("data", "overlap", data, data, "--out", out)
    assert (result.code, result.err) == (0, "")
    assert "3 near-duplicates between 4 images of A and 5 of B; 3 images of A are in one" in result.out
    assert out.read_text() == "0.png\n1.png\n2.png\n"
    report = json.loads(run("data", "overlap", data, data, "--splits-b", "test", "--json").out)
    assert sorted((pair["a"], pair["b"]) for pair in report["pairs"]) == [
        ("0.png", "6.png"),
        ("1.png", "7.png"),
        ("2.png", "8.png"),
    ]
    assert report["names"] == ["0.png", "1.png", "2.png"]


def test_overlap_without_near_duplicates_writes_an_empty_list(run, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "names.txt"
    result = run("data", "overlap", data, data, "--splits-a", "dev", "--splits-b", "test", "--out", out)
    assert result.code == 0
    assert out.read_text() == ""


def test_overlap_of_a_split_that_does_not_exist_is_one_line(run, data: Path) -> None:
    result = run("data", "overlap", data, data, "--splits-a", "tran")
    assert result.code == 2
    assert result.err.startswith("saywhy: unknown split 'tran'")
    assert result.err.count("\n") == 1


def test_overlap_names_images_that_cannot_be_read(run, data: Path) -> None:
    (data / "0.png").write_text("not an image")
    result = run("data", "overlap", data, data)
    assert result.code == 0
    assert "1 images cannot be read and were not compared" in result.err


def test_models_lists_everything_shipped_and_registered(run) -> None:
    result = run("models", "--json")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    tables = json.loads(result.out)
    assert SHIPPED in [row["name"] for row in tables["models"]]
    assert [row["name"] for row in tables["captioners"]] == list(captioners)
    assert [row["name"] for row in tables["encoders"]] == list(encoders)
    about = next(row["about"] for row in tables["captioners"] if row["name"] == "soft-attention")
    assert about.startswith("Show, attend and tell")
    vgg = next(row for row in tables["encoders"] if row["name"] == "vgg16")
    assert vgg["features"] == [14, 14, 512]


def test_models_prints_the_same_as_a_table(run) -> None:
    printed = run("models").out
    for text in (SHIPPED, *captioners, *encoders, "14 × 14 × 512"):
        assert text in printed
