"""`saywhy evaluate` scores a model or a file of captions, and records what the scores depend on."""

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

from saywhy.cli.caption_files import read_captions
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.metrics import MeteorScore, MetricUnavailable, SpiceScore

KEYS = ["bleu", "bleu_no_penalty", "meteor", "rouge_l", "cider", "spice", "n", "signature", "notes"]
SCORE = sys.modules["saywhy.metrics.score"]  # the package replaces the module by its function of the same name
NUMBERS = ("bleu", "bleu_no_penalty", "rouge_l", "cider", "n")


@pytest.fixture
def evaluate(run, data: Path):
    """Run `saywhy evaluate --json` and return the object it prints."""

    def call(*options: object) -> dict[str, Any]:
        result = run("evaluate", "--data", data, "--no-meteor", "--json", "--workers", 0, *options)
        assert result.code == 0, result.err
        assert result.out.count("\n") == 1
        return json.loads(result.out)

    return call


def numbers(scores: dict[str, Any]) -> dict[str, Any]:
    return {name: scores[name] for name in NUMBERS}


def test_json_is_one_object_with_all_scores_in_percent(evaluate, model: Path) -> None:
    scores = evaluate("--model", model)
    assert list(scores) == KEYS
    assert (len(scores["bleu"]), len(scores["bleu_no_penalty"]), scores["n"]) == (4, 4, 3)
    assert 1 < scores["bleu"][0] <= 100, "a fraction, not percent?"
    assert 1 < scores["rouge_l"] <= 100
    assert scores["meteor"] is None
    for part in ("tok:ptb", "refs:2", "n:3", "split:data/test", "decode:beam2,length0.7,max6"):
        assert part in scores["signature"].split("|")


def test_limit_scores_evenly_spaced_images_only(evaluate, model: Path, tmp_path: Path) -> None:
    all_captions, two = tmp_path / "all.jsonl", tmp_path / "two.jsonl"
    evaluate("--model", model, "--save-captions", all_captions)
    scores = evaluate("--model", model, "--limit", 2, "--save-captions", two)
    assert (scores["n"], "n:2" in scores["signature"].split("|")) == (2, True)
    assert set(two.read_text().splitlines()) < set(all_captions.read_text().splitlines())
    assert numbers(evaluate("--captions", all_captions, "--limit", 2)) == numbers(scores)


def test_decoding_options_are_in_the_signature(evaluate, model: Path) -> None:
    assert (
        "decode:beam4,length0.2,max6" in evaluate("--model", model, "--beam", 4, "--length-penalty", 0.2)["signature"]
    )


def test_saved_captions_have_the_same_scores(evaluate, model: Path, tmp_path: Path) -> None:
    saved = tmp_path / "new" / "captions.jsonl"
    scores = evaluate("--model", model, "--save-captions", saved)
    rescored = evaluate("--captions", saved)
    assert numbers(rescored) == numbers(scores)
    assert "decode:given" in rescored["signature"]
    for line in saved.read_text().splitlines():
        row = json.loads(line)
        assert list(row) == ["image", "caption", "words"]
        assert row["caption"] == " ".join(row["words"])


def test_captions_printed_by_caption_have_the_same_scores(
    run, evaluate, model: Path, data: Path, tmp_path: Path
) -> None:
    printed = tmp_path / "printed.jsonl"
    printed.write_text(run("caption", data, "--model", model, "--json").out)
    assert numbers(evaluate("--captions", printed)) == numbers(evaluate("--model", model))


def test_captions_without_words_are_tokenised(evaluate, tmp_path: Path) -> None:
    captions = tmp_path / "captions.jsonl"
    rows = [{"image": f"{n}.png", "caption": f"Word{n % 3} word{n % 2}, word4."} for n in (6, 7, 8)]
    captions.write_text("\n\n".join(map(json.dumps, rows)))
    assert evaluate("--captions", captions)["bleu"][:3] == pytest.approx([100] * 3)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"image": "6.png", "caption": "a"}'], "no caption for 2 of 3 images, such as 7.png"),
        (['{"image": "6.png", "caption": "a"}', '{"image": "x/6.png", "caption": "b"}'], "two captions for 6.png"),
        (['{"image": "6.png", "caption": "a"}', "a dog"], "line 2: malformed JSON"),
        (['{"image": "6.png", "caption": "a"}', "{}"], 'line 2: not a JSON object with "image"'),
        (['{"image": "6.png"}'], "entry 1: not a JSON object"),
        (['{"image": "6.png", "caption": 5}'], "entry 1: not a JSON object"),
        (['{"image": "6.png", "words": [{"w": 5}]}'], "entry 1: not a JSON object"),
        ([r'{"image": "6.png", "caption": "a \ud800 dog"}'], "entry 1: half of a surrogate pair"),
        (['{"image": ["6.png"], "caption": "a"}'], "entry 1: not a JSON object"),
        (['[{"image_id": 6, "caption": "a"}, 7]'], "entry 2: not a JSON object"),
        (['{"images": [{"id": 6}], "annotations": []}'], 'an entry of "images" has no "id" or no "file_name"'),
        (['{"annotations": 6}'], "entry 1: not a JSON object"),
        (["[]"], "no caption for 3 of 3 images, such as 6.png"),
        ([""], "no caption for 3 of 3 images, such as 6.png"),
    ],
)
def test_captions_file_that_does_not_match_the_dataset_is_refused(
    run, data: Path, tmp_path: Path, lines: list[str], message: str
) -> None:
    captions = tmp_path / "captions.jsonl"
    captions.write_text("\n".join(lines))
    assert message in run("evaluate", "--data", data, "--captions", captions).error


COCO_FORMS: dict[str, Any] = {
    "results": [{"image_id": n, "caption": f"Word{n % 3} word{n % 2}, word4."} for n in (6, 7, 8, 9)],
    "annotations": {
        "images": [{"id": 100 + n, "file_name": f"{n}.png"} for n in (6, 7, 8)],
        "annotations": [{"id": 1, "image_id": 100 + n, "caption": f"word{n % 3} word{n % 2} word4"} for n in (6, 7, 8)],
    },
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("form", COCO_FORMS)
def test_captions_in_the_forms_of_coco_are_recognised(evaluate, tmp_path: Path, form: str, indent) -> None:
    captions = tmp_path / "captions.json"
    captions.write_text(json.dumps(COCO_FORMS[form], indent=indent))
    assert evaluate("--captions", captions)["bleu"][:3] == pytest.approx([100] * 3)


def test_image_ids_of_coco_match_padded_file_names(data: Path, tmp_path: Path) -> None:
    names = ("COCO_val2014_000000000042.jpg", "000000000007.jpg", "9.jpg", "flickr_12a.jpg")
    images = tuple(CaptionedImage(name, data / name, ("a dog",), "test") for name in names)
    rows = [{"image_id": id_, "caption": "a dog"} for id_ in (42, "7", 9, "flickr_12a.jpg")]
    (tmp_path / "results.json").write_text(json.dumps(rows))
    assert list(read_captions(tmp_path / "results.json", Dataset("mine", data, images))) == list(names)


@pytest.mark.parametrize("layout", ["file", "folder"])
def test_dataset_in_the_annotation_form_of_coco_is_recognised(run, model: Path, data: Path, layout: str) -> None:
    (data / "captions.csv").unlink()
    contents = {
        "images": [{"id": n, "file_name": f"{n}.png"} for n in range(9)],
        "annotations": [{"id": n, "image_id": n, "caption": "word1 word2"} for n in range(9)],
    }
    (data / "captions.json").write_text(json.dumps(contents))
    path = data if layout == "folder" else data / "captions.json"
    result = run("data", "check", path, "--min-count", 1)
    assert "9 images, 9 captions" in result.out


def test_captions_file_and_model_exclude_one_another(run, data: Path, model: Path, tmp_path: Path) -> None:
    arguments = ("--captions", tmp_path / "captions.jsonl", "--model", model)
    assert "one or the other" in run("evaluate", "--data", data, *arguments).error
    assert "cannot be read (No such file" in run("evaluate", "--data", data, *arguments[:2]).error


def test_unreadable_image_is_skipped_with_a_note(evaluate, model: Path, data: Path, tmp_path: Path) -> None:
    (data / "7.png").write_text("not an image")
    out = tmp_path / "result.json"
    scores = evaluate("--model", model, "--out", out)
    assert scores["n"] == 2
    assert scores["notes"][0].startswith("skipped 1 unreadable images, the first: 7.png: not an image")
    assert str(tmp_path) not in out.read_text()


def test_results_file_has_scores_and_settings_and_no_path(evaluate, model: Path, tmp_path: Path) -> None:
    trained = {
        "recipe": {"seed": 3, "encoder": {"weights": str(tmp_path / "vgg16.safetensors")}},
        "unreadable": [f"{tmp_path / 'x.jpg'}: not an image; save it as JPEG or PNG"],
    }
    (model / "run.json").write_text(json.dumps(trained))
    out = tmp_path / "results" / "tiny.json"
    try:
        scores = evaluate("--model", model, "--out", out)
    finally:
        (model / "run.json").unlink()
    results = json.loads(out.read_text())
    assert [results[key] for key in ("model", "data", "split")] == ["tiny", "data", "test"]
    assert results["scores"] == {name: value for name, value in scores.items() if name != "notes"}
    assert results["training"] == {
        "recipe": {"seed": 3, "encoder": {"weights": "vgg16.safetensors"}},
        "unreadable": ["x.jpg: not an image; save it as JPEG or PNG"],
    }
    assert {"device", "threads", "versions", "commit", "captions_per_second"} <= set(results)
    assert not re.search(r'"/|[A-Z]:\\', out.read_text()), "an absolute path"
    assert [path.name for path in out.parent.iterdir()] == ["tiny.json"], "a temporary file is left"


def test_results_of_a_captions_file_name_the_file_without_its_folder(evaluate, model: Path, tmp_path: Path) -> None:
    saved, out = tmp_path / "captions.jsonl", tmp_path / "result.json"
    evaluate("--model", model, "--save-captions", saved)
    evaluate("--captions", saved, "--out", out)
    assert json.loads(out.read_text())["model"] == "captions.jsonl"
    assert str(tmp_path) not in out.read_text()


def test_results_file_has_attention_statistics(evaluate, model: Path, tmp_path: Path) -> None:
    saved, out, rescored = tmp_path / "captions.jsonl", tmp_path / "result.json", tmp_path / "rescored.json"
    evaluate("--model", model, "--save-captions", saved, "--out", out)
    statistics = json.loads(out.read_text())["attention"]
    captions = [json.loads(line)["words"] for line in saved.read_text().splitlines()]
    assert statistics["words"] == sum(map(len, captions))
    assert statistics["features"] == 4
    assert statistics["entropy"] == pytest.approx(statistics["share"] * math.log(4))
    assert 0 < statistics["share"] <= 1
    assert statistics["beta_admits"] == "image"
    evaluate("--captions", saved, "--out", rescored)
    assert "attention" not in json.loads(rescored.read_text())


@pytest.fixture
def measured(evaluate, model: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A model's captions, and the results file of their evaluation without METEOR."""
    captions, results = tmp_path / "captions.jsonl", tmp_path / "result.json"
    evaluate("--model", model, "--save-captions", captions, "--out", results)
    return captions, results


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> None:
    """METEOR is 25 percent, with or without Java."""
    monkeypatch.setattr(SCORE, "meteor_score", lambda words, groups: MeteorScore(0.25, np.empty(0)))
    monkeypatch.setattr(SCORE, "java_version", lambda: "17")


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def test_rescoring_adds_meteor_and_changes_nothing_else(run, java, measured, data: Path) -> None:
    captions, results = measured
    edited(results, lambda table: table.update(device="a GPU", training={"shared_gpu": True}, mine=[1, 2]))
    before = json.loads(results.read_text())
    result = run("evaluate", "--data", data, "--captions", captions, "--rescore", results, "--json")
    assert result.code == 0, result.err
    after = json.loads(results.read_text())
    assert (before["scores"]["meteor"], after["scores"]["meteor"]) == (None, 25)
    assert numbers(after["scores"]) == numbers(before["scores"])
    assert after["scores"]["signature"] == before["scores"]["signature"].replace(
        "|case:lower|", "|case:lower|meteor:1.5|java:17|"
    )
    assert "decode:beam2,length0.7,max6" in after["scores"]["signature"]
    assert {**after, "scores": None} == {**before, "scores": None}
    assert list(after) == list(before)
    assert json.loads(result.out)["meteor"] == 25


def nudge(amount: float) -> Callable[[dict[str, Any]], None]:
    return lambda table: table["scores"].update(cider=table["scores"]["cider"] + amount)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.update(data="coco"), "its data is coco, and these captions are scored on data"),
        (lambda table: table.update(split="dev"), "its split is dev, and these captions are scored on test"),
        (nudge(0.02), "its CIDEr is"),
        (nudge(-0.02), "its CIDEr is"),
        (nudge(float("nan")), "its CIDEr is nan"),
        (lambda table: table["scores"]["bleu"].__setitem__(2, 99.0), "its BLEU-3 is 99.00, and that of these captions"),
        (lambda table: table["scores"]["bleu_no_penalty"].__setitem__(0, 1.0), "its BLEU-1 without penalty is 1.00"),
        (lambda table: table["scores"].update(spice=20.0), "has SPICE, which was not computed now (add --spice)"),
        (lambda table: table.pop("decoding"), "not a results file"),
        (lambda table: table["scores"].update(cider=None), "not a results file"),
        (lambda table: table.update(scores=[]), "not a results file"),
    ],
)
def test_rescoring_other_captions_is_refused_and_the_file_is_unchanged(
    run, java, measured, data: Path, change, message: str
) -> None:
    captions, results = measured
    edited(results, change)
    before = results.read_bytes()
    assert message in run("evaluate", "--data", data, "--captions", captions, "--rescore", results).error
    assert results.read_bytes() == before


def test_spice_is_computed_and_mentioned_only_with_its_option(run, model: Path, data: Path, monkeypatch) -> None:
    def unavailable(words: object, groups: object) -> None:
        raise MetricUnavailable("SPICE needs a jar")

    monkeypatch.setattr(SCORE, "spice_score", unavailable)
    command = ("evaluate", "--data", data, "--model", model, "--no-meteor", "--workers", 0)
    plain, spice = run(*command), run(*command, "--spice")
    assert (plain.code, plain.err) == (0, "")
    assert "SPICE" not in plain.out
    assert spice.code == 0
    assert "SPICE needs a jar" in spice.err
    monkeypatch.setattr(SCORE, "spice_score", lambda words, groups: SpiceScore(0.2, np.empty(0)))
    monkeypatch.setattr(SCORE, "java_version", lambda: "17")
    assert json.loads(run(*command, "--spice", "--json").out)["spice"] == 20
    assert "20.0" in run(*command, "--spice").out


@pytest.fixture
def animals(tmp_path: Path) -> tuple[Path, Path]:
    """Three images of cats, one with a box of a person, and captions for them."""
    folder, captions = tmp_path / "animals", tmp_path / "animals.jsonl"
    folder.mkdir()
    names = [f"{number}.png" for number in range(3)]
    for name in names:
        Image.new("RGB", (32, 32)).save(folder / name)
    rows = "".join(f"{name},a cat on a bed,test\n" * 3 for name in names)
    (folder / "captions.csv").write_text("image,caption,split\n" + rows)
    texts = ("a man on a bed", "a woman", "a kitten")
    lines = [json.dumps({"image": name, "caption": text}) for name, text in zip(names, texts, strict=True)]
    captions.write_text("\n".join(lines))
    return folder, captions


def write_boxes(folder: Path) -> None:
    """COCO's instances: a person in image 0."""
    images = [{"id": n, "file_name": f"{n}.png", "width": 32, "height": 32} for n in range(3)]
    categories = [{"id": 7, "name": "person", "supercategory": "person"}]
    boxes = [{"image_id": 0, "category_id": 7, "bbox": [1, 1, 9, 9]}]
    (folder / "instances_test2017.json").write_text(
        json.dumps({"images": images, "categories": categories, "annotations": boxes})
    )


@pytest.mark.parametrize("boxes", [False, True])
def test_objects_are_in_the_table_the_json_and_the_results_file(run, animals, tmp_path: Path, boxes: bool) -> None:
    folder, captions = animals
    if boxes:
        write_boxes(folder)
    out = tmp_path / "out.json"
    command = ("evaluate", "--data", folder, "--captions", captions, "--no-meteor", "--objects")
    printed = run(*command, "--out", out)
    assert printed.code == 0, printed.err
    objects = json.loads(run(*command, "--json").out)["objects"]
    assert objects == json.loads(out.read_text())["objects"]
    assert objects["by_category"]["cat"] == {"percent": pytest.approx(100 / 3), "count": 1, "of": 3}
    assert objects["recall"] == {"percent": pytest.approx(100 / 3), "count": 2, "of": 6}
    persons = (
        {"percent": 50, "count": 1, "of": 2} if boxes else {"percent": pytest.approx(200 / 3), "count": 2, "of": 3}
    )
    assert objects["invented_persons"] == {**persons, "boxes": boxes}
    cells = [line.split() for line in printed.out.splitlines()]
    assert ["cat", "33.3", "1", "3"] in cells
    assert ["object", "words", "33.3", "2", "6"] in cells
    assert "objects" not in json.loads(run(*command[:-1], "--json").out)


def test_objects_can_be_added_to_a_results_file(run, animals, tmp_path: Path) -> None:
    folder, captions = animals
    out = tmp_path / "out.json"
    command = ("evaluate", "--data", folder, "--captions", captions, "--no-meteor")
    assert run(*command, "--out", out).code == 0
    before = json.loads(out.read_text())
    assert run(*command, "--rescore", out, "--objects").code == 0
    after = json.loads(out.read_text())
    assert after.pop("objects")["recall"]["of"] == 6
    assert after == before


def test_a_damaged_file_of_boxes_is_found_before_captioning(run, no_model, animals) -> None:
    folder, _ = animals
    (folder / "instances_test2017.json").write_text("{}")
    error = run("evaluate", "--data", folder, "--no-meteor", "--objects").error
    assert "instances_test2017.json: unexpected contents" in error


HALLUCINATION = {
    "chair": {
        "sentence": {"percent": pytest.approx(100 / 3), "count": 1, "of": 3},
        "instance": {"percent": 25, "count": 1, "of": 4},
        "objects": "COCO boxes and references",
    },
    "bad_endings": {"percent": 0, "count": 0, "of": 3},
    "reference_bad_endings": {"percent": 0, "count": 0, "of": 9},
}


@pytest.fixture
def with_train(animals) -> tuple[Path, Path]:
    """The same with boxes and a train split of two captions."""
    folder, captions = animals
    write_boxes(folder)
    Image.new("RGB", (32, 32)).save(folder / "train.png")
    with (folder / "captions.csv").open("a") as file:
        file.write("train.png,two cats and a cat on a bed,train\ntrain.png,a dog on a bed,train\n")
    return folder, captions


def test_hallucination_is_in_the_table_the_json_and_the_results_file(run, with_train, tmp_path: Path) -> None:
    folder, captions = with_train
    out = tmp_path / "out.json"
    command = ("evaluate", "--data", folder, "--captions", captions, "--no-meteor", "--hallucination")
    printed = run(*command, "--out", out)
    assert (printed.code, printed.err) == (0, "")
    scores = json.loads(run(*command, "--json").out)
    found = scores["hallucination"]
    assert found == json.loads(out.read_text())["hallucination"]
    words = found.pop("frequent_words")
    assert found == HALLUCINATION, "image 0 has a person's box; the woman of image 1 is made up"
    assert [(word["word"], word["in_training"]) for word in words["words"]] == [("bed", 2), ("cat", 2), ("dog", 1)]
    assert [word["recall"] for word in words["words"]] == [pytest.approx(100 / 3), 0, None]
    assert (words["map"], words["recall"]) == (100, pytest.approx(100 / 6))
    cells = [line.split() for line in printed.out.splitlines()]
    assert ["CHAIR-s", "33.3", "1", "3"] in cells
    assert ["CHAIR-i", "25.0", "1", "4"] in cells
    assert ["bad", "endings", "0.0", "0", "3"] in cells
    assert ["mean", "(mAP)", "100.0", "16.7", "25.0"] in cells
    assert ["cat", "–", "0.0", "0.0", "2", "0"] in cells
    assert "hallucination" not in json.loads(run(*command[:-1], "--json").out)
    assert "objects" not in scores


def test_hallucination_can_be_added_to_a_results_file(run, with_train, tmp_path: Path) -> None:
    folder, captions = with_train
    out = tmp_path / "out.json"
    command = ("evaluate", "--data", folder, "--captions", captions, "--no-meteor")
    assert run(*command, "--objects", "--out", out).code == 0
    before = json.loads(out.read_text())
    assert run(*command, "--rescore", out, "--hallucination").code == 0
    after = json.loads(out.read_text())
    assert after.pop("hallucination")["chair"] == HALLUCINATION["chair"]
    assert after == before


def test_without_a_train_split_the_frequent_words_are_left_out_with_a_note(run, animals) -> None:
    folder, captions = animals
    write_boxes(folder)
    command = ("evaluate", "--data", folder, "--captions", captions, "--no-meteor", "--hallucination")
    printed = run(*command)
    assert "mAP left out" in printed.err
    assert "no train split" in printed.err
    assert "CHAIR-s" in printed.out
    scores = json.loads(run(*command, "--json").out)
    assert scores["hallucination"] == {**HALLUCINATION, "frequent_words": None}
    assert any("no train split" in note for note in scores["notes"])


def test_a_data_set_without_boxes_is_refused_before_captioning(run, no_model, animals) -> None:
    folder, _ = animals
    error = run("evaluate", "--data", folder, "--no-meteor", "--hallucination").error
    assert "no boxes, which CHAIR needs; put COCO's instances_*.json or the boxes.jsonl.gz" in error


def test_boxes_of_other_images_are_refused_before_captioning(run, no_model, animals) -> None:
    folder, _ = animals
    write_boxes(folder)
    contents = json.loads((folder / "instances_test2017.json").read_text())
    contents["images"] = contents["images"][:1]
    (folder / "instances_test2017.json").write_text(json.dumps(contents))
    error = run("evaluate", "--data", folder, "--no-meteor", "--hallucination").error
    assert "does not list 2 of 3 images, such as 1.png" in error


def test_hallucination_is_measured_on_images_that_could_be_read(run, model: Path, with_train) -> None:
    folder, _ = with_train
    (folder / "1.png").write_bytes(b"not an image")
    command = ("evaluate", "--data", folder, "--no-meteor", "--hallucination", "--json", "--workers", 0)
    result = run(*command, "--model", model)
    assert json.loads(result.out)["hallucination"]["chair"]["sentence"]["of"] == 2, result.err


def test_rescoring_tolerates_a_difference_of_rounding(run, java, measured, data: Path) -> None:
    captions, results = measured
    edited(results, nudge(0.009))
    assert run("evaluate", "--data", data, "--captions", captions, "--rescore", results).code == 0


def test_rescoring_needs_the_captions_of_the_results_file(run, measured, model: Path, data: Path) -> None:
    captions, results = measured
    before = results.read_bytes()
    rows = [json.loads(line) for line in captions.read_text().splitlines()]
    captions.write_text("\n".join(json.dumps({**row, "words": ["word4", "word4"]}) for row in rows))
    command = ("evaluate", "--data", data, "--no-meteor", "--rescore")
    assert "not the captions of this file" in run(*command, results, "--captions", captions).error
    assert "cannot be read (No such file" in run(*command, data / "gone.json", "--captions", captions).error
    for options in ((), ("--model", model), ("--captions", captions, "--out", data / "new.json")):
        assert "--rescore needs --captions FILE" in run(*command, results, *options).error
    assert results.read_bytes() == before
    assert not (data / "new.json").exists()


def test_rescoring_without_meteor_does_not_lose_it(run, java, measured, data: Path) -> None:
    captions, results = measured
    command = ("evaluate", "--data", data, "--captions", captions, "--rescore", results)
    assert run(*command).code == 0
    assert "has METEOR, which was not computed now" in run(*command, "--no-meteor").error
    assert json.loads(results.read_text())["scores"]["meteor"] == 25


def test_table_shows_the_scores_of_the_json(run, evaluate, model: Path, data: Path) -> None:
    scores = evaluate("--model", model)
    printed = run("evaluate", "--data", data, "--no-meteor", "--workers", 0, "--model", model).out
    for value in (*scores["bleu"], *scores["bleu_no_penalty"], scores["rouge_l"], scores["cider"]):
        assert f"{value:.1f}" in printed
    assert printed.splitlines()[0] == "tiny on data test, 3 images"
    assert printed.splitlines()[-1] == scores["signature"]


def test_results_command_writes_a_page_of_results_files(run, evaluate, model: Path, tmp_path: Path) -> None:
    assert "no results" in run("results", tmp_path / "results").error
    scores = evaluate("--model", model, "--out", tmp_path / "results" / "tiny.json")
    printed = run("results", tmp_path / "results")
    assert printed.code == 0
    assert "tiny" in printed.out
    assert f"{scores['bleu'][0]:.1f}" in printed.out
    assert run("results", tmp_path / "results", "--out", tmp_path / "page.md").out == ""
    assert (tmp_path / "page.md").read_text() == printed.out.removesuffix("\n")
    assert str(tmp_path / "gone") in run("results", tmp_path / "results", "--recipes", tmp_path / "gone").error


def test_images_can_be_in_another_folder_than_the_captions(run, model: Path, tmp_path: Path) -> None:
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


def test_outputs_overwrite_neither_inputs_nor_one_another(run, no_model, data: Path) -> None:
    names, table = data / "names.txt", data / "captions.csv"
    before = table.read_bytes()
    assert "choose another name" in run("evaluate", "--data", table, "--save-captions", table).error
    assert "choose another name" in run("evaluate", "--data", data, "--out", names, "--save-captions", names).error
    assert "choose another name" in run("evaluate", "--data", data, "--captions", table, "--out", table).error
    assert "choose another name" in run("data", "overlap", table, table, "--out", table).error
    assert table.read_bytes() == before
    assert not names.exists()
