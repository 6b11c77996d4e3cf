"""`saywhy explain` says why, in files and in a few lines; what cannot be explained is told before it begins."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
import typer
from PIL import Image

import tiny
from saywhy.cli import app
from saywhy.explain import METHODS, Explanation, composites

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"
FILES = ["explanation.json", "maps.npz", "report.html", "words.png"]
FAST = ("--method", "attention")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def told(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "explanation.json").read_text(encoding="utf-8"))


class Links(HTMLParser):
    """The links of a page, and whatever it would fetch."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "href" and tag == "a":
                self.links.append(unquote(value or ""))
            elif name in ("src", "href") and not (value or "").startswith("data:"):
                self.fetched.append(value or "")


def no_model_is_loaded(*_: object) -> None:
    raise AssertionError("the mistake should have been found before a model is loaded")


@dataclass(frozen=True)
class Shipped:
    """What the shipped model made of a photograph."""

    image: Path
    out: Path
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    image, out = EXAMPLES / "chelsea.png", tmp_path_factory.mktemp("shipped") / "why"
    asked = ("explain", image, "--out", out, "--method", "lrp,attention", "--device", "cpu")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "saywhy", *map(str, asked)]
    return Shipped(image, out, subprocess.run(command, capture_output=True, text=True, env=one_thread))


def test_the_shipped_model_explains_a_photograph(run, shipped: Shipped) -> None:
    assert (shipped.done.returncode, shipped.done.stderr) == (0, "")
    assert names(shipped.out) == FILES
    said = run("caption", shipped.image, "--device", "cpu").out.strip()
    title, head, *rows, where = shipped.done.stdout.splitlines()
    assert title == said
    columns = ["word", "probability", "from", "image", "made", "up", "strongest", "earlier", "word", "(lrp)"]
    assert head.split() == columns
    found = told(shipped.out)
    assert f"{shipped.image}: {found['caption']}" == said
    assert [row.split()[0] for row in rows] == found["tokens"]
    for row, word in zip(rows, found["words"], strict=True):
        cells = row.split()
        assert cells[1:3] == [f"{word['probability']:.1%}", f"{word['share']:.0%}"]
        weights = word["earlier"]["lrp"]
        strongest = np.abs(weights).argmax() if weights else None
        risk = [] if word["risk"] is None else [f"{word['risk']:.0%}"]
        weight = [] if strongest is None else [found["tokens"][strongest], f"{weights[strongest]:+.2f}"]
        assert cells[3:] == [*risk, *weight]
    assert any(word["risk"] is not None for word in found["words"])
    assert where == f"{shipped.out / 'report.html'}, and words.png, explanation.json, maps.npz beside it"


def test_what_it_wrote_is_an_explanation_whose_books_balance(shipped: Shipped) -> None:
    found, loaded = told(shipped.out), Explanation.load(shipped.out)
    assert list(found)[:3] == ["image", "caption", "model"]
    assert (found["model"], found["methods"]) == ("soft-attention-flickr8k", ["lrp", "attention"])
    for word in found["words"]:
        assert {"word", "logit", "probability", "budget", "earlier"} <= set(word)
        assert list(word["budget"]) == ["image", "words", "start", "absorbed"]
        assert sum(word["budget"].values()) == pytest.approx(word["logit"], abs=1e-3 * max(1, abs(word["logit"])))
    assert loaded.as_dict() == found
    with Image.open(shipped.image) as image:
        assert loaded.map(1).shape == (image.height, image.width)
    with Image.open(shipped.out / "words.png") as figure:
        assert figure.format == "PNG"
    assert Links(shipped.out / "report.html").fetched == [], "a report needs no network"


def test_json_is_what_explanation_json_holds_on_a_line(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "why"
    result = run("explain", *photos, "--model", model, "--out", out, "--json", *FAST)
    assert (result.code, result.err) == (0, "")
    assert [json.loads(line) for line in result.out.splitlines()] == [told(out / name) for name in "012"]


def test_of_a_folder_each_image_has_a_folder_and_an_index_leads_to_all(run, model, photos, tmp_path: Path) -> None:
    out = tmp_path / "new" / "why"
    result = run("explain", photos[0].parent, "--model", model, "--out", out, *FAST)
    assert (result.code, result.err) == (0, "")
    assert names(out) == ["0", "1", "2", "index.html"]
    for name in "012":
        assert names(out / name) == FILES
        assert told(out / name)["image"] == str(photos[int(name)])
    index = Links(out / "index.html")
    assert index.links == ["0/report.html", "1/report.html", "2/report.html"]
    assert index.fetched == []
    assert [line for line in result.out.splitlines() if "report.html" in line] == [
        f"{out / name / 'report.html'}, and words.png, explanation.json, maps.npz beside it" for name in "012"
    ]


def test_a_folder_of_one_image_is_a_folder(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    for photo in photos[1:]:
        photo.unlink()
    assert run("explain", photos[0].parent, "--model", model, "--out", tmp_path / "why", *FAST).code == 0
    assert names(tmp_path / "why") == ["0", "index.html"]


def test_images_of_one_name_are_all_kept_and_no_name_leads_out(run, model, photos, tmp_path: Path) -> None:
    given = [tmp_path / name for name in ("a/dog.png", "b/Dog.png", "c/index.html.png", "...png")]
    tiny.image_files(tmp_path, 4)
    for number, path in enumerate(given):
        path.parent.mkdir(exist_ok=True)
        (tmp_path / f"{number}.png").rename(path)
    out = tmp_path / "deep" / "why"
    assert run("explain", *given, "--model", model, "--out", out, *FAST).code == 0
    assert names(out) == ["Dog-2", "dog", "image", "index.html", "index.html-2"]
    assert names(out.parent) == ["why"]
    assert Links(out / "index.html").links == [
        f"{name}/report.html" for name in ("dog", "Dog-2", "index.html-2", "image")
    ]


def test_no_image_is_ever_written_over(run, monkeypatch, model: Path, photos: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    image = photos[0].rename(folder / "words.png")
    before = image.read_bytes()
    assert run("explain", image, photos[1], "--model", model, "--out", tmp_path, *FAST).code == 0
    assert names(folder) == ["words.png"]
    assert names(tmp_path / "words-2") == FILES
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    complaint = run("explain", image, "--out", folder).complaint
    assert complaint == f"saywhy: --out {folder}: words.png there would be written over; choose another folder"
    assert image.read_bytes() == before


def test_methods_are_named_with_commas_or_one_by_one_and_are_all_by_default(run, model, photos, tmp_path: Path) -> None:
    def methods(*options: str) -> list[str]:
        assert run("explain", photos[0], "--model", model, "--out", tmp_path / "why", *options).code == 0
        found = told(tmp_path / "why")["methods"]
        assert set(Explanation.load(tmp_path / "why").maps) == set(found)
        return found

    assert methods() == list(METHODS)
    assert methods("--method", "gradcam, LRP", "--method", "attention,lrp") == ["gradcam", "lrp", "attention"]
    assert methods("--method", "guided-gradcam") == ["guided-gradcam"]


def test_the_table_takes_the_first_method_that_weighs_words(run, model: Path, photos: list[Path], tmp_path) -> None:
    def head(*methods: str) -> str:
        asked = ("--method", ",".join(methods), "--caption", "word0 word1")
        result = run("explain", photos[0], "--model", model, "--out", tmp_path / "why", *asked)
        assert result.code == 0
        return result.out.splitlines()[1].strip()

    assert head("attention", "gradcam", "lrp").endswith("strongest earlier word (gradcam)")
    assert head("attention").endswith("strongest earlier word (lrp)")


def test_a_typed_caption_is_explained_on_each_image(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    asked = ("--caption", "Word3 word1, word3.", "--json", *FAST)
    result = run("explain", *photos, "--model", model, "--out", tmp_path / "why", *asked)
    assert (result.code, result.err) == (0, "")
    found = [json.loads(line) for line in result.out.splitlines()]
    assert [each["caption"] for each in found] == ["word3 word1 word3"] * 3
    assert len({each["words"][0]["logit"] for each in found}) == 3


@pytest.mark.parametrize(
    ("options", "row"),
    [
        (["--word", "word1"], ["word1"]),
        (["--word", "word3"], ["word3", "word3"]),
        (["--at", 3], ["word3"]),
        (["--at", 2, "--word", "word5"], ["word5 (said: word1)"]),
        (["--at", 2, "--instead", "word6"], ["word1, not word6"]),
        (["--at", 2, "--word", "word5", "--instead", "word6"], ["word5, not word6 (said: word1)"]),
    ],
)
def test_one_word_is_explained_or_another_in_its_place(run, model, photos, tmp_path, options: list, row: list) -> None:
    asked = ("--caption", "word3 word1 word3", *options, "--method", "attention")
    result = run("explain", photos[0], "--model", model, "--out", tmp_path / "why", *asked)
    assert (result.code, result.err) == (0, "")
    assert [re.split(r"\s{2,}", line)[0] for line in result.out.splitlines()[2:-1]] == row


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "epsilon-plus"),
        (["--composite", "alpha2-beta1"], "alpha2-beta1"),
        (["--epsilon", "0.1", "--relative"], "epsilon-plus, ε 0.1 relative"),
        (["--composite", "paper", "--epsilon", "0"], "paper, ε 0"),
        (["--composite", "paper", "--epsilon", "0.01"], "paper"),
    ],
)
def test_the_rules_of_lrp_are_told(run, model: Path, photos: list[Path], tmp_path: Path, options, name: str) -> None:
    result = run("explain", photos[0], "--model", model, "--out", tmp_path, *options, "--method", "lrp", "--json")
    assert (result.code, json.loads(result.out)["composite"]) == (0, name)


def test_another_epsilon_is_another_explanation_of_the_same_logit(run, model, photos, tmp_path: Path) -> None:
    def first(*options: str) -> dict[str, Any]:
        asked = ("--model", model, "--out", tmp_path, "--json", *FAST, *options)
        return json.loads(run("explain", photos[0], *asked).out)["words"][0]

    usual, much = first(), first("--epsilon", "10")
    assert much["logit"] == usual["logit"]
    assert much["budget"] != usual["budget"]
    assert sum(much["budget"].values()) == pytest.approx(much["logit"], abs=1e-3)


def test_it_explains_the_caption_that_decoding_finds(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    for beam in (1, 4):
        said = run("caption", *photos, "--model", model, "--beam", beam).out.splitlines()
        asked = ("--model", model, "--out", tmp_path / "why", "--beam", beam, *FAST)
        assert [line for line in run("explain", *photos, *asked).out.splitlines() if line in said] == said


def test_the_batch_changes_no_explanation(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    asked = ("explain", *photos, "--model", model, "--out", tmp_path / "why", "--method", "lrp")
    one, all_at_once = (run(*asked, "--batch", size).out for size in (1, 3))
    assert one == all_at_once


def test_a_name_that_is_no_text_is_still_explained(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    odd = photos[0].parent / os.fsdecode(b"caf\xe9.png")
    try:
        photos[0].rename(odd)
    except OSError:
        pytest.skip("this file system knows no such names")
    result = run("explain", odd, photos[1], "--model", model, "--out", tmp_path / "why", "--json", *FAST)
    assert (result.code, result.err) == (0, "")
    place = tmp_path / "why" / odd.stem
    assert names(place) == FILES
    assert told(place)["image"] == str(odd)
    assert (tmp_path / "why" / "index.html").is_file()


def test_a_terminal_sees_progress_and_a_file_what_was_found(
    run, model: Path, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes anything for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    result = run("explain", *photos, "--model", model, "--out", tmp_path / "why", "--json", *FAST)
    assert result.code == 0
    assert len([json.loads(line) for line in result.out.splitlines()]) == 3
    assert "explaining" in result.err
    assert "3/3" in result.err


def test_help_names_every_method_and_every_composite() -> None:
    group: Any = typer.main.get_command(app)
    helps = {option.name: option.help for option in group.commands["explain"].params}
    assert [name for name in METHODS if name not in helps["method"]] == []
    assert [name for name in composites if name not in helps["composite"]] == []


WRONG: list[tuple[list[str], str]] = [
    (["--method", "lrpp"], "unknown method 'lrpp': did you mean \"lrp\"?"),
    (["--method", "lrp,,grad-cam"], "unknown method 'grad-cam': did you mean \"gradcam\"?"),
    (["--method", " , "], "name a method to explain with"),
    (["--composite", "epsilon-pluss"], "unknown composite 'epsilon-pluss': did you mean \"epsilon-plus\"?"),
    (["--epsilon", "-1"], "'--epsilon'"),
    (["--epsilon", "nan"], "psilon"),
    (["--epsilon", "inf"], "epsilon = inf is out of range"),
    (["--word", "wird1"], "the word 'wird1' is not in the model's vocabulary of 7: near it are word1"),
    (["--word", ""], "'' is not one word"),
    (["--instead", "zeppelin"], "the word 'zeppelin' is not in the model's vocabulary of 7: nothing is near it"),
    (["--word", "word1", "--instead", "Word1"], "why 'word1' and not 'word1': these are the same word"),
    (["--caption", "word1 wird2"], "the word 'wird2' is not in the model's vocabulary of 7: near it are word2"),
    (["--caption", ""], "the caption '' has no words"),
    (["--caption", " ... "], "has no words"),
    (["--caption", "word1 " * 7], "the caption has 7 words, and this model says at most 6: shorten it"),
    (["--caption", "word1 word2", "--at", "3"], "there is no word 3 in 'word1 word2': it has 2"),
    (["--caption", "word1", "--beam", "3"], "--caption gives one: give one or the other"),
    (["--at", "0"], "'--at'"),
    (["--at", "7"], "there is no word 7: this model says at most 6 words"),
    (["--beam", "0"], "'--beam'"),
    (["--attend", "sideways"], "unknown way to attend 'sideways'"),
    (["--batch", "0"], "'--batch'"),
    (["--beem", "3"], "--beam"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_what_cannot_be_explained_is_one_line_before_a_model_is_loaded(
    run, monkeypatch, model: Path, photos: list[Path], tmp_path: Path, options: list[str], said: str
) -> None:
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    out = tmp_path / "why"
    assert said in run("explain", photos[0], "--model", model, "--out", out, *options).complaint
    assert not out.exists()


def test_a_folder_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    run, monkeypatch: pytest.MonkeyPatch, photos: list[Path], tmp_path: Path
) -> None:
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    assert "is a file, and should be a folder" in run("explain", photos[0], "--out", photos[1]).complaint
    assert "cannot be written" in run("explain", photos[0], "--out", photos[1] / "deep" / "down").complaint
    monkeypatch.setattr("os.access", lambda _, mode: not mode & os.W_OK)  # root, too, may write nowhere now
    assert "permission denied" in run("explain", photos[0], "--out", tmp_path / "new").complaint
    assert not (tmp_path / "new").exists()
    assert "Missing option '--out'" in run("explain", photos[0]).complaint


def test_models_and_images_that_are_not_there_are_named(run, monkeypatch, photos: list[Path], tmp_path) -> None:
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    out = ("--out", tmp_path / "why")
    assert "no model at no-such-model" in run("explain", photos[0], *out, "--model", "no-such-model").complaint
    assert "gone.jpg: no such file or folder" in run("explain", tmp_path / "gone.jpg", *out).complaint
    photos[0].write_text("milk, bread, eggs")
    assert "0.png: not an image" in run("explain", photos[0], *out).complaint
    assert not (tmp_path / "why").exists()


def test_a_broken_image_among_others_is_named_and_the_others_are_explained(
    run, model: Path, photos: list[Path], tmp_path: Path
) -> None:
    photos[1].write_bytes(photos[1].read_bytes()[:300])
    out = tmp_path / "why"
    given = ("explain", photos[0].parent, tmp_path / "gone.jpg", "--model", model, "--out", out)
    result = run(*given, "--json", *FAST)
    assert result.code == 2
    assert [json.loads(line)["image"] for line in result.out.splitlines()] == [str(photos[0]), str(photos[2])]
    assert sorted(line.split(": ")[1] for line in result.err.splitlines()) == sorted(
        [str(photos[1]), str(tmp_path / "gone.jpg")]
    )
    assert names(out) == ["0", "2", "index.html"]


def test_a_image_broken_within_leaves_no_folder(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    photos[0].write_bytes(photos[0].read_bytes()[:300])
    for given in ([photos[0]], [photos[0], photos[0]]):
        result = run("explain", *given, "--model", model, "--out", tmp_path / "why", *FAST)
        assert (result.code, result.out) == (2, "")
        assert [line.split(": ")[2][:7] for line in result.err.splitlines()] == ["damaged"] * len(given)
        assert not (tmp_path / "why").exists()


def test_images_whose_captions_are_too_short_are_named_and_the_others_are_explained(
    run, model: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "many"
    photos.mkdir()
    tiny.image_files(photos, 8)
    said = dict(line.split(": ") for line in run("caption", photos, "--model", model).out.splitlines())
    longest = max(len(caption.split()) for caption in said.values())
    short = [path for path, caption in said.items() if len(caption.split()) < longest]
    assert 0 < len(short) < 8
    result = run("explain", photos, "--model", model, "--out", tmp_path / "why", "--at", longest, "--json", *FAST)
    assert result.code == 2
    assert [line.split(": ")[1] for line in result.err.splitlines()] == short
    assert f"there is no word {longest} in '{said[short[0]]}'" in result.err
    assert [json.loads(line)["image"] for line in result.out.splitlines()] == [p for p in said if p not in short]
