"""`saywhy compare` puts two models, or files of captions, side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second model of the same vocabulary, whose captions differ from those of `model`."""
    return save(tmp_path_factory.mktemp("models") / "other", "other", seed=5)


def save(folder: Path, name: str, seed: int, words: int = tiny.WORDS) -> Path:
    captioner = tiny.sensitive_captioner(words=words, seed=seed)
    decoding = {"beam": 3, "max_words": 6}
    SavedModel(name, captioner, tiny.vocabulary(words), Preprocessing(tiny.SIDE), decoding).save(folder)
    return folder


@pytest.fixture
def compare(run, data: Path):
    """Run `saywhy compare --json` and return the object it prints."""

    def call(*arguments: object) -> dict[str, Any]:
        result = run("compare", *arguments, "--data", data, "--no-meteor", "--json", "--workers", 0, "--samples", 100)
        assert result.code == 0, result.err
        assert result.out.count("\n") == 1
        return json.loads(result.out)

    return call


def write_captions(path: Path, texts: dict[int, str]) -> Path:
    path.write_text("\n".join(json.dumps({"image": f"{n}.png", "caption": text}) for n, text in texts.items()))
    return path


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Two files of captions of the three test images; the second is right."""
    first = write_captions(tmp_path / "first.jsonl", dict.fromkeys((6, 7, 8), "word5 word5"))
    right = {n: f"word{n % 3} word{n % 2} word4" for n in (6, 7, 8)}
    return first, write_captions(tmp_path / "second.jsonl", right)


def test_scores_of_models_are_those_of_evaluate(run, compare, model: Path, other_model: Path, data: Path) -> None:
    result = compare(model, other_model)
    rows = {row["name"]: row for row in result["scores"]}
    assert (result["a"]["name"], result["b"]["name"], result["n"], result["split"]) == ("tiny", "other", 3, "test")
    assert result["a"]["decoding"].startswith("beam2")
    assert result["b"]["decoding"].startswith("beam3"), "each model decodes with its own settings"
    for side, folder in (("a", model), ("b", other_model)):
        command = ("evaluate", "--data", data, "--model", folder, "--no-meteor", "--json", "--workers", 0)
        scores = json.loads(run(*command).out)
        assert [rows[f"BLEU-{n}"][side] for n in range(1, 5)] == pytest.approx(scores["bleu"])
        assert rows["ROUGE-L"][side] == pytest.approx(scores["rouge_l"])
        assert rows["CIDEr"][side] == pytest.approx(scores["cider"])
    for row in result["scores"]:
        assert row["difference"] == pytest.approx(row["b"] - row["a"])
        assert row["low"] <= row["high"]
        assert row["excludes_zero"] == (row["low"] > 0 or row["high"] < 0)


def test_decoding_options_change_both_models(compare, model: Path, other_model: Path) -> None:
    result = compare(model, other_model, "--beam", 1)
    assert {result[side]["decoding"].split(",")[0] for side in "ab"} == {"beam1"}


def test_files_of_captions_are_compared(compare, files) -> None:
    result = compare(*files)
    rows = {row["name"]: row for row in result["scores"]}
    assert rows["BLEU-1"]["b"] == pytest.approx(100)
    assert rows["BLEU-1"]["verdict"] == "B better"
    assert result["unchanged"] == {"count": 0, "percent": 0}
    assert (result["a"]["words_used"], result["b"]["words_used"]) == (1, 4)
    assert result["words_lost"][0] | {"word": "word5", "a": 3, "b": 0} == result["words_lost"][0]
    assert {row["image"] for row in result["better"]} == {"6.png", "7.png", "8.png"}
    assert result["better"][0]["a"] == "word5 word5"


def test_a_model_and_a_file_of_its_captions_do_not_differ(
    run, compare, model: Path, data: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "saved.jsonl"
    run("evaluate", "--data", data, "--model", model, "--no-meteor", "--workers", 0, "--save-captions", saved)
    result = compare(model, saved)
    assert result["unchanged"]["percent"] == 100
    assert {(row["difference"], row["excludes_zero"]) for row in result["scores"]} == {(0, False)}


def test_the_same_model_twice_is_captioned_once_with_a_note(compare, model: Path, monkeypatch) -> None:
    from saywhy.inference import evaluation

    calls, caption_split = [], evaluation.caption_split
    monkeypatch.setattr(evaluation, "caption_split", lambda *a, **k: calls.append(1) or caption_split(*a, **k))
    result = compare(model, model)
    assert len(calls) == 1
    assert any("every difference is 0" in note for note in result["notes"])


def test_models_of_one_name_are_called_by_their_folders(compare, model: Path, tmp_path: Path) -> None:
    twin = save(tmp_path / "twin", "tiny", seed=9)
    result = compare(model, twin)
    assert (result["a"]["name"], result["b"]["name"]) == (str(model), str(twin))


def test_table_and_files_have_the_numbers_of_the_json(run, compare, files, data: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    command = ("compare", *files, "--data", data, "--no-meteor", "--samples", 100)
    result = run(*command, "--out", out)
    assert result.code == 0
    expected = compare(*files)
    assert json.loads((out / "comparison.json").read_text()) == expected
    page = (out / "comparison.html").read_text()
    assert page.count("data:image/jpeg") == 3
    lines = [line.split() for line in result.out.splitlines()]
    for row in expected["scores"]:
        line = next(line for line in lines if line[: len(row["name"].split())] == row["name"].split())
        assert [f"{row['a']:.1f}", f"{row['b']:.1f}"] == line[len(row["name"].split()) :][:2]
    assert "same caption: 0 of 3 images (0.0 %)" in result.out
    assert result.out.rstrip().endswith("comparison.html")
    assert result.err.count("\n") == 1, "data without boxes: CHAIR by references only"
    assert "CHAIR by references only" in result.err


def test_limit_takes_evenly_spaced_images(compare, files) -> None:
    result = compare(*files, "--limit", 2)
    assert result["n"] == 2
    assert {row["image"] for row in result["better"]} == {"6.png", "7.png"}


def test_top_limits_the_images_in_the_files(compare, files) -> None:
    assert len(compare(*files, "--top", 1)["better"]) == 1
    assert compare(*files, "--top", 0)["better"] == []


def test_unreadable_image_is_left_out_of_both_with_a_note(compare, model: Path, files, data: Path) -> None:
    (data / "7.png").write_text("not an image")
    result = compare(model, files[1])
    assert result["n"] == 2
    assert any(note.startswith("skipped 1 unreadable images, the first: 7.png") for note in result["notes"])


def test_meteor_that_is_not_available_is_a_note(run, files, data: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    result = run("compare", *files, "--data", data, "--samples", 100, "--json")
    assert result.code == 0
    assert any("METEOR left out" in note for note in json.loads(result.out)["notes"])


@pytest.mark.parametrize("boxes", [True, False])
def test_chair_uses_boxes_where_the_data_has_them(run, tmp_path: Path, boxes: bool) -> None:
    folder = tmp_path / "coco"
    folder.mkdir()
    tiny.image_files(folder, 3)
    rows = "".join(f"{n}.png,a cat on a bed,test\n" for n in range(3))
    (folder / "captions.csv").write_text("image,caption,split\n" + rows)
    if boxes:
        instances = {
            "images": [{"id": n, "file_name": f"{n}.png", "width": 80, "height": 70} for n in range(3)],
            "categories": [{"id": 1, "name": "person", "supercategory": "person"}],
            "annotations": [{"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 9, 9], "iscrowd": 0}],
        }
        (folder / "instances_test2017.json").write_text(json.dumps(instances))
    first = write_captions(tmp_path / "a.jsonl", dict.fromkeys(range(3), "a man with a cat"))
    second = write_captions(tmp_path / "b.jsonl", dict.fromkeys(range(3), "a cat"))
    result = run("compare", first, second, "--data", folder, "--no-meteor", "--samples", 100, "--json")
    rows = {row["name"]: row for row in json.loads(result.out)["scores"]}
    assert rows["CHAIR-s"]["a"] == pytest.approx(200 / 3 if boxes else 100)
    assert rows["CHAIR-i"]["a"] == pytest.approx(100 / 3 if boxes else 50)
    assert rows["CHAIR-s"]["b"] == 0
    assert boxes or rows["CHAIR-s"]["verdict"] == "B better"
    assert rows["invented persons"]["a"] == 100
    assert ("CHAIR by references only" in result.err) != boxes
    assert "mAP and rarity left out" in result.err, "the data has no train split"


def test_models_of_different_vocabularies_are_refused_unless_allowed(run, compare, models, data: Path) -> None:
    model, bigger = models
    error = run("compare", model, bigger, "--data", data).error
    assert "different vocabularies" in error
    assert "2 only in" in error
    assert "--any-vocabulary" in error
    assert compare(model, bigger, "--any-vocabulary")["n"] == 3


@pytest.fixture
def models(model: Path, tmp_path: Path) -> tuple[Path, Path]:
    return model, save(tmp_path / "bigger", "bigger", seed=0, words=tiny.WORDS + 2)


def test_mistakes_are_one_line_and_no_model_is_loaded(run, no_model, model, other_model, files, data, tmp_path) -> None:
    def error(*arguments: object) -> str:
        return run("compare", *arguments, "--no-meteor").error

    first, second = files
    gone = tmp_path / "gone"
    assert f"{gone}: no such model and no such file of captions" in error(gone, model, "--data", data)
    assert "no such model and no such file" in error(model, "ada-lstm-coco", "--data", data)
    assert "is not a saywhy model" in error(model, tmp_path, "--data", data)
    assert "no such file or folder" in error(model, other_model, "--data", gone)
    assert "unknown split 'tset'" in error(model, other_model, "--data", data, "--split", "tset")
    partial = write_captions(tmp_path / "partial.jsonl", {6: "word1"})
    assert "no caption for 2 of 3 images, such as 7.png" in error(partial, model, "--data", data)
    assert "leave them out" in error(first, second, "--data", data, "--beam", 3)
    assert "leave them out" in error(first, second, "--data", data, "--style", "coco")
    assert "beam = 3000" in error(model, other_model, "--data", data, "--beam", 3000)
    assert "should be a folder" in error(first, second, "--data", data, "--out", first)
    assert "'--limit'" in error(first, second, "--data", data, "--limit", 0)
    assert "Missing argument" in error(first, "--data", data)
    (data / "captions.csv").write_text("image,caption,split\n0.png,word1,train\n")
    assert "no images in split 'test'" in error(first, second, "--data", data)


def test_style_that_a_model_does_not_have_is_one_line(run, model: Path, other_model: Path, data: Path) -> None:
    assert "unknown style 'coco'" in run("compare", model, other_model, "--data", data, "--style", "coco").one_line(2)
