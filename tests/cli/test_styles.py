"""`--style` chooses the style of the captions, for a model that has several."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import audit_data
import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import Vocabulary

STYLES = ("coco", "flickr8k")
MARKERS = tiny.vocabulary(styles=STYLES).words[:6]


@pytest.fixture(scope="module")
def styled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with two styles."""
    folder = tmp_path_factory.mktemp("models") / "styled"
    decoding = {"beam": 2, "min_words": 3, "max_words": 6}
    vocabulary = tiny.vocabulary(styles=STYLES)
    SavedModel("styled", tiny.sensitive_captioner(), vocabulary, Preprocessing(tiny.SIDE), decoding).save(folder)
    return folder


@pytest.fixture
def no_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails if an image is prepared for the encoder."""

    def load(*_: object) -> None:
        raise AssertionError("an image is read")

    monkeypatch.setattr("saywhy.inference.image_loading.ImageLoader.__call__", load)


def test_caption_uses_and_names_the_style(run, styled: Path, photos: list[Path]) -> None:
    captions = {}
    for style in (None, *STYLES):
        options = ("--style", style) if style else ()
        result = run("caption", *photos, "--model", styled, "--json", *options)
        assert (result.code, result.err) == (0, "")
        captions[style] = [json.loads(line) for line in result.out.splitlines()]
        assert {caption["style"] for caption in captions[style]} == {style or "coco"}
        assert "<style" not in result.out
    assert captions[None] == captions["coco"]
    scores = {style: [caption["score"] for caption in captions[style]] for style in STYLES}
    assert scores["coco"] != scores["flickr8k"]


def test_explain_uses_and_names_the_style(run, styled: Path, photos: list[Path], tmp_path: Path) -> None:
    logits = {}
    for style in STYLES:
        options = ("--style", style, "--caption", "word0 word1", "--method", "lrp", "--json")
        result = run("explain", photos[0], "--model", styled, "--out", tmp_path / style, *options)
        assert result.code == 0, result.err
        explanation = json.loads(result.out)
        assert explanation["style"] == style
        logits[style] = [word["logit"] for word in explanation["words"]]
    assert logits["coco"] != logits["flickr8k"]


def test_evaluate_uses_the_style_and_names_it_in_signature_and_results(
    run, styled: Path, data: Path, tmp_path: Path
) -> None:
    captions = {}
    for style in STYLES:
        out, file = tmp_path / f"{style}.json", tmp_path / f"{style}.jsonl"
        options = ("--no-meteor", "--json", "--workers", 0, "--out", out, "--save-captions", file, "--style", style)
        result = run("evaluate", "--data", data, "--model", styled, *options)
        assert result.code == 0, result.err
        assert f"decode:beam2,length0.7,min3,max6,style:{style}|" in json.loads(result.out)["signature"]
        assert json.loads(out.read_text())["decoding"].endswith(f",style:{style}")
        captions[style] = file.read_text()
    assert captions["coco"] != captions["flickr8k"]


def test_audit_uses_the_style_and_names_it_in_its_results(run, tmp_path: Path) -> None:
    words = Vocabulary((*MARKERS, *audit_data.WORDS[4:]))
    captioner = tiny.sensitive_captioner(words=len(words), seed=3)
    SavedModel("styled", captioner, words, Preprocessing(tiny.SIDE), audit_data.LONG).save(tmp_path / "model")
    scenes = audit_data.write_data(tmp_path / "scenes")
    results = {}
    for style in STYLES:
        options = ("--model", tmp_path / "model", "--out", tmp_path / "out", "--workers", 0, "--style", style)
        assert run("audit", "word-ablation", "--data", scenes, *options).code == 0
        path = tmp_path / "out" / f"audit-styled-{style}-word-ablation.json"
        results[style] = json.loads(path.read_text(encoding="utf-8"))
        assert results[style]["style"] == style
        assert results[style]["decoding"].endswith(f",style:{style}")
    page = (tmp_path / "out" / "word-ablation.md").read_text(encoding="utf-8")
    assert "## styled, style coco" in page
    assert "## styled, style flickr8k" in page


def commands(photo: Path, data: Path, model: Path, out: Path) -> dict[str, tuple[object, ...]]:
    return {
        "caption": ("caption", photo, "--model", model),
        "explain": ("explain", photo, "--model", model, "--out", out),
        "evaluate": ("evaluate", "--data", data, "--model", model, "--workers", 0),
        "audit": ("audit", "sanity", "--data", data, "--model", model, "--out", out, "--workers", 0),
    }


@pytest.mark.usefixtures("no_image")
@pytest.mark.parametrize("command", ["caption", "explain", "evaluate", "audit"])
def test_a_style_that_does_not_exist_is_one_line_before_an_image_is_read(
    run, command, styled: Path, model: Path, photos: list[Path], data: Path, tmp_path: Path
) -> None:
    arguments = commands(photos[0], data, styled, tmp_path / "out")[command]
    assert run(*arguments, "--style", "cocoa").error == (
        "saywhy: unknown style 'cocoa': did you mean \"coco\"? Known: coco, flickr8k"
    )
    arguments = commands(photos[0], data, model, tmp_path / "out")[command]
    assert run(*arguments, "--style", "coco").error == "saywhy: unknown style 'coco': this model has only one style"
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("no_model")
def test_explain_refuses_a_style_before_the_model_is_loaded(run, styled: Path, photos: list[Path], tmp_path) -> None:
    result = run("explain", photos[0], "--model", styled, "--out", tmp_path / "out", "--style", "cocoa")
    assert "unknown style" in result.error


def test_captions_from_a_file_have_no_style_to_choose(run, data: Path, tmp_path: Path) -> None:
    assert "--style" in run("evaluate", "--data", data, "--captions", tmp_path / "x.jsonl", "--style", "coco").error


def test_models_lists_the_styles(run, styled: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("saywhy.inference.model.shipped", lambda: [str(model), str(styled)])
    rows = json.loads(run("models", "--json").out)["models"]
    assert [row["styles"] for row in rows] == [[], ["coco", "flickr8k"]]
    assert "coco, flickr8k" in run("models").out
