"""`saywhy explain` writes explanations and prints a short table; impossible requests are refused at once."""

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
from saywhy.explain.methods import REPORT_METHODS
from saywhy.inference.model import SHIPPED

EXAMPLES = Path(__file__).parents[2] / "examples" / "images"
FILES = ["explanation.json", "maps.npz", "report.html", "words.png"]
FAST = ("--method", "attention")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def explanation_json(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "explanation.json").read_text(encoding="utf-8"))


class Links(HTMLParser):
    """The links of a page, and what a browser would fetch for it."""

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


@dataclass(frozen=True)
class Shipped:
    """The shipped model's explanation of a photograph."""

    image: Path
    out: Path
    process: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    image, out = EXAMPLES / "chelsea.jpg", tmp_path_factory.mktemp("shipped") / "why"
    arguments = ("explain", image, "--out", out, "--method", "lrp,attention", "--device", "cpu")
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "saywhy", *map(str, arguments)]
    return Shipped(image, out, subprocess.run(command, capture_output=True, text=True, env=one_thread))


def test_shipped_model_explains_a_photograph(run, shipped: Shipped) -> None:
    assert (shipped.process.returncode, shipped.process.stderr) == (0, "")
    assert names(shipped.out) == FILES
    caption_line = run("caption", shipped.image, "--device", "cpu").out.strip()
    title, head, *rows, last = shipped.process.stdout.splitlines()
    assert title == caption_line
    columns = ["word", "probability", "from", "image", "made", "up", "strongest", "earlier", "word", "(lrp)"]
    assert head.split() == columns
    saved = explanation_json(shipped.out)
    assert f"{shipped.image}: {saved['caption']}" == caption_line
    assert [row.split()[0] for row in rows] == saved["tokens"]
    for row, word in zip(rows, saved["words"], strict=True):
        cells = row.split()
        assert cells[1:3] == [f"{word['probability']:.1%}", f"{word['image_share']:.0%}"]
        weights = word["earlier_words"]["lrp"]
        strongest = np.abs(weights).argmax() if weights else None
        risk = [] if word["risk"] is None else [f"{word['risk']:.0%}"]
        weight = [] if strongest is None else [saved["tokens"][strongest], f"{weights[strongest]:+.2f}"]
        assert cells[3:] == [*risk, *weight]
    assert any(word["risk"] is not None for word in saved["words"])
    assert last == f"{shipped.out / 'report.html'}, and words.png, explanation.json, maps.npz beside it"


def test_written_explanation_conserves_relevance(shipped: Shipped) -> None:
    saved, loaded = explanation_json(shipped.out), Explanation.load(shipped.out)
    assert {"image", "caption", "model"} <= set(saved)
    assert (saved["model"], saved["methods"]) == (SHIPPED, ["lrp", "attention"])
    for word in saved["words"]:
        assert {"word", "logit", "score", "probability", "budget", "earlier_words"} <= set(word)
        assert list(word["budget"]) == ["image", "earlier_words", "initial_state", "absorbed"]
        assert sum(word["budget"].values()) == pytest.approx(word["score"], abs=1e-3 * max(1, abs(word["score"])))
    assert loaded.as_dict() == saved
    with Image.open(shipped.image) as image:
        assert loaded.map(1).shape == (image.height, image.width)
    with Image.open(shipped.out / "words.png") as figure:
        assert figure.format == "PNG"
    assert Links(shipped.out / "report.html").fetched == [], "a report needs no network"


def test_json_line_equals_explanation_json(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "why"
    result = run("explain", *photos, "--model", model, "--out", out, "--json", *FAST)
    assert (result.code, result.err) == (0, "")
    assert [json.loads(line) for line in result.out.splitlines()] == [explanation_json(out / name) for name in "012"]


def test_folder_of_images_gets_one_folder_per_image_and_an_index(run, model, photos, tmp_path: Path) -> None:
    out = tmp_path / "new" / "why"
    result = run("explain", photos[0].parent, "--model", model, "--out", out, *FAST)
    assert (result.code, result.err) == (0, "")
    assert names(out) == ["0", "1", "2", "index.html"]
    for name in "012":
        assert names(out / name) == FILES
        assert explanation_json(out / name)["image"] == str(photos[int(name)])
    index = Links(out / "index.html")
    assert index.links == ["0/report.html", "1/report.html", "2/report.html"]
    assert index.fetched == []
    assert [line for line in result.out.splitlines() if "report.html" in line] == [
        f"{out / name / 'report.html'}, and words.png, explanation.json, maps.npz beside it" for name in "012"
    ]


def test_folder_of_one_image_also_gets_an_index(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    for photo in photos[1:]:
        photo.unlink()
    assert run("explain", photos[0].parent, "--model", model, "--out", tmp_path / "why", *FAST).code == 0
    assert names(tmp_path / "why") == ["0", "index.html"]


def test_output_folders_are_distinct_and_stay_inside_out(run, model, photos, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a/dog.png", "b/Dog.png", "c/index.html.png", "...png")]
    tiny.image_files(tmp_path, 4)
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        (tmp_path / f"{number}.png").rename(path)
    out = tmp_path / "deep" / "why"
    assert run("explain", *paths, "--model", model, "--out", out, *FAST).code == 0
    assert names(out) == ["Dog-2", "dog", "image", "index.html", "index.html-2"]
    assert names(out.parent) == ["why"]
    assert Links(out / "index.html").links == [
        f"{name}/report.html" for name in ("dog", "Dog-2", "index.html-2", "image")
    ]


def test_images_are_never_overwritten(run, request, model: Path, photos: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    image = photos[0].rename(folder / "words.png")
    before = image.read_bytes()
    assert run("explain", image, photos[1], "--model", model, "--out", tmp_path, *FAST).code == 0
    assert names(folder) == ["words.png"]
    assert names(tmp_path / "words-2") == FILES
    request.getfixturevalue("no_model")
    error = run("explain", image, "--out", folder).error
    assert error == f"saywhy: --out {folder}: would overwrite the image words.png in it; choose another folder"
    assert image.read_bytes() == before


def test_methods_are_separated_by_commas_or_repeated_and_default_to_all(run, model, photos, tmp_path: Path) -> None:
    def methods(*options: str) -> list[str]:
        assert run("explain", photos[0], "--model", model, "--out", tmp_path / "why", *options).code == 0
        names = explanation_json(tmp_path / "why")["methods"]
        assert set(Explanation.load(tmp_path / "why").maps) == set(names)
        return names

    assert methods() == list(REPORT_METHODS)
    assert methods("--method", "gradcam, LRP", "--method", "attention,lrp") == ["gradcam", "lrp", "attention"]
    assert methods("--method", "guided-gradcam") == ["guided-gradcam"]


def test_table_uses_the_first_method_that_scores_earlier_words(run, model: Path, photos: list[Path], tmp_path) -> None:
    def head(*methods: str) -> str:
        options = ("--method", ",".join(methods), "--caption", "word0 word1")
        result = run("explain", photos[0], "--model", model, "--out", tmp_path / "why", *options)
        assert result.code == 0
        return result.out.splitlines()[1].strip()

    assert head("attention", "gradcam", "lrp").endswith("strongest earlier word (gradcam)")
    assert head("attention").endswith("strongest earlier word (lrp)")


def test_given_caption_is_explained_for_every_image(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    options = ("--caption", "Word3 word1, word3.", "--json", *FAST)
    result = run("explain", *photos, "--model", model, "--out", tmp_path / "why", *options)
    assert (result.code, result.err) == (0, "")
    rows = [json.loads(line) for line in result.out.splitlines()]
    assert [row["caption"] for row in rows] == ["word3 word1 word3"] * 3
    assert len({row["words"][0]["logit"] for row in rows}) == 3


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        (["--word", "word1"], ["word1"]),
        (["--word", "word3"], ["word3", "word3"]),
        (["--position", 3], ["word3"]),
        (["--position", 2, "--word", "word5"], ["word5 (caption: word1)"]),
        (["--position", 2, "--contrast", "word6"], ["word1, not word6"]),
        (["--position", 2, "--word", "word5", "--contrast", "word6"], ["word5, not word6 (caption: word1)"]),
    ],
)
def test_one_word_is_explained_or_another_at_its_position(
    run, model, photos, tmp_path, options: list, labels: list
) -> None:
    arguments = ("--caption", "word3 word1 word3", *options, "--method", "attention")
    result = run("explain", photos[0], "--model", model, "--out", tmp_path / "why", *arguments)
    assert (result.code, result.err) == (0, "")
    assert [re.split(r"\s{2,}", line)[0] for line in result.out.splitlines()[2:-1]] == labels


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "by-stride"),
        (["--score", "logp", "--map", "seen"], "by-stride, score logp, map seen"),
        (["--composite", "paper", "--map", "features"], "paper, map features"),
        (["--map", "apart", "--word", "word1"], "by-stride, map apart"),
        (["--map", "centred", "--position", "1"], "by-stride, map centred"),
        (["--composite", "alpha2-beta1"], "alpha2-beta1"),
        (["--epsilon", "0.1", "--relative-epsilon"], "by-stride, ε 0.1 relative"),
        (["--composite", "paper", "--epsilon", "0"], "paper, ε 0"),
        (["--composite", "paper", "--epsilon", "0.01"], "paper"),
    ],
)
def test_composite_and_epsilon_are_recorded(
    run, model: Path, photos: list[Path], tmp_path: Path, options, name: str
) -> None:
    result = run("explain", photos[0], "--model", model, "--out", tmp_path, *options, "--method", "lrp", "--json")
    assert (result.code, json.loads(result.out)["composite"]) == (0, name)


def test_epsilon_changes_the_budget_and_not_the_score(run, model, photos, tmp_path: Path) -> None:
    def first_word(*options: str) -> dict[str, Any]:
        arguments = ("--model", model, "--out", tmp_path, "--json", *FAST, *options)
        return json.loads(run("explain", photos[0], *arguments).out)["words"][0]

    small, large = first_word(), first_word("--epsilon", "10")
    assert large["score"] == small["score"]
    assert large["budget"] != small["budget"]
    assert sum(large["budget"].values()) == pytest.approx(large["score"], abs=1e-3)


def test_explained_caption_is_that_of_caption(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    for beam in (1, 4):
        captions = run("caption", *photos, "--model", model, "--beam", beam).out.splitlines()
        options = ("--model", model, "--out", tmp_path / "why", "--beam", beam, *FAST)
        printed = run("explain", *photos, *options).out.splitlines()
        assert [line for line in printed if line in captions] == captions


def test_batch_size_does_not_change_explanations(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    command = ("explain", *photos, "--model", model, "--out", tmp_path / "why", "--method", "lrp")
    one, three = (run(*command, "--batch-size", size).out for size in (1, 3))
    assert one == three


def test_file_name_that_is_not_utf8_is_explained(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    path = photos[0].parent / os.fsdecode(b"caf\xe9.png")
    try:
        photos[0].rename(path)
    except OSError:
        pytest.skip("this file system requires UTF-8 names")
    result = run("explain", path, photos[1], "--model", model, "--out", tmp_path / "why", "--json", *FAST)
    assert (result.code, result.err) == (0, "")
    folder = tmp_path / "why" / path.stem
    assert names(folder) == FILES
    assert explanation_json(folder)["image"] == str(path)
    assert (tmp_path / "why" / "index.html").is_file()


def test_terminal_shows_progress_on_stderr_and_json_on_stdout(
    run, model: Path, photos: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then treats any stream as a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    result = run("explain", *photos, "--model", model, "--out", tmp_path / "why", "--json", *FAST)
    assert result.code == 0
    assert len([json.loads(line) for line in result.out.splitlines()]) == 3
    assert "explaining" in result.err
    assert "3/3" in result.err


def test_help_lists_all_methods_and_composites() -> None:
    group: Any = typer.main.get_command(app)
    helps = {option.name: option.help for option in group.commands["explain"].params}
    assert [name for name in METHODS if name not in helps["method"]] == []
    assert [name for name in composites if name not in helps["composite"]] == []


WRONG: list[tuple[list[str], str]] = [
    (["--method", "lrpp"], "unknown method 'lrpp': did you mean \"lrp\"?"),
    (["--method", "lrp,,grad-cam"], "unknown method 'grad-cam': did you mean \"gradcam\"?"),
    (["--method", " , "], "name at least one method"),
    (["--composite", "epsilon-pluss"], "unknown composite 'epsilon-pluss': did you mean \"epsilon-plus\"?"),
    (["--epsilon", "-1"], "'--epsilon'"),
    (["--epsilon", "nan"], "psilon"),
    (["--epsilon", "inf"], "epsilon = inf"),
    (["--epsilon", "1e308"], "epsilon = 1e+308"),
    (["--word", "wird1"], "the word 'wird1' is not in the model's vocabulary of 7: similar words are word1"),
    (["--word", " "], "' ' is not one word"),
    (["--contrast", "zeppelin"], "the word 'zeppelin' is not in the model's vocabulary of 7: no word is similar"),
    (["--word", "word1", "--contrast", "Word1"], "the contrast of 'word1' is the same word"),
    (["--caption", "word1 wird2"], "the word 'wird2' is not in the model's vocabulary of 7: similar words are word2"),
    (["--caption", " "], "the caption ' ' has no words"),
    (["--caption", " ... "], "has no words"),
    (["--caption", "word1 " * 7], "the caption has 7 words"),
    (["--caption", "word1 word2", "--position", "3"], "no word 3 in 'word1 word2': it has 2 words"),
    (["--caption", "word1", "--beam", "3"], "--caption gives one: use one or the other"),
    (["--position", "0"], "'--position'"),
    (["--position", "7"], "position 7 is out of range"),
    (["--beam", "0"], "'--beam'"),
    (["--attention", "sideways"], "unknown attention mode 'sideways'"),
    (["--batch-size", "0"], "'--batch-size'"),
    (["--beem", "3"], "--beam"),
]


@pytest.mark.parametrize(("options", "message"), WRONG)
def test_impossible_request_is_refused_before_a_model_is_loaded(
    run, no_model, model: Path, photos: list[Path], tmp_path: Path, options: list[str], message: str
) -> None:
    out = tmp_path / "why"
    assert message in run("explain", photos[0], "--model", model, "--out", out, *options).error
    assert not out.exists()


def test_unreadable_image_is_named_and_the_others_are_explained(
    run, model: Path, photos: list[Path], tmp_path: Path
) -> None:
    photos[1].write_bytes(photos[1].read_bytes()[:300])
    out = tmp_path / "why"
    command = ("explain", photos[0].parent, tmp_path / "gone.jpg", "--model", model, "--out", out)
    result = run(*command, "--json", *FAST)
    assert result.code == 2
    assert [json.loads(line)["image"] for line in result.out.splitlines()] == [str(photos[0]), str(photos[2])]
    assert sorted(line.split(": ")[1] for line in result.err.splitlines()) == sorted(
        [str(photos[1]), str(tmp_path / "gone.jpg")]
    )
    assert names(out) == ["0", "2", "index.html"]


def test_damaged_image_leaves_no_folder(run, model: Path, photos: list[Path], tmp_path: Path) -> None:
    photos[0].write_bytes(photos[0].read_bytes()[:300])
    for paths in ([photos[0]], [photos[0], photos[0]]):
        result = run("explain", *paths, "--model", model, "--out", tmp_path / "why", *FAST)
        assert (result.code, result.out) == (2, "")
        assert [line.split(": ")[2][:7] for line in result.err.splitlines()] == ["damaged"] * len(paths)
        assert not (tmp_path / "why").exists()


def test_images_with_captions_too_short_are_named_and_the_others_are_explained(
    run, model: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "many"
    photos.mkdir()
    tiny.image_files(photos, 8)
    captions = dict(line.split(": ") for line in run("caption", photos, "--model", model).out.splitlines())
    longest = max(len(caption.split()) for caption in captions.values())
    short = [path for path, caption in captions.items() if len(caption.split()) < longest]
    assert 0 < len(short) < 8
    result = run("explain", photos, "--model", model, "--out", tmp_path / "why", "--position", longest, "--json", *FAST)
    assert result.code == 2
    assert [line.split(": ")[1] for line in result.err.splitlines()] == short
    assert f"no word {longest} in '{captions[short[0]]}'" in result.err
    assert [json.loads(line)["image"] for line in result.out.splitlines()] == [
        path for path in captions if path not in short
    ]
