"""Near-duplicates are found after resizing, recolouring, cropping and mirroring; similar scenes are not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from saywhy.data import overlap
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.datasets import read as read_dataset
from saywhy.data.overlap import difference_hash, find_overlap, read_names, thumbnails
from saywhy.errors import UserError


def photo(seed: int, size: tuple[int, int] = (240, 180)) -> Image.Image:
    """Random shades at several scales, as in a photograph."""
    random = np.random.default_rng(seed)
    layers = [
        np.asarray(Image.fromarray(random.integers(0, 256, (n, n, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC))
        for n in (4, 8, 16, 32)
    ]
    return Image.fromarray(np.mean(layers, axis=0).astype(np.uint8))


def landscape(horizon: int, shade: int, spot: int) -> Image.Image:
    """A bright sky over dark ground, with one small object."""
    image = Image.new("RGB", (240, 180), (shade, shade, shade))
    image.paste((40, 60, 40), (0, horizon, 240, 180))
    image.paste((200, 30, 30), (spot, horizon - 20, spot + 12, horizon))
    return image


CHANGES = {
    "smaller": lambda image: image.resize((120, 90)),
    "another shape": lambda image: image.resize((200, 200)),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "more contrast": lambda image: ImageEnhance.Contrast(image).enhance(1.6),
    "brighter": lambda image: image.point(lambda value: int(255 * (value / 255) ** 0.6)),
    "cropped": lambda image: image.crop((4, 3, 236, 177)),
    "mirrored": ImageOps.mirror,
    "with a caption": lambda image: ImageOps.expand(image.crop((0, 25, 240, 180)), (0, 25, 0, 0), "black"),
}


def dataset(root: Path, **splits: list[Image.Image]) -> Dataset:
    """A data set of these images, saved as JPEG and named after their split and number."""
    root.mkdir(exist_ok=True)
    records = []
    for split, images in splits.items():
        for number, image in enumerate(images):
            path = root / f"{split}{number}.jpg"
            image.save(path, quality=70)
            records.append(CaptionedImage(path.name, path, ("a dog runs",), split))
    return Dataset(root.name, root, tuple(records))


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_photograph_is_found(tmp_path: Path, change: str) -> None:
    train = dataset(tmp_path / "a", train=[photo(seed) for seed in range(20)])
    changed = dataset(tmp_path / "b", test=[photo(100), CHANGES[change](photo(7)), photo(101)])
    (pair,) = find_overlap(train, changed).pairs
    assert (pair.a, pair.b, pair.split_a, pair.split_b) == ("train7.jpg", "test1.jpg", "train", "test")
    assert pair.mirrored == (change == "mirrored")
    assert 0.5 <= pair.similarity <= 1.0001
    assert 0 <= pair.distance <= overlap.MAX_DISTANCE


def test_similar_scenes_are_not_near_duplicates(tmp_path: Path) -> None:
    train = dataset(tmp_path / "a", train=[landscape(100, 230, spot) for spot in (20, 110)])
    test = dataset(tmp_path / "b", test=[landscape(103, 210, spot) for spot in (150, 180)])
    hashes = [difference_hash(thumbnails([image.path for image in data.images])[0]) for data in (train, test)]
    nearest = min((one != other).sum() for one in hashes[0] for other in hashes[1])
    assert nearest <= overlap.MAX_DISTANCE, "the hash alone would list them"
    assert find_overlap(train, test).pairs == ()


def test_the_search_finds_what_comparing_every_pair_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    a, b = (random.random((count, overlap.BITS)) < 0.1 for count in (70, 50))
    expected = {
        (i, j, int((one != other).sum()))
        for i, one in enumerate(a)
        for j, other in enumerate(b)
        if (one != other).sum() <= overlap.MAX_DISTANCE
    }
    assert 0 < len(expected) < len(a) * len(b)
    monkeypatch.setattr(overlap, "_BLOCK", (16, 32))
    columns = [np.concatenate(arrays).tolist() for arrays in zip(*overlap._candidates(a, b), strict=True)]
    assert set(zip(*columns, strict=True)) == expected


def test_splits_of_one_data_set_are_compared(tmp_path: Path) -> None:
    train = [photo(1), photo(2), photo(3), photo(1).resize((180, 135))]
    data = dataset(tmp_path / "a", train=train, dev=[photo(4)], test=[photo(2).resize((120, 90))])
    result = find_overlap(data, data)
    assert [(pair.a, pair.b) for pair in result.pairs] == [("train1.jpg", "test0.jpg")]
    assert (result.images_a, result.images_b, result.names) == (4, 2, ["train1.jpg"])
    within = find_overlap(data, data, splits_b=["train"])
    assert [(pair.a, pair.b) for pair in within.pairs] == [("train0.jpg", "train3.jpg")]


def test_an_image_that_cannot_be_read_is_named_and_the_others_are_compared(tmp_path: Path) -> None:
    data = dataset(tmp_path / "a", train=[photo(1), photo(2)], test=[photo(2)])
    data.images[0].path.write_text("not an image")
    result = find_overlap(data, data)
    assert result.unreadable == (str(data.images[0].path),)
    assert (result.images_a, result.names) == (1, ["train1.jpg"])


def test_a_split_without_images_is_refused(tmp_path: Path) -> None:
    data = dataset(tmp_path / "a", train=[photo(1)])
    with pytest.raises(UserError, match=r"no images in dev, test; it has these splits: train"):
        find_overlap(data, data)
    with pytest.raises(UserError, match="unknown split 'tset'"):
        find_overlap(data, data, splits_b=["tset"])


def test_thumbnails_are_cached_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [image.path for image in dataset(tmp_path / "a", train=[photo(1), photo(2)]).images]
    pixels, readable = thumbnails(paths, cache=tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(overlap, "_thumbnail", lambda path: pytest.fail("computed again"))
        again = thumbnails(paths, cache=tmp_path / "cache")
    assert np.array_equal(again[0], pixels)
    assert readable.tolist() == again[1].tolist() == [True, True]
    photo(3, (250, 190)).save(paths[0])
    assert not np.array_equal(thumbnails(paths, cache=tmp_path / "cache")[0][0], pixels[0])


def test_names_are_read_one_per_line(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("a.jpg\n\n b c.jpg \n")
    assert read_names(tmp_path / "names.txt") == ["a.jpg", "b c.jpg"]
    with pytest.raises(UserError):
        read_names(tmp_path / "absent.txt")


@pytest.mark.data
def test_flickr8k_has_two_near_duplicates_between_train_and_the_other_splits(flickr8k: Path) -> None:
    data = read_dataset(flickr8k)
    result = find_overlap(data, data)
    assert (result.images_a, result.images_b) == (6000, 2000)
    assert result.names == ["191003287_2915c11d8e.jpg", "475313618_bdb2f72be5.jpg"]
