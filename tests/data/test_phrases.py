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


def written(path: Path, *rows: dict) -> Path:
    path.parent.mkdir(exist_ok=True)
    text = "\n".join(map(json.dumps, rows)).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def row(**changes) -> dict:
    """An image with one phrase, of which something is different."""
    return {**ROW, "phrases": [{**DOG, **changes}]}


@pytest.mark.parametrize("name", ["boxes.jsonl", "boxes.jsonl.gz"])
def test_phrases_are_found_beside_the_data_as_words_a_kind_and_shares(tmp_path, name):
    path = written(tmp_path / name, ROW, {**ROW, "image": "b.jpg", "phrases": []})
    found = find_phrases(tmp_path)
    assert found is not None
    assert found.path == path
    (dog,) = found.of("a.jpg")
    assert dog.words == ("the", "man", "'s", "dog")
    assert dog.kind == "animals"
    assert dog.boxes.dtype == np.float32
    np.testing.assert_allclose(dog.boxes, [[0.1, 0.4, 0.6, 0.8], [0, 0, 1, 1]])
    assert len(found.of("photos/a.jpg")) == 1
    assert found.of("b.jpg") == found.of("c.jpg") == ()


def test_phrases_without_a_box_are_left_out_and_boxes_are_clipped(tmp_path):
    phrases = [{**DOG, "boxes": boxes} for boxes in ([], [[5, 5, 5, 9]], [[-10, 5, 50, 60], [9, 9, 1, 1]], None)]
    path = written(tmp_path / "boxes.jsonl", {**ROW, "phrases": [*phrases, {"phrase": "it", "type": "notvisual"}]})
    (kept,) = Phrases(path).of("a.jpg")
    np.testing.assert_allclose(kept.boxes, [[0, 0.1, 0.5, 1]])


@pytest.mark.parametrize(
    ("given", "kind"), [("scene", "scene"), ("vehicles/scene", "vehicles"), (["bodyparts", "people"], "bodyparts")]
)
def test_of_several_types_the_first_is_the_kind(tmp_path, given, kind):
    assert Phrases(written(tmp_path / "boxes.jsonl", row(type=given))).of("a.jpg")[0].kind == kind


def test_where_there_are_no_phrases_there_is_none(tmp_path):
    assert find_phrases(tmp_path) is None
    assert "cannot be read" in refusal(find_phrases, tmp_path, tmp_path / "gone.jsonl")
    assert "cannot be read" in refusal(find_phrases, tmp_path, tmp_path)


def test_what_is_given_goes_before_what_lies_beside_the_data(tmp_path):
    written(tmp_path / "boxes.jsonl.gz", ROW)
    given = written(tmp_path / "mine.jsonl", row(phrase="a cat"))
    found = find_phrases(tmp_path, given)
    assert found is not None
    assert found.path == given
    assert found.of("a.jpg")[0].words == ("a", "cat")


def test_the_key_follows_the_contents_and_not_how_they_are_packed(tmp_path):
    plain, packed = (Phrases(written(tmp_path / name, ROW)).key for name in ("a.jsonl", "b.jsonl.gz"))
    assert plain == packed
    assert Phrases(written(tmp_path / "a.jsonl", row(phrase="a cat"))).key != plain


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b"just text", "line 1: not a JSON object"),
        (json.dumps(ROW).encode() + b'\n{"image": ', "line 2: not a JSON object"),
        (b'\n{"image": "\xff"}', "line 2: not a JSON object"),
        (b"[1]", "line 1: not a JSON object"),
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
        (b"", "not one image"),
        (gzip.compress(b"{}" * 99, mtime=0)[:18], "damaged or cut short"),
        (b"\x1f\x8b and no gzip", "damaged or cut short"),
    ],
)
def test_a_damaged_file_is_refused_in_one_line_that_says_what_to_do(tmp_path, contents, said):
    path = tmp_path / "boxes.jsonl.gz"
    path.write_bytes(contents)
    line = refusal(find_phrases, tmp_path)
    assert said in line
    assert line.startswith(str(path))
    assert "download it again" in line


def test_categories_of_coco_are_phrases_with_the_boxes_of_all_their_instances(tmp_path):
    found = Phrases(written(tmp_path / "instances_val2017.json", COCO))
    phrases = found.of("000000000007.jpg")
    assert [phrase.words for phrase in phrases] == [("person",), ("fire", "hydrant"), ("zebra",), ("bus",)]
    assert [phrase.kind for phrase in phrases] == ["people", "other", "animals", "vehicles"]
    np.testing.assert_allclose(phrases[0].boxes, [[0.1, 0.4, 0.6, 0.8], [0, 0, 1, 1]])
    np.testing.assert_allclose(phrases[1].boxes, [[0.5, 0.5, 1, 1]])
    assert found.of("000000000008.jpg") == (), "its one box has no area"
    assert found.of("val2014/COCO_val2014_000000000007.jpg") is phrases, "the number is the same in all years"


def test_the_latest_year_of_coco_is_read_train_and_val(tmp_path):
    folder = tmp_path / "annotations"
    other = {**COCO, "images": [{**COCO["images"][0], "file_name": "000000000009.jpg"}]}
    written(folder / "instances_val2014.json", {"not": "read"})
    written(folder / "captions_val2017.json", {"not": "read"})
    written(folder / "instances_train2017.json", other)
    written(folder / "instances_val2017.json", COCO)
    found = find_phrases(tmp_path)
    assert found is not None
    assert found.path == folder
    assert len(found.of("000000000007.jpg")) == len(found.of("000000000009.jpg")) == 4


@pytest.mark.parametrize(
    ("contents", "said"),
    [
        (b'{"images": [],\n "anno', "line 2: malformed JSON"),
        (json.dumps(ROW).encode() + b"\n" + json.dumps(ROW).encode(), "name a file of JSON lines .jsonl"),
        (json.dumps(ROW).encode(), "KeyError: 'categories'"),
        (json.dumps({**COCO, "annotations": [{"image_id": 7, "bbox": [1, 2]}]}).encode(), "ValueError"),
        (json.dumps({**COCO, "categories": []}).encode(), "KeyError: 1"),
        (json.dumps({**COCO, "images": []}).encode(), "not one image"),
        (b'{"images": "\xff"}', "not the contents expected"),
    ],
)
def test_a_damaged_file_of_coco_is_refused_in_one_line(tmp_path, contents, said):
    path = tmp_path / "instances_val2017.json"
    path.write_bytes(contents)
    line = refusal(Phrases, path)
    assert said in line
    assert line.startswith(str(path))


@pytest.mark.data
def test_the_test_split_of_flickr8k_has_13063_phrases_with_boxes(flickr8k):
    found = find_phrases(flickr8k)
    assert found is not None
    names = (flickr8k / "Flickr_8k.testImages.txt").read_text().split()
    phrases = {name: found.of(name) for name in names}
    every = [phrase for each in phrases.values() for phrase in each]
    assert len(every) == 13_063
    kinds = Counter(phrase.kind for phrase in every)
    assert kinds.keys() <= KINDS
    assert kinds.most_common(1)[0][0] == "people"
    assert all(phrase.words for phrase in every)
    regions = read_regions(flickr8k / "boxes.jsonl.gz")
    for name in names:
        drawn = np.unique(np.concatenate([np.zeros((0, 4)), *(phrase.boxes for phrase in phrases[name])]), axis=0)
        known = regions.find(name).boxes
        assert all(np.isclose(known, box, atol=1e-6).all(axis=1).any() for box in drawn)
