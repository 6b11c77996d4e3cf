"""Images are left out of train by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.errors import UserError


@pytest.fixture
def data() -> Dataset:
    splits = {"a.jpg": "train", "b.jpg": "train", "c.jpg": "dev", "d.jpg": "test"}
    images = tuple(CaptionedImage(name, Path(name), ("a dog",), split) for name, split in splits.items())
    return Dataset("mine", Path("mine"), images, ("a note",))


def test_images_are_left_out_of_train_only(data: Dataset) -> None:
    smaller = data.without(["b.jpg", "c.jpg"])
    assert [image.name for image in smaller.images] == ["a.jpg", "c.jpg", "d.jpg"]
    assert (smaller.name, smaller.notes) == ("mine", ("a note",))
    assert data.without([]) == data


def test_an_unknown_name_is_refused(data: Dataset) -> None:
    with pytest.raises(UserError, match=r"mine: it has no image 'x.jpg' and 1 others"):
        data.without(["a.jpg", "x.jpg", "y.jpg"])
