"""Several data sets in one run: their names, weights and styles."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.data.mixture import DataSettings, Mixture, check_settings, parse_data
from saywhy.data.tokenizer import Vocabulary
from saywhy.data.training_batches import Batches
from saywhy.errors import UserError


def dataset(name: str, count: int) -> Dataset:
    images = [CaptionedImage(f"{n}.jpg", Path(name, f"{n}.jpg"), ("a dog",), "train") for n in range(count)]
    images.append(CaptionedImage("dev.jpg", Path(name, "dev.jpg"), ("a cat",), "dev"))
    return Dataset(name, Path(name), tuple(images))


BOTH = {"coco": dataset("coco", 3), "flickr8k": dataset("flickr8k", 2)}
SETTINGS = (DataSettings("coco"), DataSettings("flickr8k", weight=2.5, style="short"))


def test_images_keep_the_weight_and_the_style_of_their_data_set():
    mixture = Mixture.of(BOTH, SETTINGS)
    assert mixture.styles == ("coco", "short")
    assert mixture.per_image("weight") == [1.0, 1.0, 1.0, 2.5, 2.5]
    assert mixture.per_image("style") == ["coco", "coco", "coco", "short", "short"]
    assert mixture.name == "coco + flickr8k"


def test_one_data_set_and_data_sets_of_one_style_have_no_styles():
    assert Mixture.of(dataset("coco", 3)).styles == ()
    assert Mixture.of(BOTH, [DataSettings("coco"), DataSettings("flickr8k", style="coco")]).styles == ()


@pytest.mark.parametrize(
    ("data", "settings", "message"),
    [
        (BOTH["coco"], SETTINGS, "the recipe names coco, flickr8k: give each with --data NAME=DIR"),
        (BOTH, (), "no [[data]] tables"),
        ({"coco": BOTH["coco"]}, SETTINGS, "--data flickr8k=DIR is missing"),
        ({**BOTH, "flicker8k": BOTH["coco"]}, SETTINGS, 'did you mean "flickr8k"'),
    ],
)
def test_data_that_the_recipe_does_not_name_is_refused(data, settings, message):
    with pytest.raises(UserError) as error:
        Mixture.of(data, settings)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (["a", "b"], False, "--data is given more than once"),
        (["a"], True, "write NAME=DIR"),
        (["coco=a", "coco=b"], True, "--data coco=… is given twice: a and b"),
    ],
)
def test_data_arguments_that_cannot_be_meant_are_refused(arguments, named, message):
    with pytest.raises(UserError) as error:
        parse_data(arguments, named)
    assert message in str(error.value)


def test_a_path_may_contain_an_equals_sign():
    assert parse_data(["a=b"], named=False) == {"": Path("a=b")}
    assert parse_data(["coco=a=b"], named=True) == {"coco": Path("a=b")}


def test_a_data_set_is_named_once():
    with pytest.raises(UserError, match="names 'coco' twice"):
        check_settings([DataSettings("coco"), DataSettings("coco")])


@pytest.mark.parametrize(
    "settings", [{"name": "a b"}, {"name": ""}, {"name": "a", "weight": 0.0}, {"name": "a", "style": ">"}]
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(UserError, match=r"data\."):
        DataSettings(**settings)


def test_an_epoch_has_each_image_as_often_as_its_weight():
    words = [[["a"]]] * 200
    batches = Batches(words, Vocabulary.build([["a"]], 1), None, weights=[1.0] * 100 + [2.5] * 100)  # type: ignore[arg-type]
    counts = [
        Counter(image for batch in batches.order("images", 8, 0, epoch) for image, _ in batch) for epoch in (0, 1)
    ]
    for count in counts:
        assert {count[image] for image in range(100)} == {1}
        assert {count[image] for image in range(100, 200)} == {2, 3}
        assert np.mean([count[image] for image in range(100, 200)]) == pytest.approx(2.5, abs=0.2)
    assert counts[0] != counts[1], "the third time is drawn anew for every epoch"


def test_captions_of_a_style_begin_with_its_marker():
    vocabulary = Vocabulary.build([["a"]], 1, styles=["coco", "short"])
    batches = Batches([[["a"]], [["a"]]], vocabulary, None, styles=["coco", "short"])  # type: ignore[arg-type]
    assert [image[0][0] for image in batches.token_ids] == [vocabulary.start("coco"), vocabulary.start("short")]
