"""Regions from files of all formats, and their boxes in the crop that the encoder sees."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from saywhy.data.images import open_image, upright_size
from saywhy.data.loading import RegionBoxes, RegionVectors
from saywhy.data.preprocess import Preprocessing
from saywhy.data.region_files import find_regions, read_regions
from saywhy.data.regions import RegionSettings, RegionSource, crop_boxes
from saywhy.errors import UserError

BOXES = np.array([[10, 20, 60, 40], [0, 0, 100, 50]], np.float32)  # in pixels of 100 × 50
SHARES = np.array([[0.1, 0.4, 0.6, 0.8], [0, 0, 1, 1]], np.float32)
VECTORS = np.arange(6, dtype=np.float32).reshape(2, 3)
SIZE = {"image_w": 100, "image_h": 50}
FIVE_NUMBERS = b"""{"image": "a", "width": 9, "height": 9, "phrases": [{"boxes":
    [[0, 0, 1, 1, 2], [0, 0, 1, 1, 3], [0, 0, 1, 1, 4], [0, 0, 1, 1, 5]]}]}""".replace(b"\n", b"")


def refusal(call, *arguments) -> str:
    with pytest.raises(UserError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def tsv_line(name: str, boxes: np.ndarray = BOXES, vectors: np.ndarray = VECTORS) -> str:
    columns = [base64.b64encode(np.ascontiguousarray(values, np.float32)).decode() for values in (boxes, vectors)]
    return "\t".join([name, "100", "50", str(len(boxes)), *columns])


def write_entities(path: Path, *rows: dict) -> Path:
    text = "\n".join(map(json.dumps, rows))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def row(image: str, *boxes: list[int], width: int = 100, height: int = 50) -> dict:
    return {"image": image, "width": width, "height": height, "phrases": [{"boxes": [box]} for box in boxes]}


@pytest.mark.parametrize(
    "arrays",
    [
        {"features": VECTORS, "boxes": BOXES, **SIZE},
        {"x": VECTORS, "bbox": BOXES, "width": 100, "height": 50},
        {"feat": VECTORS, "boxes": SHARES},
        {"features": VECTORS, "boxes": SHARES, **SIZE},
        {"x": VECTORS.T, "bbox": BOXES, **SIZE},
        {
            "x": np.pad(VECTORS, ((0, 3), (0, 0))).T,
            "bbox": np.pad(BOXES, ((0, 3), (0, 0))),
            "num_bbox": 2,
            "image_w": [100],
            "image_h": [50],
        },
    ],
    ids=["usual", "other names", "shares", "shares and size", "D × n", "padded"],
)
def test_an_npz_file_is_found_by_the_stem_and_its_boxes_become_shares(tmp_path, arrays):
    np.savez(tmp_path / "dog.npz", **arrays)
    regions = read_regions(tmp_path).find("photos/dog.jpg")
    np.testing.assert_allclose(regions.boxes, SHARES)
    np.testing.assert_array_equal(regions.vectors, VECTORS)
    assert regions.boxes.dtype == regions.vectors.dtype == np.float32


def test_vectors_are_not_read_where_only_boxes_are_needed(tmp_path):
    np.savez(tmp_path / "dog.npz", features=VECTORS, boxes=SHARES)
    assert read_regions(tmp_path).find("dog.jpg", vectors=False).vectors is None


def test_without_boxes_every_vector_is_of_the_full_image(tmp_path):
    np.save(tmp_path / "dog.npy", VECTORS)
    np.savez(tmp_path / "12.npz", feat=VECTORS)
    table = read_regions(tmp_path)
    for name in ("dog.jpg", "COCO_val2014_000000000012.jpg"):
        assert table.find(name).boxes.tolist() == [[0, 0, 1, 1]] * 2
        np.testing.assert_array_equal(table.find(name).vectors, VECTORS)


@pytest.mark.parametrize(
    ("arrays", "detail"),
    [
        ({"features": VECTORS, "boxes": BOXES}, "without image_w and image_h"),
        ({"features": VECTORS, "boxes": BOXES, "image_w": 0, "image_h": 50}, "0 × 50 pixels"),
        ({"colour": VECTORS}, "neither features nor boxes; its arrays are colour"),
        ({"features": VECTORS[0], "boxes": SHARES}, "n × D"),
        ({"features": VECTORS[:1], "boxes": SHARES}, "2 boxes and features of 1"),
        ({"features": VECTORS * np.nan, "boxes": SHARES}, "n × D finite"),
        ({"features": VECTORS, "boxes": SHARES[:, :3]}, "n × 4"),
        ({"boxes": 0 * SHARES}, "no box with an area"),
        ({"features": np.zeros((0, 3))}, "no box with an area"),
        ({"features": np.array([["a"]])}, "n × D"),
        ({"features": np.array([{}])}, "pickled objects"),
    ],
)
def test_an_npz_file_that_does_not_fit_is_refused(tmp_path, arrays, detail):
    np.savez(tmp_path / "dog.npz", **arrays)
    line = refusal(read_regions(tmp_path).find, "dog.jpg")
    assert detail in line
    assert "dog.npz" in line


def test_nothing_is_unpickled(tmp_path):
    np.save(tmp_path / "dict.npy", np.array({"features": VECTORS}), allow_pickle=True)
    (tmp_path / "plain.npy").write_bytes(pickle.dumps({"features": VECTORS}))
    (tmp_path / "cut.npz").write_bytes(b"PK\x03\x04 and no more")
    table = read_regions(tmp_path)
    for name in ("dict.jpg", "plain.jpg"):
        assert "pickled objects, which are not opened" in refusal(table.find, name)
    assert "damaged" in refusal(table.find, "cut.jpg")


def test_images_without_regions_are_named(tmp_path):
    assert "no .npz or .npy file" in refusal(read_regions, tmp_path)
    np.save(tmp_path / "a.npy", VECTORS)
    table = read_regions(tmp_path)
    table.require(["a.jpg"])
    assert "no regions for 2 of 3 images, such as b.jpg" in refusal(table.require, ["a.jpg", "b.jpg", "c.jpg"])
    assert "no regions for b.jpg" in refusal(table.find, "b.jpg")


def test_boxes_without_an_area_are_dropped_with_their_vectors(tmp_path):
    np.savez(tmp_path / "dog.npz", features=np.vstack([VECTORS, VECTORS + 9]), boxes=np.vstack([0 * SHARES, SHARES]))
    np.testing.assert_array_equal(read_regions(tmp_path).find("dog.jpg").vectors, VECTORS + 9)
    regions = RegionSource(RegionSettings("features", most=1), read_regions(tmp_path))
    np.testing.assert_allclose(regions.boxes("dog.jpg"), SHARES[:1])  # padding would leave nothing to attend to


def test_two_images_cannot_have_the_same_regions(tmp_path):
    np.save(tmp_path / "1.npy", VECTORS)
    table = read_regions(tmp_path)
    assert "a/1.jpg and b/001.jpg would both have the regions of 1.npy" in refusal(
        table.require, ["a/1.jpg", "b/001.jpg"]
    )


def test_digits_at_the_end_of_a_word_are_not_an_image_id(tmp_path):
    (tmp_path / "regions.tsv").write_text(tsv_line("70"))
    assert "no regions for 1 of 1" in refusal(read_regions(tmp_path / "regions.tsv").require, ["1001_577c3a7d70.jpg"])


@pytest.mark.parametrize("name", ["COCO_val2014_000000000123.jpg", "123.png", "deep/000123.jpg"])
def test_a_line_of_a_tsv_is_found_by_the_number_at_the_end_of_a_name(tmp_path, name):
    large = tsv_line("7", np.tile(BOXES, (60, 1)), np.ones((120, 600)))  # more than csv reads in one field
    (tmp_path / "regions.tsv").write_text(f"{large}\n{tsv_line('123')}\n")
    table = read_regions(tmp_path / "regions.tsv")
    np.testing.assert_allclose(table.find(name).boxes, SHARES)
    np.testing.assert_array_equal(table.find(name).vectors, VECTORS)
    assert table.find("7.jpg").vectors.shape == (120, 600)
    assert table.find(name, vectors=False).vectors is None
    assert table.entry("8.jpg") is None


@pytest.mark.parametrize("image_id", ["a1b.jpg", "a1b"])
def test_a_line_of_a_tsv_is_found_by_the_name_or_stem(tmp_path, image_id):
    (tmp_path / "regions.tsv").write_text(tsv_line(image_id))
    np.testing.assert_allclose(read_regions(tmp_path / "regions.tsv").find("a1b.jpg").boxes, SHARES)


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        (tsv_line("1").replace("\t2\t", "\t3\t"), "image_id 1: not a line of image_id, image_w"),
        (tsv_line("1").replace("\t100\t", "\twide\t"), "not a line of"),
        (tsv_line("1").replace("\t100\t", "\t0\t"), "0 × 50 pixels"),
        (tsv_line("1")[:-3], "not a line of"),
        (tsv_line("1", VECTORS[:, :2] * np.nan), "not a line of"),
        (tsv_line("1", np.full((2, 4), np.nan)), "n × 4 finite"),
        (tsv_line("1", BOXES[:0], VECTORS[:0]), "image_id 1: "),
    ],
)
def test_a_damaged_line_of_a_tsv_is_named(tmp_path, text, detail):
    (tmp_path / "regions.tsv").write_text(text)
    assert detail in refusal(read_regions(tmp_path / "regions.tsv").find, "1.jpg")


def test_a_tsv_of_other_columns_is_refused(tmp_path):
    (tmp_path / "regions.tsv").write_text(tsv_line("1") + "\n1\t2\t3\n")
    assert "line 2: 3 columns" in refusal(read_regions, tmp_path / "regions.tsv")


@pytest.mark.parametrize("name", ["boxes.jsonl", "boxes.jsonl.gz"])
def test_entity_boxes_are_distinct_and_sorted_by_size_after_the_full_image(tmp_path, name):
    small, large, full = [10, 20, 60, 40], [0, 0, 90, 50], [0, 0, 100, 50]
    path = write_entities(tmp_path / name, row("a.jpg", small, large, small, full, [5, 5, 5, 9]), row("b.jpg"))
    table = read_regions(path)
    np.testing.assert_allclose(table.find("a.jpg").boxes, [[0, 0, 1, 1], [0, 0, 0.9, 1], SHARES[0]])
    assert table.find("x/b.jpg").boxes.tolist() == [[0, 0, 1, 1]]
    assert table.oracle
    assert "no regions for 1 of 2 images, such as c.jpg" in refusal(table.require, ["a.jpg", "c.jpg"])


@pytest.mark.parametrize(
    ("contents", "detail"),
    [
        (b'{"image": "a.jpg"}', "line 1: not a JSON object"),
        (b'{"image": ', "line 1: not a JSON object"),
        (b'{"image": ' + b"[" * 100_000, "line 1: not a JSON object"),
        (b'{"image": 5, "width": 1, "height": 1, "phrases": []}', "line 1: not a JSON object"),
        (b'{"image": "a", "width": 1, "height": 1, "phrases": [{"boxes": [[1, 2]]}]}', "line 1: not a JSON object"),
        (b'{"image": "a", "width": 0, "height": 0, "phrases": []}', "line 1: not a JSON object"),
        (b'{"image": "a", "width": 1, "height": 1, "phrases": [3]}', "line 1: not a JSON object"),
        (b'{"image": "a", "width": 1, "height": 1, "phrases": [{"boxes": [[0, 0, 1, NaN]]}]}', "left, top, right"),
        (FIVE_NUMBERS, "left, top, right"),
        (gzip.compress(b"{}" * 99, mtime=0)[:18], "damaged or cut short"),
        (b"\x1f\x8b and no gzip", "damaged or cut short"),
        (b'{"image": "\xff"}', "damaged or cut short"),
        (b"just text", "not a known format of regions"),
        (b"", "not a known format of regions"),
    ],
)
def test_a_damaged_file_of_boxes_is_refused(tmp_path, contents, detail):
    (tmp_path / "boxes.jsonl").write_bytes(contents)
    assert detail in refusal(read_regions, tmp_path / "boxes.jsonl")


def test_a_missing_or_unknown_file_is_refused(tmp_path):
    assert "cannot be read" in refusal(read_regions, tmp_path / "gone")
    np.savez(tmp_path / "one.npz", VECTORS)
    assert "not a known format of regions; give a folder" in refusal(read_regions, tmp_path / "one.npz")


def test_boxes_are_moved_into_a_crop_and_clipped_or_dropped():
    full, inside, half, outside, sliver = (
        [0, 0, 1, 1],
        [0.3, 0.4, 0.5, 0.6],
        [0, 0, 0.4, 1],
        [0, 0, 0.1, 1],
        [0, 0, 0.21, 1],
    )
    crop = torch.tensor([0.2, 0.0, 0.7, 1.0])
    boxes = crop_boxes(torch.tensor([full, inside, half, outside, sliver], dtype=torch.float32), crop)
    expected = torch.tensor([full, [0.2, 0.4, 0.6, 0.6], [0, 0, 0.4, 1], [0] * 4, [0] * 4], dtype=torch.float32)
    torch.testing.assert_close(boxes, expected)
    flipped = crop_boxes(torch.tensor([full, inside], dtype=torch.float32), crop[[2, 1, 0, 3]])
    torch.testing.assert_close(flipped[1], torch.tensor([0.4, 0.4, 0.8, 0.6]))


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("margin", [1.0, 8 / 7])
def test_boxes_match_the_pixels_that_the_encoder_sees(tmp_path, fit, margin):
    pixels = np.zeros((200, 300, 3), np.uint8)
    pixels[60:100, 120:210] = 255
    Image.fromarray(pixels).save(tmp_path / "a.png")
    path = write_entities(
        tmp_path / "boxes.jsonl", row("a.png", [120, 60, 210, 100], [0, 0, 20, 20], width=300, height=200)
    )
    preprocessing = Preprocessing(64, fit, margin)
    regions = RegionSource(RegionSettings(most=4), read_regions(path))
    boxes = RegionBoxes(regions, ["a.png"], [tmp_path / "a.png"], preprocessing).rows([0])[0]
    assert boxes.shape == (4, 4)
    assert boxes[0].tolist() == [0, 0, 1, 1]
    y, x = np.nonzero(preprocessing(open_image(tmp_path / "a.png"))[0] > 127)
    np.testing.assert_allclose(boxes[1] * 64, [x.min(), y.min(), x.max() + 1, y.max() + 1], atol=1)
    assert boxes[2:].any() == (fit == "squash"), "the corner is outside the crop"


def test_upright_size_follows_the_exif_orientation(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (80, 40)).save(tmp_path / "a.jpg", exif=exif)
    assert upright_size(tmp_path / "a.jpg") == open_image(tmp_path / "a.jpg").size == (40, 80)


def test_an_unreadable_image_has_the_full_image_as_its_only_region(tmp_path):
    path = write_entities(tmp_path / "boxes.jsonl", row("a.png", [1, 1, 9, 9]))
    regions = RegionSource(RegionSettings(most=3), read_regions(path))
    boxes = RegionBoxes(regions, ["a.png"], [tmp_path / "a.png"], Preprocessing(64)).rows([0])[0]
    assert boxes.tolist() == [[0, 0, 1, 1], [0] * 4, [0] * 4]


def test_features_are_padded_or_cut_and_must_have_one_width(tmp_path):
    np.savez(tmp_path / "a.npz", features=VECTORS, boxes=SHARES)
    np.save(tmp_path / "b.npy", np.ones((5, 3), np.float32))
    np.save(tmp_path / "c.npy", np.ones((5, 4), np.float32))
    regions = RegionSource(RegionSettings("features", 3), read_regions(tmp_path))
    vectors = RegionVectors(regions, ["a.jpg", "b.jpg", "c.jpg"])
    rows, errors = vectors.rows([1, 0])
    assert rows.shape == (2, 3, 3)
    assert errors == ["", ""]
    np.testing.assert_array_equal(rows[1], [*VECTORS, np.zeros(3)])
    assert regions.boxes("a.jpg")[2].tolist() == [0] * 4
    assert "features of c.jpg have 4 numbers per region, not 3" in refusal(vectors.rows, [2])


def test_boxes_cannot_replace_features(tmp_path):
    path = write_entities(tmp_path / "boxes.jsonl", row("a.png"))
    regions = RegionSource(RegionSettings("features"), read_regions(path))
    assert "boxes without features" in refusal(RegionVectors, regions, ["a.png"])


def test_features_cannot_replace_boxes(tmp_path):
    np.save(tmp_path / "a.npy", VECTORS)
    regions = RegionSource(RegionSettings("boxes"), read_regions(tmp_path))
    assert "features without boxes" in refusal(regions.boxes, "a.png")


def test_regions_are_found_in_the_data_folder_or_must_be_named(tmp_path):
    boxes, features = RegionSettings("boxes"), RegionSettings("features")
    assert find_regions(None, None, "model x", tmp_path) is None
    assert "omit --regions" in refusal(find_regions, None, tmp_path, "model x")
    assert "model x needs boxes of each image" in refusal(find_regions, boxes, None, "model x", tmp_path)
    write_entities(tmp_path / "boxes.jsonl.gz", row("a.jpg"))
    regions = find_regions(boxes, None, "model x", tmp_path)
    assert regions is not None
    assert regions.describe()["oracle"]
    assert "--regions PATH" in refusal(find_regions, features, None, "model x", tmp_path)


@pytest.mark.parametrize("wrong", [{"kind": "box"}, {"most": 0}])
def test_settings_out_of_range_are_named(wrong):
    assert f"regions.{next(iter(wrong))}" in refusal(lambda: RegionSettings(**wrong))


@pytest.mark.data
def test_every_image_of_flickr8k_has_regions(flickr8k):
    table = read_regions(flickr8k / "boxes.jsonl.gz")
    names = [path.name for path in (flickr8k / "Images").iterdir()]
    table.require(names)
    counts = []
    for name in names:
        boxes = table.find(name).boxes
        assert boxes[0].tolist() == [0, 0, 1, 1]
        sides = boxes[:, 2:] - boxes[:, :2]
        assert (sides > 0).all()
        assert (np.diff(sides.prod(axis=1)) <= 1e-6).all()
        assert boxes.min() >= 0
        assert boxes.max() <= 1
        counts.append(len(boxes))
    assert 5 < np.mean(counts) < 20
