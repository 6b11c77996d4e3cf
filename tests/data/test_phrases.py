"""Phrases and their boxes, from Flickr30k Entities and from COCO's instances."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from saywhy.data.phrases import Phrases, find_phrases
from saywhy.data.region_files import read_regions
from saywhy.errors import UserError

DOG = {"phrase": "The man's dog,", "type": "animals", "boxes": [[10, 20, 60, 40], [0, 0, 100, 50]]}
ROW = {"image": "a.jpg", "width": 100, "height": 50, "phrases": [DOG]}
KINDS = {"people", "clothing", "bodyparts", "animals", "vehicles", "instruments", "scene", "other", "notvisual"}
COCO = {
    "images": [
        {"id": 7, "file_name": "000000000007.jpg", "width": 100, "height": 50},
        {"id": 8, "file_name": "000000000008.jpg", "width": 100, "height": 50},
    ],
    "categories": [
        {"id": 1, "name": "person", "supercategory": "person"},
        {"id": 3, "name": "fire hydrant", "supercategory": "outdoor"},
        {"id": 4, "name": "zebra", "supercategory": "animal"},
        {"id": 5, "name": "bus", "supercategory": "vehicle"},
    ],
    "annotations": [
        {"image_id": 7, "category_id": 1, "bbox": [10, 20, 50, 20]},
        {"image_id": 7, "category_id": 3, "bbox": [50, 25, 60, 60]},
        {"image_id": 7, "category_id": 1, "bbox": [0, 0, 100, 50], "iscrowd": 1},
        {"image_id": 7, "category_id": 4, "bbox": [0, 0, 1, 1]},
        {"image_id": 7, "category_id": 5, "bbox": [0, 0, 1, 1]},
        {"image_id": 8, "category_id": 4, "bbox": [5, 5, 0, 9]},
    ],
}


def refusal(call, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_rows(path: Path, *rows: dict) -> Path:
    path.parent.mkdir(exist_ok=True)
    text = "\n".join(map(json.dumps, rows)).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def row(**changes) -> dict:
    """An image with one phrase with these fields."""
    return {**ROW, "phrases": [{**DOG, **changes}]}


@pytest.mark.parametrize("name", ["boxes.jsonl", "boxes.jsonl.gz"])
def test_phrases_in_the_data_folder_have_words_kind_and_shares(tmp_path, name):
    path = write_rows(tmp_path / name, ROW, {**ROW, "image": "b.jpg", "phrases": []})
    phrases = find_phrases(tmp_path)
    assert phrases is not None
    assert phrases.path == path
    (dog,) = phrases.of("a.jpg")
    assert dog.words == ("the", "man", "'s", "dog")
    assert dog.kind == "animals"
    assert dog.boxes.dtype == np.float32
    np.testing.assert_allclose(dog.boxes, [[0.1, 0.4, 0.6, 0.8], [0, 0, 1, 1]])
    assert len(phrases.of("photos/a.jpg")) == 1
    assert phrases.of("b.jpg") == phrases.of("c.jpg") == ()
    assert [name in phrases for name in ("a.jpg", "photos/a.jpg", "b.jpg", "c.jpg")] == [True, True, True, False]
    assert not phrases.are_coco


def test_phrases_without_a_box_are_dropped_and_boxes_are_clipped(tmp_path):
    phrases = [{**DOG, "boxes": boxes} for boxes in ([], [[5, 5, 5, 9]], [[-10, 5, 50, 60], [9, 9, 1, 1]], None)]
    path = write_rows(tmp_path / "boxes.jsonl", {**ROW, "phrases": [*phrases, {"phrase": "it", "type": "notvisual"}]})
    (phrase,) = Phrases(path).of("a.jpg")
    np.testing.assert_allclose(phrase.boxes, [[0, 0.1, 0.5, 1]])


@pytest.mark.parametrize(
    ("types", "kind"), [("scene", "scene"), ("vehicles/scene", "vehicles"), (["bodyparts", "people"], "bodyparts")]
)
def test_the_first_of_several_types_is_the_kind(tmp_path, types, kind):
    assert Phrases(write_rows(tmp_path / "boxes.jsonl", row(type=types))).of("a.jpg")[0].kind == kind


def test_a_folder_without_phrases_has_none_and_a_missing_file_is_refused(tmp_path):
    assert find_phrases(tmp_path) is None
    assert "cannot be read" in refusal(find_phrases, tmp_path, tmp_path / "gone.jsonl")
    assert "cannot be read" in refusal(find_phrases, tmp_path, tmp_path)


def test_a_named_file_is_preferred_to_one_in_the_data_folder(tmp_path):
    write_rows(tmp_path / "boxes.jsonl.gz", ROW)
    path = write_rows(tmp_path / "mine.jsonl", row(phrase="a cat"))
    phrases = find_phrases(tmp_path, path)
    assert phrases is not None
    assert phrases.path == path
    assert phrases.of("a.jpg")[0].words == ("a", "cat")


def test_the_key_depends_on_the_contents_and_not_on_compression(tmp_path):
    plain, compressed = (Phrases(write_rows(tmp_path / name, ROW)).key for name in ("a.jsonl", "b.jsonl.gz"))
    assert plain == compressed
    assert Phrases(write_rows(tmp_path / "a.jsonl", row(phrase="a cat"))).key != plain


@pytest.mark.parametrize(
    ("contents", "detail"),
    [
        (b"just text", "line 1: not a JSON object"),
        (json.dumps(ROW).encode() + b'\n{"image": ', "line 2: not a JSON object"),
        (b'\n{"image": "\xff"}', "line 2: not a JSON object"),
        (b"[1]", "line 1: not a JSON object"),
        (b"[" * 100_000, "line 1: not a JSON object"),
        (b'{"image": 5, "width": 1, "height": 1, "phrases": []}', "line 1: not a JSON object"),
        (b'{"image": "a", "width": 1, "height": 1, "phrases": [3]}', "line 1: not a JSON object"),
        (b'{"image": "a", "width": 1, "height": 1}', "KeyError: 'phrases'"),
        (json.dumps({**ROW, "width": 0}).encode(), "0 × 50 pixels"),
        (json.dumps({**ROW, "width": "wide"}).encode(), "TypeError"),
        (json.dumps(row(boxes=[[1, 2, 3]])).encode(), "left, top, right and bottom"),
        (json.dumps(row(boxes=[[1, 2, 3, 4], [1]])).encode(), "line 1: not a JSON object"),
        (json.dumps(row(boxes=[[1, 2, 3, float("nan")]])).encode(), "left, top, right and bottom"),
        (json.dumps(row(phrase=None)).encode(), "line 1: not a JSON object"),
        (json.dumps(row(type=None)).encode(), "line 1: not a JSON object"),
        (b"", "has no image"),
        (gzip.compress(b"{}" * 99, mtime=0)[:18], "damaged or cut short"),
        (b"\x1f\x8b and no gzip", "damaged or cut short"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line_with_advice(tmp_path, contents, detail):
    path = tmp_path / "boxes.jsonl.gz"
    path.write_bytes(contents)
    line = refusal(find_phrases, tmp_path)
    assert detail in line
    assert line.startswith(str(path))
    assert "download it again" in line


def test_categories_of_coco_are_phrases_with_the_boxes_of_all_their_instances(tmp_path):
    table = Phrases(write_rows(tmp_path / "instances_val2017.json", COCO))
    phrases = table.of("000000000007.jpg")
    assert [phrase.words for phrase in phrases] == [("person",), ("fire", "hydrant"), ("zebra",), ("bus",)]
    assert [phrase.kind for phrase in phrases] == ["people", "other", "animals", "vehicles"]
    np.testing.assert_allclose(phrases[0].boxes, [[0.1, 0.4, 0.6, 0.8], [0, 0, 1, 1]])
    np.testing.assert_allclose(phrases[1].boxes, [[0.5, 0.5, 1, 1]])
    assert table.of("000000000008.jpg") == (), "its one box has no area"
    assert table.of("val2014/COCO_val2014_000000000007.jpg") is phrases, "the number is the same in all years"


def test_the_latest_year_of_coco_is_read_train_and_val(tmp_path):
    folder = tmp_path / "annotations"
    other = {**COCO, "images": [{**COCO["images"][0], "file_name": "000000000009.jpg"}]}
    write_rows(folder / "instances_val2014.json", {"not": "read"})
    write_rows(folder / "captions_val2017.json", {"not": "read"})
    write_rows(folder / "instances_train2017.json", other)
    write_rows(folder / "instances_val2017.json", COCO)
    phrases = find_phrases(tmp_path)
    assert phrases is not None
    assert phrases.path == folder
    assert len(phrases.of("000000000007.jpg")) == len(phrases.of("000000000009.jpg")) == 4


@pytest.mark.parametrize(
    ("contents", "detail"),
    [
        (b'{"images": [],\n "anno', "malformed JSON at line 2"),
        (json.dumps(ROW).encode() + b"\n" + json.dumps(ROW).encode(), "name a file of JSON lines .jsonl"),
        (json.dumps(ROW).encode(), "KeyError: 'categories'"),
        (json.dumps({**COCO, "annotations": [{"image_id": 7, "bbox": [1, 2]}]}).encode(), "ValueError"),
        (json.dumps({**COCO, "categories": []}).encode(), "KeyError: 1"),
        (json.dumps({**COCO, "images": []}).encode(), "has no image"),
        (b'{"images": "\xff"}', "not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_file_of_coco_is_refused_in_one_line(tmp_path, contents, detail):
    path = tmp_path / "instances_val2017.json"
    path.write_bytes(contents)
    line = refusal(Phrases, path)
    assert detail in line
    assert line.startswith(str(path))


@pytest.mark.data
def test_the_test_split_of_flickr8k_has_13063_phrases_with_boxes(flickr8k):
    table = find_phrases(flickr8k)
    assert table is not None
    names = (flickr8k / "Flickr_8k.testImages.txt").read_text().split()
    by_image = {name: table.of(name) for name in names}
    phrases = [phrase for name in names for phrase in by_image[name]]
    assert len(phrases) == 13_063
    kinds = Counter(phrase.kind for phrase in phrases)
    assert kinds.keys() <= KINDS
    assert kinds.most_common(1)[0][0] == "people"
    assert all(phrase.words for phrase in phrases)
    regions = read_regions(flickr8k / "boxes.jsonl.gz")
    for name in names:
        boxes = np.unique(np.concatenate([np.zeros((0, 4)), *(phrase.boxes for phrase in by_image[name])]), axis=0)
        region_boxes = regions.find(name).boxes
        assert all(np.isclose(region_boxes, box, atol=1e-6).all(axis=1).any() for box in boxes)
