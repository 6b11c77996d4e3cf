"""The report counts images and captions and names every problem of a data set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from saywhy.data.checks import check, require_different_data, require_images, require_separate_splits
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.datasets import read as read_dataset
from saywhy.errors import UserError


def save_image(root: Path, name: str, split: str, *captions: str, shade: int | None = None) -> CaptionedImage:
    """An image on disk; without `shade`, its pixels differ from those of all others."""
    path = root / name
    colour = (sum(name.encode()) % 256, len(name), 7) if shade is None else (shade, shade, shade)
    Image.new("RGB", (80, 70), colour).save(path)
    return CaptionedImage(name, path, captions or ("a dog runs",), split)


@pytest.fixture
def good(tmp_path: Path) -> Dataset:
    images = (
        save_image(tmp_path, "a.png", "train", "A dog runs .", "A dog sits ."),
        save_image(tmp_path, "bb.png", "train", "A dog runs , a dog sits !"),
        save_image(tmp_path, "ccc.png", "dev", "A dog runs .", "A zebra sits ."),
        save_image(tmp_path, "dddd.png", "test", "Dog ."),
    )
    return Dataset("mine", tmp_path, images, ("a note",))


def with_more(dataset: Dataset, *images: CaptionedImage) -> Dataset:
    return Dataset(dataset.name, dataset.root, (*dataset.images, *images), dataset.notes)


def test_a_good_data_set_is_counted_and_has_no_problems(good: Dataset) -> None:
    report = check(good, vocabulary_min_count=2)
    assert report.ok
    assert report.problems == []
    assert (report.images, report.captions) == (4, 6)
    assert report.splits == {"train": 2, "dev": 1, "test": 1}
    assert report.captions_per_image.histogram == {1: 2, 2: 2}
    assert (report.captions_per_image.min, report.captions_per_image.mean) == (1, 1.5)
    assert report.caption_lengths.max == 6
    assert report.modes == {"RGB": 4}
    assert report.notes == ("a note",)


def test_the_vocabulary_comes_from_train_only(good: Dataset) -> None:
    report = check(good, vocabulary_min_count=2)
    assert report.vocabulary == 4  # a, dog, runs, sits
    assert report.coverage["dev"].tokens == pytest.approx(5 / 6)
    assert report.coverage["dev"].captions == 0.5
    assert report.coverage["test"].captions == 1.0
    assert check(good, vocabulary_min_count=3).vocabulary == 2  # a, dog


def test_missing_and_unreadable_images_are_named_with_the_reason(good: Dataset) -> None:
    (good.root / "text.jpg").write_text("not an image at all")
    report = check(
        with_more(
            good,
            CaptionedImage("gone.jpg", good.root / "gone.jpg", ("a",), "train"),
            CaptionedImage("text.jpg", good.root / "text.jpg", ("a",), "train"),
        )
    )
    assert report.missing == ("gone.jpg",)
    assert [problem.name for problem in report.unreadable] == ["text.jpg"]
    assert "not an image" in report.unreadable[0].reason
    assert report.problems == [
        "images missing: 1 (gone.jpg)",
        "images that cannot be read: 1 (text.jpg)",
    ]


def test_a_few_missing_images_get_no_hint_at_another_folder(good: Dataset) -> None:
    gone = [CaptionedImage(f"{n}.jpg", good.root / f"{n}.jpg", ("a",), "train") for n in range(5)]
    assert "--images" not in check(with_more(good, *gone[:4])).problems[0]
    assert "if they are in another folder, name it with --images DIR" in check(with_more(good, *gone)).problems[0]


def test_images_in_two_splits_are_found_by_their_contents(good: Dataset) -> None:
    copies = [save_image(good.root, name, split, shade=9) for name, split in (("x.png", "train"), ("y.png", "test"))]
    report = check(with_more(good, *copies))
    assert report.shared == (("train/x.png", "test/y.png"),)
    assert report.problems == ["images that are in two splits: 1 (train/x.png = test/y.png)"]
    assert check(with_more(good, *copies), open_all=False).ok, "contents are not read then"


def test_a_name_in_two_splits_is_found_without_opening(good: Dataset) -> None:
    again = CaptionedImage("a.png", good.root / "a.png", ("a",), "test")
    for open_all in (True, False):
        assert check(with_more(good, again), open_all=open_all).shared == (("train/a.png", "test/a.png"),)


def test_copies_within_a_split_are_reported_and_not_a_problem(good: Dataset) -> None:
    copies = [save_image(good.root, name, "train", shade=9) for name in ("x.png", "y.png")]
    report = check(with_more(good, *copies))
    assert report.duplicates == (("train/x.png", "train/y.png"),)
    assert report.ok


def test_unusual_modes_and_sizes_are_reported(good: Dataset) -> None:
    Image.new("CMYK", (70, 300)).save(good.root / "long.jpg")
    Image.new("L", (30, 30)).save(good.root / "small.png")
    names = ("long.jpg", "small.png")
    report = check(with_more(good, *(CaptionedImage(name, good.root / name, ("a",), "train") for name in names)))
    assert [(problem.name, problem.reason) for problem in report.odd] == [
        ("long.jpg", "long: 70×300"),
        ("small.png", "small: 30×30"),
    ]
    assert report.modes == {"RGB": 4, "CMYK": 1, "L": 1}
    assert report.sizes == {"smallest": (30, 30), "largest": (70, 300)}


def test_an_empty_train_split_is_a_problem(good: Dataset) -> None:
    report = check(good.split("test"))
    assert report.problems == ["no images to train on: split train is empty"]


def test_progress_is_reported_up_to_the_end(good: Dataset) -> None:
    many = with_more(good, *good.images * 40)
    calls: list[tuple[int, int]] = []
    check(many, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(64, 164), (128, 164), (164, 164)]


def test_the_report_can_be_written_as_json(good: Dataset) -> None:
    fields = json.loads(json.dumps(check(good).as_dict()))
    assert fields["ok"] is True
    assert fields["coverage"]["dev"]["captions"] == 0.0
    assert fields["captions_per_image"]["histogram"] == {"1": 2, "2": 2}


@pytest.mark.data
def test_flickr8k_has_no_problems(flickr8k: Path) -> None:
    report = check(read_dataset(flickr8k))
    assert report.ok
    assert (report.images, report.captions) == (8091, 40_455)
    assert report.splits == {"train": 6000, "dev": 1000, "test": 1000, "": 91}
    assert report.captions_per_image.histogram == {5: 8091}
    assert report.modes == {"RGB": 8091}
    assert 2500 < report.vocabulary < 2600
    assert report.coverage["test"].tokens > 0.96


@pytest.mark.parametrize("workers", [0, 2])
def test_a_truncated_jpeg_is_found_among_many_images(good: Dataset, workers: int) -> None:
    Image.effect_noise((200, 160), 90).save(good.root / "cut.jpg", quality=90)
    whole = (good.root / "cut.jpg").read_bytes()
    (good.root / "cut.jpg").write_bytes(whole[: len(whole) * 9 // 10])
    cut = CaptionedImage("cut.jpg", good.root / "cut.jpg", ("a",), "train")
    report = check(with_more(good, cut), workers=workers)
    assert [problem.name for problem in report.unreadable] == ["cut.jpg"]
    assert "damaged" in report.unreadable[0].reason


def other_data(root: Path, *images: tuple[str, str, int]) -> Dataset:
    """A second data set in its own folder: name, split and shade of each image."""
    root.mkdir()
    return Dataset(root.name, root, tuple(save_image(root, name, split, shade=shade) for name, split, shade in images))


def test_a_data_set_given_twice_is_refused(good: Dataset, tmp_path: Path) -> None:
    link = tmp_path.parent / f"{tmp_path.name}-link"
    link.symlink_to(tmp_path)
    for again in (good, replace(good, root=link)):
        with pytest.raises(UserError, match="given twice"):
            require_different_data([good, again])
    other = other_data(tmp_path / "other", ("a.png", "train", 3))
    require_different_data([good, other])
    halves = [replace(good, images=good.images[:2]), replace(good, images=good.images[2:])]
    require_different_data(halves)  # two captions files in one folder


def test_splits_that_share_an_image_are_refused(good: Dataset, tmp_path: Path) -> None:
    require_separate_splits([good])
    again = CaptionedImage("a.png", good.root / "a.png", ("a",), "dev")
    with pytest.raises(UserError, match=r"a\.png of mine is in train, and it is a\.png in dev of mine;"):
        require_separate_splits([with_more(good, again)])
    (good.root / "link.png").symlink_to(good.root / "a.png")
    linked = CaptionedImage("link.png", good.root / "link.png", ("a",), "test")
    with pytest.raises(UserError, match=r"it is link\.png in test of mine;"):
        require_separate_splits([with_more(good, linked)])


def test_two_data_sets_that_share_an_image_across_splits_are_refused(good: Dataset, tmp_path: Path) -> None:
    train = with_more(good, save_image(good.root, "x.png", "train", shade=7))
    same_name = other_data(tmp_path / "other", ("x.png", "dev", 8))
    assert (tmp_path / "other/x.png").stat().st_size == (good.root / "x.png").stat().st_size
    require_separate_splits([train, same_name])  # another image that has the same name and size
    copies = other_data(tmp_path / "copies", ("x.png", "dev", 7), ("y.png", "train", 9))
    with pytest.raises(UserError, match=r"x\.png of mine is in train, and it is x\.png in dev of copies;"):
        require_separate_splits([train, copies])
    in_train_twice = other_data(tmp_path / "more", ("x.png", "train", 7))
    require_separate_splits([train, in_train_twice])


def test_the_number_of_shared_images_is_said(good: Dataset) -> None:
    again = [CaptionedImage(image.name, image.path, ("a",), "test") for image in good.split("train").images]
    with pytest.raises(UserError, match="and 1 more"):
        require_separate_splits([with_more(good, *again)])


def test_a_split_may_miss_one_image_or_one_in_a_hundred(good: Dataset) -> None:
    present = good.images[0]
    gone = CaptionedImage("gone.jpg", good.root / "gone.jpg", ("a",), "train")
    require_images(replace(good, images=(present,) * 99 + (gone,)))
    with pytest.raises(UserError, match=r"2 of the 100 images of train do not exist, such as .*gone\.jpg"):
        require_images(replace(good, images=(present,) * 98 + (gone,) * 2))
    require_images(replace(good, images=(present, gone)))
    with pytest.raises(UserError, match="none of the 2 images of train exists"):
        require_images(replace(good, images=(gone, gone)))
