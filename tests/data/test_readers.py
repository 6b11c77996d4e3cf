"""Layouts are recognised and read; a problem with a file is one line that names it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from saywhy.data.checks import check
from saywhy.data.datasets import Dataset, readers, stable_split
from saywhy.data.datasets import read as read_dataset
from saywhy.errors import UserError


def save_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (16, 16)).save(path)


def captions_of(dataset: Dataset) -> dict[str, tuple[str, ...]]:
    return {image.name: image.captions for image in dataset.images}


def split_of(dataset: Dataset) -> dict[str, str]:
    return {image.name: image.split for image in dataset.images}


def refusal(root: Path, **options: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_dataset(root, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def write_table(tmp_path: Path, table: str, name: str = "captions.csv") -> Path:
    (tmp_path / name).write_bytes(table.encode())
    return tmp_path


class TestFlickr8k:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        for name in ("a.jpg", "b.jpg", "c.jpg", "d.jpg"):
            save_image(tmp_path / "Images" / name)
        rows = [f'{name}.jpg,"{name}, caption {n} ."' for name in "abcd" for n in range(5)]
        (tmp_path / "captions.txt").write_text("\n".join(["image,caption", *rows]))
        for split, name in (("train", "a"), ("dev", "b"), ("test", "c")):
            (tmp_path / f"Flickr_8k.{split}Images.txt").write_text(f"{name}.jpg\n")
        return tmp_path

    def test_captions_and_official_splits_are_read(self, root: Path) -> None:
        dataset = read_dataset(root)
        assert captions_of(dataset)["b.jpg"] == tuple(f"b, caption {n} ." for n in range(5))
        assert split_of(dataset) == {"a.jpg": "train", "b.jpg": "dev", "c.jpg": "test", "d.jpg": ""}
        assert dataset.splits == {"train": 1, "dev": 1, "test": 1, "": 1}
        assert all(image.path.is_file() for image in dataset.images)

    def test_the_authors_token_file_gives_the_same_data_set(self, root: Path) -> None:
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
        assert captions_of(dataset) == {image.name: image.captions for image in expected}
        assert split_of(dataset) == {image.name: image.split for image in expected}
        assert all(image.path.is_file() for image in dataset.images)
        assert any("not an image's: 1" in note for note in dataset.notes)

    def test_an_image_on_two_lists_is_refused(self, root: Path) -> None:
        (root / "Flickr_8k.trainImages.txt").write_text("a.jpg\nc.jpg\n")
        with pytest.raises(UserError, match=r"testImages.txt: 1 of its images .* such as c\.jpg in train"):
            read_dataset(root)

    def test_a_listed_image_without_captions_is_noted(self, root: Path) -> None:
        (root / "Flickr_8k.trainImages.txt").write_text("a.jpg\nunknown.jpg\n")
        dataset = read_dataset(root)
        assert any("1 of 2 names have no captions" in note for note in dataset.notes)

    def test_a_malformed_token_line_is_named(self, root: Path) -> None:
        (root / "captions.txt").unlink()
        (root / "Flickr8k.token.txt").write_text("a.jpg#0\tA dog .\na.jpg A dog .\n")
        assert "Flickr8k.token.txt: line 2" in refusal(root)

    def test_an_empty_split_is_refused_with_the_splits_there_are(self, root: Path) -> None:
        assert [image.name for image in read_dataset(root).split("dev").images] == ["b.jpg"]
        with pytest.raises(UserError, match=r"'val'; it has these splits: train \(1\), dev \(1\), test \(1\)"):
            read_dataset(root).split("val")


class TestKarpathy:
    def entry(self, name: str, split: str, **fields: str) -> dict[str, Any]:
        return {
            "filename": name,
            "split": split,
            "sentences": [{"raw": f"{name} one"}, {"raw": "two"}],
            **fields,
        }

    def write(self, root: Path, *entries: dict[str, Any]) -> Path:
        (root / "dataset_coco.json").write_text(json.dumps({"images": entries, "dataset": "coco"}))
        return root

    def test_restval_is_trained_on_and_val_is_dev(self, tmp_path: Path) -> None:
        splits = ("train", "restval", "val", "test")
        root = self.write(tmp_path, *(self.entry(f"{n}.jpg", split) for n, split in enumerate(splits)))
        assert [image.split for image in read_dataset(root).images] == ["train", "train", "dev", "test"]
        assert read_dataset(root).images[0].captions == ("0.jpg one", "two")

    @pytest.mark.parametrize("folder", ["val2014", "images/val2014"])
    def test_sub_folders_of_coco_are_found(self, tmp_path: Path, folder: str) -> None:
        save_image(tmp_path / folder / "v.jpg")
        root = self.write(tmp_path, self.entry("v.jpg", "test", filepath="val2014"))
        assert read_dataset(root).images[0].path == tmp_path / folder / "v.jpg"

    def test_the_json_file_itself_may_be_given(self, tmp_path: Path) -> None:
        save_image(tmp_path / "far" / "x.jpg")
        self.write(tmp_path, self.entry("x.jpg", "train"))
        dataset = read_dataset(tmp_path / "dataset_coco.json", image_folder=tmp_path / "far")
        assert dataset.images[0].path.is_file()

    def test_a_caption_that_is_not_text_is_refused(self, tmp_path: Path) -> None:
        root = self.write(tmp_path, {"filename": "a.jpg", "split": "train", "sentences": [{"raw": ["a", "dog"]}]})
        assert "unexpected contents (a caption that is not text)" in refusal(root)

    def test_malformed_json_is_located(self, tmp_path: Path) -> None:
        (tmp_path / "dataset_coco.json").write_text('{"images": [\n{"sentences": }]}')
        assert "line 2, column 15" in refusal(tmp_path)
        self.write(tmp_path, {"filename": "a.jpg", "sentences": []})
        assert "no 'split'" in refusal(tmp_path)


class TestCoco:
    def write(self, path: Path, captions: dict[str, list[tuple[int, str]]], **fields: Any) -> Path:
        """Write a file in COCO's form; `fields` are added to every image."""
        images = [{"id": number, "file_name": name, **fields} for number, name in enumerate(captions)]
        annotations = [
            {"image_id": image, "id": number, "caption": caption}
            for image, pairs in enumerate(captions.values())
            for number, caption in pairs
        ]
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({"info": {}, "images": images, "annotations": annotations}))
        return path

    def test_train_is_train_val_is_dev_and_five_captions_are_kept_by_id(self, tmp_path: Path) -> None:
        folder = tmp_path / "annotations"
        self.write(folder / "captions_train2014.json", {"t.jpg": [(9 - n, f"caption {9 - n}") for n in range(7)]})
        self.write(folder / "captions_val2014.json", {"v.jpg": [(1, "A dog.\n")]})
        save_image(tmp_path / "train2014" / "t.jpg")
        save_image(tmp_path / "val2014" / "v.jpg")
        dataset = read_dataset(tmp_path)
        assert captions_of(dataset)["t.jpg"] == ("caption 3", "caption 4", "caption 5", "caption 6", "caption 7")
        assert captions_of(dataset)["v.jpg"] == ("A dog.",)
        assert split_of(dataset) == {"t.jpg": "train", "v.jpg": "dev"}
        assert all(image.path.is_file() for image in dataset.images)
        assert dataset.notes == (
            "COCO has no test captions of its own; val is dev",
            "captions_train2014.json: captions beyond 5 per image dropped: 2",
        )

    def test_of_two_years_the_latest_is_read(self, tmp_path: Path) -> None:
        self.write(tmp_path / "annotations" / "captions_val2014.json", {"old.jpg": [(1, "a")]})
        self.write(tmp_path / "annotations" / "captions_val2017.json", {"new.jpg": [(1, "a")]})
        assert list(captions_of(read_dataset(tmp_path))) == ["new.jpg"]
        old = read_dataset(tmp_path, captions="annotations/captions_val2014.json")
        assert list(captions_of(old)) == ["old.jpg"]

    @pytest.mark.parametrize("name", ["captions.json", "my photographs.json"])
    @pytest.mark.parametrize("reader", [None, "coco"])
    def test_a_file_in_its_form_is_recognised_and_serves_every_split(
        self, tmp_path: Path, name: str, reader: str | None
    ) -> None:
        path = self.write(tmp_path / name, {"a.jpg": [(n, f"caption {n}") for n in range(7)], "b.jpg": [(9, "A cat")]})
        (tmp_path / "instances.json").write_text('{"images": [], "annotations": [{"bbox": []}]}')
        for root in (path, tmp_path):
            dataset = read_dataset(root, reader=reader)
            assert captions_of(dataset) == {"a.jpg": tuple(f"caption {n}" for n in range(7)), "b.jpg": ("A cat",)}
            assert dataset.splits == {"any": 2}
            assert f"{name} names no split" in dataset.notes[0]
            for split in ("train", "dev", "test"):
                assert split_of(dataset.split(split)) == {"a.jpg": split, "b.jpg": split}

    def test_a_file_without_splits_cannot_be_trained_on(self, tmp_path: Path) -> None:
        dataset = read_dataset(self.write(tmp_path / "captions.json", {"a.jpg": [(1, "A dog")]}))
        with pytest.raises(UserError, match="train and dev must not share images"):
            dataset.train_and_dev()

    @pytest.mark.parametrize(
        ("name", "split"),
        [
            ("captions_val2017.json", "dev"),
            ("captions_test.json", "test"),
            ("karpathy-test.json", "test"),
            ("Validation 2.json", "dev"),
            ("captions_train2014.json", "train"),
        ],
    )
    def test_the_name_of_a_file_decides_the_split(self, tmp_path: Path, name: str, split: str) -> None:
        path = self.write(tmp_path / name, {"a.jpg": [(1, "A dog")]}, split="restval")
        assert split_of(read_dataset(path)) == {"a.jpg": split}

    def test_files_for_several_splits_are_read_together(self, tmp_path: Path) -> None:
        for name in ("train", "val", "test"):
            self.write(tmp_path / f"captions_{name}.json", {f"{name}.jpg": [(1, "A dog")]})
        assert split_of(read_dataset(tmp_path)) == {"train.jpg": "train", "val.jpg": "dev", "test.jpg": "test"}

    def test_a_field_of_the_image_decides_where_the_name_does_not(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "captions.json", {"a.jpg": [(1, "A dog")]}, split="val")
        assert split_of(read_dataset(path)) == {"a.jpg": "dev"}

    def test_of_several_files_the_user_must_choose(self, tmp_path: Path) -> None:
        for name in ("one.json", "two.json"):
            self.write(tmp_path / name, {"a.jpg": [(1, "A dog")]})
        assert "several captions files (one.json, two.json)" in refusal(tmp_path)

    def test_a_table_of_captions_is_preferred_to_a_json_file_without_a_split(self, tmp_path: Path) -> None:
        self.write(tmp_path / "export.json", {"a.jpg": [(1, "A dog")]})
        assert captions_of(read_dataset(write_table(tmp_path, "image,caption\nb.jpg,A cat\n"))) == {"b.jpg": ("A cat",)}

    @pytest.mark.parametrize(
        ("contents", "detail"),
        [
            ('{"images": [], "annotations": [{"file_name": 1, "caption": "a"}]}', "no 'image_id'"),
            (
                '{"images": [{"id": 1, "file_name": "a"}], "annotations": [{"image_id": 1, "caption": 7}]}',
                "not text: 7",
            ),
            ('[{"file_name": "a", "annotations": [], "caption": "a"}]', "unexpected contents"),
            ('{"images": 3, "annotations": [], "file_name": 1, "caption": "a"}', "unexpected contents"),
            ('{"file_name": 1, "caption": 1, "annotations": ' + "[" * 100_000, "nested too deeply"),
        ],
    )
    def test_other_contents_are_refused_in_one_line(self, tmp_path: Path, contents: str, detail: str) -> None:
        path = tmp_path / "captions.json"
        path.write_text(contents)
        assert detail in refusal(path)

    def test_images_in_an_unusual_folder_are_hinted_at(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "captions.json", {"a.jpg": [(1, "A dog")], "b.jpg": [(2, "A cat")]})
        for name in ("a.jpg", "b.jpg"):
            save_image(tmp_path / "photographs" / name)
        (problem,) = check(read_dataset(path)).problems
        assert problem == ("images missing: 2 (a.jpg, b.jpg); if they are in another folder, name it with --images DIR")
        report = check(read_dataset(path, image_folder=tmp_path / "photographs"))
        assert report.ok
        assert report.coverage["any"].captions == 0


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
        dataset = read_dataset(write_table(tmp_path, "\r\n".join(lines)))
        assert captions_of(dataset) == {"a.jpg": ('A dog, a cat and "Rex"', "Two dogs"), "b.jpg": ("Señor Ñu",)}

    def test_unquoted_commas_belong_to_the_caption(self, tmp_path: Path) -> None:
        dataset = read_dataset(write_table(tmp_path, "image,caption\na.jpg,A dog, a cat, a cow\n"))
        assert captions_of(dataset)["a.jpg"] == ("A dog, a cat, a cow",)

    @pytest.mark.parametrize("name", ["captions.jsonl", "metadata.jsonl", "mine.jsonl"])
    def test_json_lines_with_the_other_column_names(self, tmp_path: Path, name: str) -> None:
        table = '{"file_name": "a.jpg", "text": "A dog"}\n\n{"file_name": "b.jpg", "text": ["One", "Two"]}\r\n'
        assert captions_of(read_dataset(write_table(tmp_path, table, name))) == {
            "a.jpg": ("A dog",),
            "b.jpg": ("One", "Two"),
        }

    @pytest.mark.parametrize("folder", ["", "Images", "images", "sub/folder"])
    def test_images_are_found_in_the_usual_folders(self, tmp_path: Path, folder: str) -> None:
        save_image(tmp_path / folder / "a.jpg")
        name = f"{folder}/a.jpg" if folder == "sub/folder" else "a.jpg"
        dataset = read_dataset(write_table(tmp_path, f"image,caption\n{name},A dog\n"))
        assert dataset.images[0].path.is_file()

    def test_blank_captions_are_dropped_and_repeated_ones_counted(self, tmp_path: Path) -> None:
        table = "image,caption\na.jpg,A dog\na.jpg,  \na.jpg,A  dog\nb.jpg,\n"
        dataset = read_dataset(write_table(tmp_path, table))
        assert captions_of(dataset) == {"a.jpg": ("A dog", "A dog")}
        assert "blank captions dropped: 2" in dataset.notes
        assert "captions that repeat another of the same image (kept): 1" in dataset.notes
        assert "images dropped because all their captions are blank: 1" in dataset.notes

    def test_a_split_column_decides_the_split(self, tmp_path: Path) -> None:
        table = "image,caption,split\na.jpg,A,train\nb.jpg,B,val\nc.jpg,C,test\nd.jpg,D,\n"
        dataset = read_dataset(write_table(tmp_path, table))
        assert split_of(dataset) == {"a.jpg": "train", "b.jpg": "dev", "c.jpg": "test", "d.jpg": ""}

    def test_split_files_decide_without_a_split_column(self, tmp_path: Path) -> None:
        root = write_table(tmp_path, "image,caption\na.jpg,A\nb.jpg,B\nc.jpg,C\n")
        (root / "train.txt").write_text("a.jpg\r\n\r\n")
        (root / "dev.txt").write_text("b.jpg\n")
        assert split_of(read_dataset(root)) == {"a.jpg": "train", "b.jpg": "dev", "c.jpg": ""}

    def test_a_stable_hash_decides_without_column_and_files_and_is_noted(self, tmp_path: Path) -> None:
        rows = [f"{n}.jpg,A dog" for n in range(50)]
        forwards = read_dataset(write_table(tmp_path, "\n".join(["image,caption", *rows])))
        backwards = read_dataset(write_table(tmp_path, "\n".join(["image,caption", *reversed(rows)])))
        assert split_of(forwards) == split_of(backwards)
        assert any("80/10/10" in note for note in forwards.notes)

    def test_a_missing_column_names_the_file_and_the_columns(self, tmp_path: Path) -> None:
        line = refusal(write_table(tmp_path, "picture,caption\na.jpg,A dog\n"))
        assert "captions.csv: line 1: no column image or file_name; its columns are: picture, caption" in line
        line = refusal(write_table(tmp_path, '{"image": "a.jpg", "words": "A"}', "x.jsonl"), captions="x.jsonl")
        assert "no column caption or text; its columns are: image, words" in line

    @pytest.mark.parametrize(
        ("name", "table", "detail"),
        [
            ("captions.jsonl", '{"image": "a.jpg", "caption": "A"}\n{"image": \n', "line 2: malformed JSON"),
            ("captions.jsonl", "[" * 100_000, "line 1: malformed JSON (nested too deeply)"),
            ("captions.jsonl", '["a.jpg", "A dog"]\n', "line 1: not an object"),
            ("captions.jsonl", '{"image": "a.jpg", "caption": 7}\n', "line 1: image must be a file name"),
            ("captions.csv", "image,caption\na.jpg,A\nb.jpg\n", "line 3: 1 columns, but the header has 2"),
            ("captions.csv", "caption,image\nA dog, a cat,a.jpg\n", "line 2: 3 columns"),
            ("captions.csv", "image,caption,split\na.jpg,A,holdout\n", "line 2: unknown split 'holdout'"),
            (
                "captions.csv",
                "image,caption,split\na.jpg,A,dev\na.jpg,B,test\n",
                "in two splits, dev and test",
            ),
            ("captions.csv", 'image,caption\na.jpg,"A dog\nb.jpg,A "cat"\nc.jpg,B\n', "is never closed"),
            ("captions.csv", "image,caption\n", "has no caption"),
            ("captions.csv", "", "its columns are: none"),
        ],
    )
    def test_a_bad_row_is_named_by_file_and_line(self, tmp_path: Path, name: str, table: str, detail: str) -> None:
        assert detail in refusal(write_table(tmp_path, table, name))

    def test_text_that_is_not_utf8_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "captions.csv").write_bytes("image,caption\na.jpg,Señor\n".encode("latin-1"))
        assert "captions.csv: not UTF-8" in refusal(tmp_path)

    def test_of_several_tables_the_user_must_choose(self, tmp_path: Path) -> None:
        write_table(tmp_path, "image,caption\na.jpg,A\n", "one.csv")
        write_table(tmp_path, "image,caption\nb.jpg,B\n", "two.csv")
        assert "several tables (one.csv, two.csv)" in refusal(tmp_path)
        assert list(captions_of(read_dataset(tmp_path, captions="two.csv"))) == ["b.jpg"]


def test_an_unknown_layout_lists_the_known_ones(tmp_path: Path) -> None:
    line = refusal(tmp_path)
    assert all(f"{name}: {readers[name].layout}" in line for name in readers)


def test_a_name_that_no_file_can_have_is_refused(tmp_path: Path) -> None:
    assert "'a\\x00b.jpg' is not the name of a file" in refusal(write_table(tmp_path, "image,caption\na\0b.jpg,A\n"))


def test_a_caption_with_half_a_surrogate_pair_is_refused(tmp_path: Path) -> None:
    (tmp_path / "captions.jsonl").write_text('{"image": "a.jpg", "caption": "a \\ud800 dog"}\n')
    assert "a caption of a.jpg has half of a surrogate pair" in refusal(tmp_path)


def test_wrong_paths_and_reader_names_are_refused(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "gone")
    assert "did you mean" in refusal(tmp_path, reader="flickr8")
    root = write_table(tmp_path, "image,caption\na.jpg,A\n")
    assert "no such file or folder" in refusal(root, image_folder="gone")
    assert "not a folder" in refusal(root, image_folder="captions.csv")
    for name in ("flickr8k", "karpathy", "coco"):
        assert "expected" in refusal(root, reader=name)


def test_the_stable_split_is_stable_and_close_to_80_10_10() -> None:
    names = [f"image-{n}.jpg" for n in range(20_000)]
    counts = Counter(map(stable_split, names))
    assert abs(counts["dev"] - 2000) < 150
    assert abs(counts["test"] - 2000) < 150
    assert [stable_split(f"{n}.jpg") for n in (11, 26, 30)] == ["test", "train", "dev"]
    assert stable_split("a\\b.jpg") == stable_split("a/b.jpg"), "the platform must not matter"
    assert {stable_split(name, dev=0, test=0) for name in names[:99]} == {"train"}


@pytest.mark.data
def test_flickr8k_is_read_completely(flickr8k: Path) -> None:
    dataset = read_dataset(flickr8k)
    assert len(dataset) == 8091
    assert sum(len(image.captions) for image in dataset.images) == 40_455
    assert {len(image.captions) for image in dataset.images} == {5}
    assert dataset.splits == {"train": 6000, "dev": 1000, "test": 1000, "": 91}
    assert all(image.path.is_file() for image in dataset.images[::100])
