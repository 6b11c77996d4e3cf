"""`saywhy caption` prints one caption per image, draws figures, and never changes the images."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import saywhy
from saywhy.captioners.model_folder import VOCABULARY
from saywhy.inference.model import SHIPPED

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"


def test_output_is_one_line_per_image(run, model: Path, photos: list[Path]) -> None:
    result = run("caption", photos[0].parent, "--model", model)
    assert (result.code, result.err) == (0, "")
    assert [line.split(": ")[0] for line in result.out.splitlines()] == [str(path) for path in photos]
    assert all(line.split(": ")[1].startswith("word") for line in result.out.splitlines())


def test_json_is_one_object_per_line(run, model: Path, photos: list[Path]) -> None:
    result = run("caption", *photos, "--model", model, "--json")
    assert (result.code, result.err) == (0, "")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["image"] for row in rows] == [str(path) for path in photos]
    for row in rows:
        assert list(row) == ["image", "caption", "words", "score", "model"]
        assert row["model"] == "tiny"
        assert row["caption"] == " ".join(word["word"] for word in row["words"])
        assert all(list(word) == ["word", "logprob"] and word["logprob"] <= 0 for word in row["words"])
        assert row["score"] < 0
    assert len({row["caption"] for row in rows}) > 1, "the captioner ignores the image"


def test_batch_size_does_not_change_captions(run, model: Path, photos: list[Path]) -> None:
    one, three = (run("caption", *photos, "--model", model, "--batch-size", size).out for size in (1, 3))
    assert one == three


def test_seed_determines_sampled_captions(run, model: Path, photos: list[Path]) -> None:
    first, same, other = (
        run("caption", *photos, "--model", model, "--sample", "--seed", seed).out for seed in (1, 1, 2)
    )
    assert first == same
    assert first != other


@pytest.mark.parametrize("options", [("--temperature", 2), ("--seed", 3), ("--sample", "--beam", 4)])
def test_options_without_effect_are_refused(run, model: Path, photos: list[Path], options: tuple) -> None:
    assert "--sample" in run("caption", photos[0], "--model", model, *options).error


def test_file_name_that_is_not_utf8_is_printed(run, model: Path, photos: list[Path]) -> None:
    path = photos[0].parent / os.fsdecode(b"caf\xe9.png")
    try:
        photos[0].rename(path)
    except OSError:
        pytest.skip("this file system requires UTF-8 names")
    result = run("caption", path, "--model", model, "--json")
    assert result.code == 0
    assert json.loads(result.out)["image"] == str(path)


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_control_characters_never_reach_the_terminal(run, model_copy: Path, photos: list[Path], options) -> None:
    hostile = "\x1b[2Jred\x9b1m\x7f"
    path = photos[0].rename(photos[0].parent / f"{hostile}.png")
    words = json.loads((model_copy / VOCABULARY).read_text())
    (model_copy / VOCABULARY).write_text(json.dumps([word.replace("word", f"{hostile}word") for word in words]))
    result = run("caption", path, path.parent / f"gone{hostile}.png", "--model", model_copy, *options)
    assert result.code == 2
    printed = result.out + result.err
    assert "gone" in result.err
    assert "7fword" in result.out, "the words are printed, with visible escapes"
    assert not [character for character in printed if character != "\n" and not character.isprintable()]
    if options == ("--json",):
        assert json.loads(result.out)["image"] == str(path)


def test_figures_are_one_png_per_image(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    figures = tmp_path / "new" / "figures"
    assert run("caption", *photos, "--model", model, "--figures", figures).code == 0
    assert sorted(path.name for path in figures.iterdir()) == ["0.png", "1.png", "2.png"]
    for path in figures.iterdir():
        with Image.open(path) as figure:
            assert figure.format == "PNG"
            assert figure.width > 80, "larger than the image it shows"


def test_figures_of_images_with_the_same_name_are_all_kept(run, model: Path, photos: list[Path], tmp_path) -> None:
    for folder, photo in zip("abc", photos, strict=True):
        (tmp_path / folder).mkdir()
        photo.rename(tmp_path / folder / "dog.png")
    folders = [tmp_path / folder for folder in "abc"]
    assert run("caption", *folders, "--model", model, "--figures", tmp_path / "out").code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["dog-2.png", "dog-3.png", "dog.png"]


def test_figure_never_overwrites_the_image(run, model: Path, photos: list[Path]) -> None:
    before = photos[0].read_bytes()
    assert run("caption", photos[0], "--model", model, "--figures", photos[0].parent).code == 0
    assert photos[0].read_bytes() == before
    assert (photos[0].parent / "0-2.png").is_file()


def test_figure_of_a_254_character_file_name_gets_a_shorter_name(run, model, photos, tmp_path: Path) -> None:
    names = ["x" * 249 + end for end in ("a.png", "b.png")]
    paths = [shutil.copy(photo, tmp_path / name) for photo, name in zip(photos, names, strict=False)]
    result = run("caption", *paths, "--model", model, "--figures", tmp_path / "out")
    assert (result.code, result.err) == (0, "")
    written = [path.name for path in (tmp_path / "out").iterdir()]
    assert len(written) == 2, "two images, two figures"
    assert all(name.startswith("xxx") and name.endswith(".png") and len(name) < 200 for name in written)


@pytest.mark.parametrize(("name", "kind"), [("all.png", "PNG"), ("new/all.JPG", "JPEG")])
def test_sheet_is_one_picture_of_all_images(run, model: Path, photos: list[Path], tmp_path: Path, name, kind) -> None:
    few, many = tmp_path / "few.png", tmp_path / name
    assert run("caption", photos[0], "--model", model, "--sheet", few).code == 0
    assert run("caption", *photos * 4, "--model", model, "--sheet", many).code == 0
    with Image.open(few) as small, Image.open(many) as large:
        assert large.format == kind
        assert large.height > small.height


def test_sheet_with_a_bad_name_or_too_many_images_is_refused(run, model: Path, photos: list[Path], tmp_path) -> None:
    before = photos[0].read_bytes()
    assert ".png or .jpg" in run("caption", *photos, "--model", model, "--sheet", tmp_path / "all.pdf").error
    assert "overwrite" in run("caption", *photos, "--model", model, "--sheet", photos[0]).error
    assert photos[0].read_bytes() == before
    images = [shutil.copy(photos[0], tmp_path / f"{number}.png") for number in range(201)]
    assert "at most 200 images, not 201" in run("caption", *images, "--model", model, "--sheet", "all.png").error


def test_show_draws_one_panel_per_word(model: Path, photos: list[Path]) -> None:
    loaded = saywhy.load(model)
    short, long = (loaded.caption(photos[0], min_words=length, max_words=length).show() for length in (1, 12))
    assert long.height > short.height
    assert np.asarray(long).std() > 0


def test_shipped_model_captions_the_example_images(run) -> None:
    result = run("caption", EXAMPLES, "--json")
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [Path(row["image"]).name for row in rows] == sorted(path.name for path in EXAMPLES.glob("*.jpg"))
    for row in rows:
        assert row["model"] == SHIPPED
        assert 3 <= len(row["words"]) <= 20
        assert "<" not in row["caption"]


@pytest.mark.parametrize("arguments", [("caption", "--figures"), ("explain", "--out")])
def test_a_folder_that_is_a_loop_of_links_is_one_line(
    run, model: Path, photos: list[Path], tmp_path, arguments
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    command, option = arguments
    result = run(command, photos[0], "--model", model, option, tmp_path / "loop")
    assert result.code == 2
    assert "loop: " in result.err
    assert result.err.count("\n") == 1
