"""Captions without images: their files, and the images that are left out."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from saywhy.data.caption_texts import (
    CaptionText,
    evaluation_images,
    image_key,
    read_caption_texts,
    read_exclusions,
    without_images,
)
from saywhy.data.datasets import read
from saywhy.data.overlap import read_names
from saywhy.errors import UserError


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8")
    return path


def dataset(folder: Path) -> Path:
    """Three images in three splits."""
    folder.mkdir()
    rows = [
        ("1_abcdef12.jpg", "a dog", "train"),
        ("2_abcdef12.jpg", "a cat", "dev"),
        ("3_ab12cd34.jpg", "an emu", "test"),
    ]
    with (folder / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("image", "caption", "split"), *rows])
    return folder


KARPATHY = {
    "images": [
        {"filename": f"COCO_val2014_{n:012}.jpg", "split": split, "sentences": [{"raw": f"{split} {n}"}]}
        for n, split in ((7, "train"), (8, "val"), (9, "test"), (10, "restval"))
    ]
}
COCO = {
    "images": [{"id": n, "file_name": f"{n:012}.jpg"} for n in (7, 8, 9)],
    "annotations": [{"image_id": n, "caption": f"caption {n}"} for n in (9, 8, 7, 7)],
}


@pytest.mark.parametrize("name", ["texts.txt", "texts.txt.gz"])
def test_lines_are_captions_without_an_image(name, tmp_path):
    path = write(tmp_path / name, "a dog\n\n  a cat, asleep\n")
    assert read_caption_texts(path) == [CaptionText("", "a dog"), CaptionText("", "  a cat, asleep")]


@pytest.mark.parametrize("name", ["texts.tsv", "texts.tsv.gz"])
def test_a_table_has_the_image_first_and_the_caption_last(name, tmp_path):
    path = write(tmp_path / name, "12\tA dog .\n13\t4\tA cat .\nAn emu .\n")
    expected = [CaptionText("12", "A dog ."), CaptionText("13", "A cat ."), CaptionText("", "An emu .")]
    assert read_caption_texts(path) == expected


def test_captions_of_coco_name_their_image(tmp_path):
    path = write(tmp_path / "captions_val2014.json", json.dumps(COCO))
    names = [text.image for text in read_caption_texts(path)]
    assert names == ["000000000009.jpg", "000000000008.jpg", "000000000007.jpg", "000000000007.jpg"]


def test_a_dataset_gives_its_train_split(tmp_path):
    assert read_caption_texts(dataset(tmp_path / "data")) == [CaptionText("1_abcdef12.jpg", "a dog")]
    path = write(tmp_path / "dataset_coco.json", json.dumps(KARPATHY))
    assert [text.caption for text in read_caption_texts(path)] == ["train 7", "restval 10"]


def test_the_captions_file_of_flickr8k_is_a_dataset(flickr8k):
    assert len(read_caption_texts(flickr8k / "captions.txt")) == 30_000


def test_captions_of_karpathys_evaluation_images_are_left_out_of_cocos_own_files(tmp_path):
    texts = read_caption_texts(write(tmp_path / "captions_val2014.json", json.dumps(COCO)))
    keys = read_exclusions(write(tmp_path / "dataset_coco.json", json.dumps(KARPATHY)), read_names)
    assert [text.caption for text in without_images(texts, keys)] == ["caption 7", "caption 7"]


def test_captions_of_flickr8ks_evaluation_images_are_left_out_of_flickr30k(tmp_path):
    texts = read_caption_texts(write(tmp_path / "flickr30k.tsv", "1\ttrain\n2\tdev\n3\ttest\nno image\n"))
    keys = evaluation_images(read(dataset(tmp_path / "data")))
    assert [text.caption for text in without_images(texts, keys)] == ["train", "no image"]


def test_a_list_of_names_is_left_out(tmp_path):
    keys = read_exclusions(write(tmp_path / "names.txt", "COCO_train2014_000000000007.jpg\nmine.png\n"), read_names)
    assert keys == {image_key("7"), "mine"}


@pytest.mark.data
def test_no_evaluation_image_of_flickr8k_is_in_the_text_of_flickr30k(flickr8k):
    path = flickr8k.parent / "flickr30k_captions.tsv.gz"
    if not path.is_file():
        pytest.skip(f"no {path}")
    texts = read_caption_texts(path)
    assert len(without_images(texts, evaluation_images(read(flickr8k)))) == len(texts) == 148_915
    train = {image_key(image.name) for image in read(flickr8k).split("train").images}
    assert len({image_key(text.image) for text in texts} & train) == 6000  # so the names are recognised


@pytest.mark.parametrize(
    ("name", "contents", "reason"),
    [
        ("empty.txt", "\n \n", "it has no caption"),
        ("texts.pdf", "a dog", "captions are read from"),
        ("texts.json", "{", "malformed JSON"),
        ("texts.json", '{"images": [], "annotations": [{"text": 1}]}', "not COCO's captions"),
        ("texts.json", "[1]", "not COCO's captions"),
    ],
)
def test_other_contents_are_refused_in_one_line(name, contents, reason, tmp_path):
    path = write(tmp_path / name, contents)
    with pytest.raises(UserError, match=reason) as caught:
        read_caption_texts(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_and_missing_files_are_refused_in_one_line(tmp_path):
    (tmp_path / "texts.tsv.gz").write_bytes(gzip.compress(b"1\ta dog" * 100)[:-9])
    with pytest.raises(UserError, match="cannot be read as gzip"):
        read_caption_texts(tmp_path / "texts.tsv.gz")
    with pytest.raises(UserError, match="no such file or folder"):
        read_caption_texts(tmp_path / "gone.txt")
