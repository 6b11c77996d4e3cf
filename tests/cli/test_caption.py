"""`saywhy caption` says what is in images, draws it, and leaves the images alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import saywhy
from saywhy.inference.model import SHOWN

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"


def test_a_line_a_image_and_nothing_else(run, model: Path, photos: list[Path]) -> None:
    result = run("caption", photos[0].parent, "--model", model)
    assert (result.code, result.err) == (0, "")
    assert [line.split(": ")[0] for line in result.out.splitlines()] == [str(path) for path in photos]
    assert all(line.split(": ")[1].startswith("word") for line in result.out.splitlines())


def test_json_is_one_object_a_line_and_nothing_else(run, model: Path, photos: list[Path]) -> None:
    result = run("caption", *photos, "--model", model, "--json")
    assert (result.code, result.err) == (0, "")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [line["image"] for line in lines] == [str(path) for path in photos]
    for line in lines:
        assert list(line) == ["image", "caption", "words", "score", "model"]
        assert line["model"] == "tiny"
        assert line["caption"] == " ".join(word["word"] for word in line["words"])
        assert all(list(word) == ["word", "logprob"] and word["logprob"] <= 0 for word in line["words"])
        assert line["score"] < 0
    assert len({line["caption"] for line in lines}) > 1, "a captioner that does not look at the image"


def test_the_batch_changes_no_caption(run, model: Path, photos: list[Path]) -> None:
    one, all_at_once = (run("caption", *photos, "--model", model, "--batch", size).out for size in (1, 3))
    assert one == all_at_once


def test_a_seed_repeats_a_draw_and_another_changes_it(run, model: Path, photos: list[Path]) -> None:
    first, again, other = (
        run("caption", *photos, "--model", model, "--sample", "--seed", seed).out for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_a_name_that_is_no_text_is_still_printed(run, model: Path, photos: list[Path]) -> None:
    odd = photos[0].parent / os.fsdecode(b"caf\xe9.png")
    try:
        photos[0].rename(odd)
    except OSError:
        pytest.skip("this file system knows no such names")
    result = run("caption", odd, "--model", model, "--json")
    assert result.code == 0
    assert json.loads(result.out)["image"] == str(odd)


def test_figures_are_one_png_a_image_named_after_it(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    result = run("caption", *photos, "--model", model, "--figures", tmp_path / "new" / "figures")
    assert result.code == 0
    drawn = sorted((tmp_path / "new" / "figures").iterdir())
    assert [path.name for path in drawn] == ["0.png", "1.png", "2.png"]
    for path in drawn:
        with Image.open(path) as figure:
            assert figure.format == "PNG"
            assert figure.width > 80, "larger than the image it shows"


def test_figures_of_two_images_of_one_name_are_both_kept(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    for folder, photo in zip(("a", "b", "c"), photos, strict=True):
        (tmp_path / folder).mkdir()
        photo.rename(tmp_path / folder / "dog.png")
    folders = [tmp_path / folder for folder in "abc"]
    assert run("caption", *folders, "--model", model, "--figures", tmp_path / "out").code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["dog-2.png", "dog-3.png", "dog.png"]


def test_a_figure_never_replaces_the_image_it_shows(run, model: Path, photos: list[Path]) -> None:
    before = photos[0].read_bytes()
    assert run("caption", photos[0], "--model", model, "--figures", photos[0].parent).code == 0
    assert photos[0].read_bytes() == before
    assert (photos[0].parent / "0-2.png").is_file()


def test_a_caption_keeps_no_larger_image_than_can_be_shown(model: Path) -> None:
    large = Image.new("RGB", (3 * SHOWN, SHOWN), "green")
    caption = saywhy.load(model).caption(large)
    assert caption.image is not None
    assert caption.image.size == (SHOWN, round(SHOWN / 3))
    assert large.size == (3 * SHOWN, SHOWN), "the caller's image is the caller's"


def test_show_draws_a_panel_more_than_there_are_words(model: Path, photos: list[Path]) -> None:
    loaded = saywhy.load(model)
    short, long = (loaded.caption(photos[0], min_words=length, max_words=length).show() for length in (1, 12))
    assert long.height > short.height
    assert np.asarray(long).std() > 0


def test_the_shipped_model_captions_the_examples(run) -> None:
    result = run("caption", EXAMPLES, "--json")
    assert (result.code, result.err) == (0, "")
    lines = [json.loads(line) for line in result.out.splitlines()]
    assert [Path(line["image"]).name for line in lines] == sorted(path.name for path in EXAMPLES.glob("*.[jp][pn]g"))
    for line in lines:
        assert line["model"] == "soft-attention-flickr8k"
        assert 3 <= len(line["words"]) <= 20
        assert "<" not in line["caption"]


@pytest.mark.parametrize("options", [("--temperature", 2), ("--seed", 3), ("--sample", "--beam", 4)])
def test_options_that_would_do_nothing_are_refused(run, model: Path, photos: list[Path], options: tuple) -> None:
    result = run("caption", photos[0], "--model", model, *options)
    assert result.code == 2
    assert "--sample" in result.err
