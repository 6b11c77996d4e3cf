"""Which words and images changed between two sets of captions, and the page that shows it."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tiny
from reference import comparison as reference
from saywhy.data.datasets import CaptionedImage, Dataset
from saywhy.hallucination.chair import ImageObjects
from saywhy.reports.comparison import CaptionSet, Comparison, ScoredCaption, compare
from saywhy.reports.comparison_page import comparison_page, marked_caption

A = ["a man eats a hot dog", "a dog runs", "a cat on a table", "a <b> & 'c'"]
B = ["a man eats pizza", "a dog runs", "two cats on a table", "a dog runs on grass"]
REFERENCES = [
    ["A man eats pizza.", "a guy with pizza"],
    ["a dog runs fast", "the dog"],
    ["a cat on a table", "one cat"],
    ["a <dog> runs on grass", "a dog on grass & mud"],
]
OBJECTS = tuple(map(frozenset, (["person", "pizza"], ["dog"], ["cat"], ["dog"])))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("images")
    images = [
        CaptionedImage(path.name, path, tuple(group), "test")
        for path, group in zip(tiny.image_files(folder, len(A)), REFERENCES, strict=True)
    ]
    images[3].path.write_text("not an image")
    return Dataset("mine", folder, tuple(images))


def captions(name: str, data: Dataset, texts: list[str]) -> CaptionSet:
    return CaptionSet(name, "given", {image.name: text.split() for image, text in zip(data.images, texts, strict=True)})


@pytest.fixture(scope="module")
def comparison(data: Dataset) -> Comparison:
    sides = captions("<first>", data, A), captions("second", data, B)
    return compare(*sides, data, ImageObjects(OBJECTS), with_meteor=False, samples=50)


def test_words_are_counted_in_captions_and_names_of_several_words_stay_whole(comparison: Comparison) -> None:
    gained = {change.word: change for change in comparison.gained}
    lost = {change.word: change for change in comparison.lost}
    assert (lost["hot dog"].a, lost["hot dog"].b, lost["hot dog"].a_hallucinated) == (1, 0, 1)
    assert (gained["pizza"].b, gained["pizza"].b_hallucinated) == (1, 0)
    assert (gained["dog"].a, gained["dog"].b) == (1, 2), "the dog of a hot dog is no dog"
    slow = [reference.word_counts([text.split() for text in texts]) for texts in (A, B)]
    for change in (*comparison.gained, *comparison.lost):
        if not change.is_object:
            assert (change.a, change.b) == (slow[0].get(change.word, 0), slow[1].get(change.word, 0))


def test_object_words_come_first_and_unchanged_words_are_left_out(comparison: Comparison) -> None:
    for changes in (comparison.gained, comparison.lost):
        kinds = [change.is_object for change in changes]
        assert kinds == sorted(kinds, reverse=True)
    assert "table" not in {change.word for change in (*comparison.gained, *comparison.lost)}


def test_images_are_sorted_by_their_change_of_cider(comparison: Comparison) -> None:
    assert [change.name for change in comparison.worse] == ["2.png"]
    assert {change.name for change in comparison.better} == {"0.png", "3.png"}
    rises = [change.difference for change in comparison.better]
    assert rises == sorted(rises, reverse=True)
    assert comparison.unchanged == 1
    assert comparison.vocabulary == (len({*" ".join(A).split()}), len({*" ".join(B).split()}))


def test_number_of_images_and_words_is_limited(data: Dataset) -> None:
    sides = captions("a", data, A), captions("b", data, B)
    few = compare(*sides, data, ImageObjects(OBJECTS), with_meteor=False, samples=10, images=1, words=1)
    assert (len(few.better), len(few.worse)) == (1, 1)
    assert [change.is_object for change in few.gained] == [True, False]


def test_rarity_of_the_images_that_got_better_and_worse(data: Dataset) -> None:
    counts = {"pizza": 7, "guy": 9, "grass": 5, "mud": 4, "cat": 20, "table": 30, "one": 40, "man": 60, "eats": 70}
    a, b = captions("a", data, A), captions("b", data, B)
    result = compare(a, b, data, ImageObjects(OBJECTS), word_counts=counts, with_meteor=False, samples=10)
    assert (result.rarity.improved_images, result.rarity.degraded_images, result.rarity.unchanged_images) == (2, 1, 1)
    assert result.rarity.degraded == 20  # "cat" of the third image
    assert result.as_dict()["rarity"]["degraded"] == {"mean_count": 20, "images": 1}
    assert "20.0 (1)" in comparison_page(result, {})
    assert compare(a, b, data, ImageObjects(OBJECTS), with_meteor=False, samples=10).rarity is None


def test_identical_captions_have_no_difference(data: Dataset) -> None:
    sides = captions("a", data, A), captions("b", data, A)
    same = compare(*sides, data, ImageObjects(OBJECTS), with_meteor=False, samples=20)
    assert {(row.difference.value, row.difference.low, row.difference.high) for row in same.scores} == {(0, 0, 0)}
    assert not any(row.excludes_zero for row in same.scores)
    assert (same.gained, same.lost, same.better, same.worse) == ((), (), (), ())
    assert 'id="better"' not in comparison_page(same, {})


@pytest.mark.parametrize(
    ("text", "other", "marked"),
    [
        ("a dog runs", "a cat runs", "a <ins>dog</ins> runs"),
        ("a big red dog", "a dog", "a <ins>big red</ins> dog"),
        ("a dog", "a dog runs", "a dog"),
        ("", "a dog", ""),
        ("a man 's dog", "a man", "a man<ins>&#x27;s dog</ins>"),
        ("x < y", "x y", "x <ins>&lt;</ins> y"),
    ],
)
def test_changed_words_are_marked(text: str, other: str, marked: str) -> None:
    caption, another = (ScoredCaption(tuple(words.split()), 0.0) for words in (text, other))
    assert marked_caption(caption, another, "ins").replace("'", "&#x27;") == marked


def test_all_words_of_a_hallucinated_name_are_underlined(comparison: Comparison) -> None:
    change = next(change for change in comparison.better if change.name == "0.png")
    assert sorted(change.a.hallucinated) == [4, 5]
    text = marked_caption(change.a, change.b, "del")
    assert text.count('class="made-up"') == 2
    assert change.b.hallucinated == frozenset()


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects the ids, the anchors and the sources."""

    VOID = ("meta", "link", "img", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.urls: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.urls += [value for name, value in attrs if name in ("src", "href") and value]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_complete_and_needs_no_other_file(comparison: Comparison, data: Dataset) -> None:
    text = comparison_page(comparison, {image.name: image.path for image in data.images})
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert all(url.startswith("data:") or url.removeprefix("#") in page.ids for url in page.urls)
    assert sum(url.startswith("data:image/jpeg") for url in page.urls) == 2
    assert text.count("cannot be read") == 1
    assert "&lt;first&gt; and second on mine test" in text
    assert "<first>" not in text
    assert "{{" not in text
    for row in comparison.scores:
        assert f'<th scope="row">{row.name}</th><td>{row.a:.1f}</td><td>{row.b:.1f}</td>' in text
    for reference_text in REFERENCES[0]:
        assert reference_text in text
    assert not re.search(r"https?://", text)


def test_page_of_missing_image_files_is_still_written(comparison: Comparison) -> None:
    text = comparison_page(comparison, {"0.png": Path("/nowhere/0.png")})
    assert text.count("cannot be read") == 3
