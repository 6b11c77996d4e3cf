"""`saywhy sweep guidance` writes scores, captions and a plot, and refuses what cannot be swept before it begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from saywhy.captioners import State
from saywhy.inference.model import Model


class UniformLM:
    """A language model for which all words are equally likely."""

    candidates = None

    def start(self, batch: int) -> State:
        return State()

    def step(self, tokens, state, candidates=None):
        import torch

        return torch.zeros(len(tokens), tiny.WORDS), state


@pytest.fixture
def model_with(model_copy: Path):
    """The tiny model, trained with this share of conditioning dropout."""

    def change(share: float) -> Path:
        config = json.loads((model_copy / "config.json").read_text())
        (model_copy / "config.json").write_text(json.dumps(config | {"conditioning_dropout": share}))
        return model_copy

    return change


@pytest.fixture
def sweep(run, data: Path, tmp_path: Path):
    """Run the command on the test split."""

    def call(*arguments: object):
        options = ("--data", data, "--out", tmp_path / "out", "--no-meteor", "--workers", 0, "--explain", 1)
        return run("sweep", "guidance", *options, *arguments)

    return call


def test_a_row_has_the_scores_of_evaluate_with_that_guidance(sweep, run, model_with, data, tmp_path) -> None:
    model = model_with(0.5)
    result = sweep("--model", model, "--gamma", "3,1", "--json")
    assert result.code == 0, result.err
    rows = json.loads(result.out)["settings"]
    assert [row["guidance"] for row in rows] == [1, 3]
    for row in rows:
        command = ("evaluate", "--data", data, "--model", model, "--no-meteor", "--workers", 0, "--json")
        expected = json.loads(run(*command, "--guidance", row["guidance"]).out)
        assert row["scores"]["signature"] == expected["signature"]
        for name in ("bleu", "cider", "rouge_l"):
            assert row["scores"][name] == pytest.approx(expected[name])
    assert rows[0]["image_share"]["images"] == 1


def test_files_are_scores_captions_of_each_setting_and_a_plot(sweep, model_with, tmp_path) -> None:
    result = sweep("--model", model_with(0.5), "--gamma", "1,2")
    assert result.code == 0, result.err
    assert "γ = 2" in result.out
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["cache", "captions", "tiny-data-test.json", "tiny-data-test.svg"]
    captions = sorted((tmp_path / "out" / "captions").iterdir())
    assert [path.name for path in captions] == [
        "tiny-data-test-0-guidance,1.jsonl",
        "tiny-data-test-1-guidance,2.0.jsonl",
    ]
    assert all(len(path.read_text().splitlines()) == 3 for path in captions)


def test_a_judge_ranks_the_images_for_every_setting_as_in_evaluate(sweep, run, model_with, judge: Path, data) -> None:
    model = model_with(0.5)
    rows = json.loads(sweep("--model", model, "--gamma", "1,3", "--judge", judge, "--json").out)["settings"]
    for row in rows:
        options = ("--judge", judge, "--guidance", row["guidance"], "--diversity")
        command = ("evaluate", "--data", data, "--model", model, "--no-meteor", "--workers", 0, "--json")
        expected = json.loads(run(*command, *options).out)
        assert row["judge"] == expected["judge"]
        assert row["diversity"] == expected["diversity"]


def test_a_judge_over_the_encoder_of_the_captioner_is_refused(sweep, model_with, tmp_path) -> None:
    tiny.saved_judge().save(tmp_path / "same")
    assert "a judge must not share it" in sweep("--model", model_with(0.5), "--judge", tmp_path / "same").error


def test_a_model_without_conditioning_dropout_is_swept_with_a_language_model_only(
    sweep, model_with, monkeypatch, tmp_path
) -> None:
    model = model_with(0.0)
    error = sweep("--model", model).error
    assert "conditioning dropout" in error
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr(Model, "language_model", lambda model, path, prompt="": UniformLM() if path else None)
    (tmp_path / "lm").mkdir()
    result = sweep("--model", model, "--gamma", "1,2", "--lm", tmp_path / "lm", "--json")
    assert result.code == 0, result.err
    kinds = [row["kind"] for row in json.loads(result.out)["settings"]]
    assert kinds == ["classifier-free", "mutual information"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--gamma", "1,nan"), "--gamma 1,nan: strengths of guidance are 0 or more"),
        (("--gamma", "1,-2"), "--gamma 1,-2: strengths of guidance are 0 or more"),
        (("--gamma", "much"), "--gamma much: give numbers separated by commas"),
        (("--lm-weight", "5,2.5"), "--lm-weight is for a language model: add --lm PATH"),
        (("--lm-prompt", "captions.txt"), "--lm-prompt is for a language model: add --lm PATH"),
        (("--lm", "lm", "--lm-weight", "5"), "--lm-weight 5: give two numbers"),
    ],
)
def test_mistakes_are_one_line_before_a_model_is_loaded(sweep, no_model, arguments, problem) -> None:
    assert problem in sweep(*arguments).error


def test_a_folder_that_is_no_language_model_is_refused(sweep, model_with, tmp_path) -> None:
    error = sweep("--model", model_with(0.5), "--lm", tmp_path / "missing").error
    assert "no language model" in error
    assert not (tmp_path / "out").exists()
