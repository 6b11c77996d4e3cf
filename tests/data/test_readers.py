"""Layouts are recognised and read alike; what is wrong with a file is said in one line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from saywhy.data.datasets import Dataset, readers
from saywhy.data.datasets import read as read_dataset
from saywhy.data.splits import stable_split
from saywhy.errors import UserError


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16)).save(path)


def by_name(dataset: Dataset) -> dict[str, tuple[str, ...]]:
    return {each.name: each.captions for each in dataset.images}


def split_of(dataset: Dataset) -> dict[str, str]:
    return {each.name: each.split for each in dataset.images}


def complaint(root: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_dataset(root, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def folder(tmp_path: Path, table: str, name: str = "captions.csv") -> Path:
    (tmp_path / name).write_bytes(table.encode())
    return tmp_path


class TestFlickr8k:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        for name in ("a.jpg", "b.jpg", "c.jpg", "d.jpg"):
            image(tmp_path / "Images" / name)
        rows = [f'{name}.jpg,"{name}, caption {n} ."' for name in "abcd" for n in range(5)]
        (tmp_path / "captions.txt").write_text("\n".join(["image,caption", *rows]))
        for split, name in (("train", "a"), ("dev", "b"), ("test", "c")):
            (tmp_path / f"Flickr_8k.{split}Images.txt").write_text(f"{name}.jpg\n")
        return tmp_path

    def test_captions_and_official_splits_are_read(self, root: Path) -> None:
        dataset = read_dataset(root)
        assert by_name(dataset)["b.jpg"] == tuple(f"b, caption {n} ." for n in range(5))
        assert split_of(dataset) == {"a.jpg": "train", "b.jpg": "dev", "c.jpg": "test", "d.jpg": ""}
        assert dataset.splits == {"train": 1, "dev": 1, "test": 1, "": 1}
        assert all(each.path.is_file() for each in dataset.images)

    def test_the_authors_token_file_gives_the_same(self, root: Path) -> None:
        expected = read_dataset(root).images
        lines = [f"{name}.jpg#{n}\t{name}, caption {n} ." for name in "abcd" for n in range(5)]
        text = root / "Flickr8k_text"
        text.mkdir()
        (text / "Flickr8k.token.txt").write_text("\n".join([*lines, "d.jpg.1#0\tNo image has this name ."]))
        (root / "captions.txt").unlink()
        for file in root.glob("Flickr_8k.*"):
            file.rename(text / file.name)
        (root / "Images").rename(root / "Flicker8k_Dataset")
        dataset = read_dataset(root)
        assert by_name(dataset) == {each.name: each.captions for each in expected}
        assert split_of(dataset) == {each.name: each.split for each in expected}
        assert all(each.path.is_file() for each in dataset.images)
        assert any("no image's: 1" in note for note in dataset.notes)

    def test_a_image_on_two_lists_is_kept_from_training(self, root: Path) -> None:
        (root / "Flickr_8k.trainImages.txt").write_text("a.jpg\nc.jpg\nunheard-of.jpg\n")
        dataset = read_dataset(root)
        assert split_of(dataset)["c.jpg"] == "test"
        assert any("1 names also on an earlier list" in note for note in dataset.notes)
        assert any("1 of 3 names have no captions" in note for note in dataset.notes)

    def test_a_malformed_token_line_is_named(self, root: Path) -> None:
        (root / "captions.txt").unlink()
        (root / "Flickr8k.token.txt").write_text("a.jpg#0\tA dog .\na.jpg A dog .\n")
        assert "Flickr8k.token.txt: line 2" in complaint(root)

    def test_one_split_can_be_taken_and_an_empty_one_is_refused(self, root: Path) -> None:
        assert [each.name for each in read_dataset(root).split("dev").images] == ["b.jpg"]
        with pytest.raises(UserError, match=r"'val'; splits there are: train \(1\), dev \(1\), test \(1\)"):
            read_dataset(root).split("val")


class TestKarpathy:
    def entry(self, name: str, split: str, **more: str) -> dict[str, Any]:
        return {
            "filename": name,
            "split": split,
            "sentences": [{"raw": f"{name} one"}, {"raw": "two"}],
            **more,
        }

    def write(self, root: Path, *entries: dict[str, Any]) -> Path:
        (root / "dataset_coco.json").write_text(json.dumps({"images": entries, "dataset": "coco"}))
        return root

    def test_restval_is_trained_on_and_val_is_dev(self, tmp_path: Path) -> None:
        splits = ("train", "restval", "val", "test")
        root = self.write(tmp_path, *(self.entry(f"{n}.jpg", split) for n, split in enumerate(splits)))
        assert [each.split for each in read_dataset(root).images] == ["train", "train", "dev", "test"]
        assert read_dataset(root).images[0].captions == ("0.jpg one", "two")

    @pytest.mark.parametrize("place", ["val2014", "images/val2014"])
    def test_cocos_sub_folders_are_found(self, tmp_path: Path, place: str) -> None:
        image(tmp_path / place / "v.jpg")
        root = self.write(tmp_path, self.entry("v.jpg", "test", filepath="val2014"))
        assert read_dataset(root).images[0].path == tmp_path / place / "v.jpg"

    def test_the_json_file_itself_may_be_given(self, tmp_path: Path) -> None:
        image(tmp_path / "far" / "x.jpg")
        self.write(tmp_path, self.entry("x.jpg", "train"))
        dataset = read_dataset(tmp_path / "dataset_coco.json", image_folder=tmp_path / "far")
        assert dataset.images[0].path.is_file()

    def test_what_is_malformed_is_located(self, tmp_path: Path) -> None:
        (tmp_path / "dataset_coco.json").write_text('{"images": [\n{"sentences": }]}')
        assert "line 2, column 15" in complaint(tmp_path)
        self.write(tmp_path, {"filename": "a.jpg", "sentences": []})
        assert "no 'split'" in complaint(tmp_path)


class TestCoco:
    def write(self, root: Path, name: str, captions: dict[str, list[tuple[int, str]]]) -> None:
        images = [{"id": n, "file_name": file} for n, file in enumerate(captions)]
        annotations = [
            {"image_id": n, "id": number, "caption": text}
            for n, said in enumerate(captions.values())
            for number, text in said
        ]
        path = root / "annotations" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"info": {}, "images": images, "annotations": annotations}))

    def test_train_is_train_val_is_dev_and_five_captions_are_kept_by_id(self, tmp_path: Path) -> None:
        self.write(tmp_path, "captions_train2014.json", {"t.jpg": [(9 - n, f"said {9 - n}") for n in range(7)]})
        self.write(tmp_path, "captions_val2014.json", {"v.jpg": [(1, "A dog.\n")]})
        image(tmp_path / "train2014" / "t.jpg")
        image(tmp_path / "val2014" / "v.jpg")
        dataset = read_dataset(tmp_path)
        assert by_name(dataset)["t.jpg"] == ("said 3", "said 4", "said 5", "said 6", "said 7")
        assert by_name(dataset)["v.jpg"] == ("A dog.",)
        assert split_of(dataset) == {"t.jpg": "train", "v.jpg": "dev"}
        assert all(each.path.is_file() for each in dataset.images)
        assert any("left out: 2" in note for note in dataset.notes)

    def test_of_two_years_the_latest_is_read(self, tmp_path: Path) -> None:
        self.write(tmp_path, "captions_val2014.json", {"old.jpg": [(1, "a")]})
        self.write(tmp_path, "captions_val2017.json", {"new.jpg": [(1, "a")]})
        assert list(by_name(read_dataset(tmp_path))) == ["new.jpg"]
        old = read_dataset(tmp_path, captions="annotations/captions_val2014.json")
        assert list(by_name(old)) == ["old.jpg"]


class TestFolder:
    def test_quoted_commas_byte_order_mark_and_windows_line_ends(self, tmp_path: Path) -> None:
        lines = [
            "\ufeffimage,caption",
            'a.jpg,"A dog, a cat and ""Rex"""',
            "a.jpg,Two dogs",
            "",
            "b.jpg,Señor Ñu",
            "",
        ]
        dataset = read_dataset(folder(tmp_path, "\r\n".join(lines)))
        assert by_name(dataset) == {"a.jpg": ('A dog, a cat and "Rex"', "Two dogs"), "b.jpg": ("Señor Ñu",)}

    def test_commas_that_nobody_quoted_belong_to_the_caption(self, tmp_path: Path) -> None:
        dataset = read_dataset(folder(tmp_path, "image,caption\na.jpg,A dog, a cat, a cow\n"))
        assert by_name(dataset)["a.jpg"] == ("A dog, a cat, a cow",)

    @pytest.mark.parametrize("name", ["captions.jsonl", "metadata.jsonl", "mine.jsonl"])
    def test_json_lines_with_the_other_column_names(self, tmp_path: Path, name: str) -> None:
        table = '{"file_name": "a.jpg", "text": "A dog"}\n\n{"file_name": "b.jpg", "text": ["One", "Two"]}\r\n'
        assert by_name(read_dataset(folder(tmp_path, table, name))) == {
            "a.jpg": ("A dog",),
            "b.jpg": ("One", "Two"),
        }

    @pytest.mark.parametrize("place", ["", "Images", "images", "deep/down"])
    def test_images_are_found_where_people_put_them(self, tmp_path: Path, place: str) -> None:
        image(tmp_path / place / "a.jpg")
        written = f"{place}/a.jpg" if place == "deep/down" else "a.jpg"
        dataset = read_dataset(folder(tmp_path, f"image,caption\n{written},A dog\n"))
        assert dataset.images[0].path.is_file()

    def test_blank_captions_are_dropped_and_repeated_ones_counted(self, tmp_path: Path) -> None:
        table = "image,caption\na.jpg,A dog\na.jpg,  \na.jpg,A  dog\nb.jpg,\n"
        dataset = read_dataset(folder(tmp_path, table))
        assert by_name(dataset) == {"a.jpg": ("A dog", "A dog")}
        assert "blank captions dropped: 2" in dataset.notes
        assert "captions that repeat another of the same image (kept): 1" in dataset.notes
        assert "images dropped, having only blank captions: 1" in dataset.notes

    def test_a_split_column_decides(self, tmp_path: Path) -> None:
        table = "image,caption,split\na.jpg,A,train\nb.jpg,B,val\nc.jpg,C,test\nd.jpg,D,\n"
        dataset = read_dataset(folder(tmp_path, table))
        assert split_of(dataset) == {"a.jpg": "train", "b.jpg": "dev", "c.jpg": "test", "d.jpg": ""}

    def test_split_files_decide_where_there_is_no_column(self, tmp_path: Path) -> None:
        root = folder(tmp_path, "image,caption\na.jpg,A\nb.jpg,B\nc.jpg,C\n")
        (root / "train.txt").write_text("a.jpg\r\n\r\n")
        (root / "dev.txt").write_text("b.jpg\n")
        assert split_of(read_dataset(root)) == {"a.jpg": "train", "b.jpg": "dev", "c.jpg": ""}

    def test_without_either_a_stable_hash_decides_and_a_note_says_so(self, tmp_path: Path) -> None:
        rows = [f"{n}.jpg,A dog" for n in range(50)]
        forwards = read_dataset(folder(tmp_path, "\n".join(["image,caption", *rows])))
        backwards = read_dataset(folder(tmp_path, "\n".join(["image,caption", *reversed(rows)])))
        assert split_of(forwards) == split_of(backwards)
        assert any("80/10/10" in note for note in forwards.notes)

    def test_a_missing_column_names_the_file_and_the_columns(self, tmp_path: Path) -> None:
        line = complaint(folder(tmp_path, "picture,caption\na.jpg,A dog\n"))
        assert "captions.csv: line 1: no column image or file_name; columns found: picture, caption" in line
        line = complaint(folder(tmp_path, '{"image": "a.jpg", "words": "A"}', "x.jsonl"), captions="x.jsonl")
        assert "no column caption or text; columns found: image, words" in line

    @pytest.mark.parametrize(
        ("name", "table", "said"),
        [
            ("captions.jsonl", '{"image": "a.jpg", "caption": "A"}\n{"image": \n', "line 2: malformed JSON"),
            ("captions.jsonl", '["a.jpg", "A dog"]\n', "line 1: wanted an object"),
            ("captions.jsonl", '{"image": "a.jpg", "caption": 7}\n', "line 1: image must name a file"),
            ("captions.csv", "image,caption\na.jpg,A\nb.jpg\n", "line 3: 1 columns, but the header has 2"),
            ("captions.csv", "caption,image\nA dog, a cat,a.jpg\n", "line 2: 3 columns"),
            ("captions.csv", "image,caption,split\na.jpg,A,holdout\n", "line 2: unknown split 'holdout'"),
            (
                "captions.csv",
                "image,caption,split\na.jpg,A,dev\na.jpg,B,test\n",
                "in two splits, dev and test",
            ),
            ("captions.csv", 'image,caption\na.jpg,"A dog\nb.jpg,A "cat"\nc.jpg,B\n', "is never closed"),
            ("captions.csv", "image,caption\n", "not one caption"),
            ("captions.csv", "", "columns found: none"),
        ],
    )
    def test_a_bad_row_is_named_by_file_and_line(self, tmp_path: Path, name: str, table: str, said: str) -> None:
        assert said in complaint(folder(tmp_path, table, name))

    def test_text_that_is_not_utf8_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "captions.csv").write_bytes("image,caption\na.jpg,Señor\n".encode("latin-1"))
        assert "captions.csv: not UTF-8" in complaint(tmp_path)

    def test_of_several_tables_the_user_must_choose(self, tmp_path: Path) -> None:
        folder(tmp_path, "image,caption\na.jpg,A\n", "one.csv")
        folder(tmp_path, "image,caption\nb.jpg,B\n", "two.csv")
        assert "several tables (one.csv, two.csv)" in complaint(tmp_path)
        assert list(by_name(read_dataset(tmp_path, captions="two.csv"))) == ["b.jpg"]


def test_an_unknown_layout_lists_those_that_are_known(tmp_path: Path) -> None:
    line = complaint(tmp_path)
    assert all(f"{name}: {readers[name].layout}" in line for name in readers)


def test_paths_and_names_that_are_wrong_are_the_users_mistakes(tmp_path: Path) -> None:
    assert "no such file or folder" in complaint(tmp_path / "gone")
    assert "did you mean" in complaint(tmp_path, reader="flickr8")
    root = folder(tmp_path, "image,caption\na.jpg,A\n")
    assert "no such file or folder" in complaint(root, image_folder="gone")
    assert "not a folder" in complaint(root, image_folder="captions.csv")
    for name in ("flickr8k", "karpathy", "coco"):
        assert "wanted" in complaint(root, reader=name)


def test_the_stable_split_is_stable_and_near_80_10_10() -> None:
    names = [f"image-{n}.jpg" for n in range(20_000)]
    counts = Counter(map(stable_split, names))
    assert abs(counts["dev"] - 2000) < 150
    assert abs(counts["test"] - 2000) < 150
    assert [stable_split(f"{n}.jpg") for n in (11, 26, 30)] == ["test", "train", "dev"]
    assert stable_split("a\\b.jpg") == stable_split("a/b.jpg"), "the platform must not matter"
    assert {stable_split(name, dev=0, test=0) for name in names[:99]} == {"train"}


@pytest.mark.data
def test_flickr8k_is_read_whole(flickr8k: Path) -> None:
    dataset = read_dataset(flickr8k)
    assert len(dataset) == 8091
    assert sum(len(each.captions) for each in dataset.images) == 40_455
    assert {len(each.captions) for each in dataset.images} == {5}
    assert dataset.splits == {"train": 6000, "dev": 1000, "test": 1000, "": 91}
    assert all(each.path.is_file() for each in dataset.images[::100])
