"""Guidance on the command line: which models can be guided, and what the output says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny
from saywhy.captioners import State
from saywhy.inference.model import Model

NAMES = ("image", "caption", "words", "score", "model")


class UniformLM:
    """A language model for which all words are equally likely."""

    candidates = None

    def start(self, batch: int) -> State:
        return State()

    def step(self, tokens: torch.Tensor, state: State, candidates: Any = None) -> tuple[torch.Tensor, State]:
        return torch.zeros(len(tokens), tiny.WORDS), state


@pytest.fixture
def language_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every --lm is the uniform language model."""
    monkeypatch.setattr(Model, "language_model", lambda model, path, prompt="": UniformLM() if path else None)


@pytest.fixture
def model_with(model_copy: Path):
    """The tiny model, trained with this share of conditioning dropout, as config.json or run.json records it."""

    def change(share: float | None, run: dict[str, Any] | None = None) -> Path:
        config = json.loads((model_copy / "config.json").read_text())
        (model_copy / "config.json").write_text(json.dumps(config | {"conditioning_dropout": share}))
        if run is not None:
            (model_copy / "run.json").write_text(json.dumps(run))
        return model_copy

    return change


def run_json(share: float) -> dict[str, Any]:
    return {"recipe": {"training": {"conditioning_dropout": share}, "encoder": {"weights": "x"}}, "unreadable": []}


def captions(result) -> list[dict[str, Any]]:
    assert (result.code, result.err) == (0, "")
    return [json.loads(line) for line in result.out.splitlines()]


def test_json_names_the_guidance(run, model_with, photos) -> None:
    model = model_with(0.5)
    plain = captions(run("caption", *photos, "--model", model, "--json"))
    equal = captions(run("caption", *photos, "--model", model, "--json", "--guidance", 1))
    assert plain == equal
    assert tuple(plain[0]) == NAMES
    guided = captions(run("caption", *photos, "--model", model, "--json", "--guidance", 3))
    assert [caption["guidance"] for caption in guided] == [3.0] * 3
    assert [caption["score"] for caption in guided] != [caption["score"] for caption in plain]


@pytest.mark.parametrize("command", ["caption", "evaluate"])
@pytest.mark.parametrize("recorded", ["config.json", "run.json"])
def test_a_model_trained_without_conditioning_dropout_is_refused(
    run, model_with, photos, data, command: str, recorded: str
) -> None:
    model = model_with(0.0) if recorded == "config.json" else model_with(None, run_json(0.0))
    target = photos if command == "caption" else ["--data", data, "--no-meteor"]
    error = run(command, *target, "--model", model, "--guidance", 1.5).error
    assert "trained without conditioning dropout" in error
    assert "recipes/coco-ada-lstm.toml" in error
    assert "--lm" in error


def test_a_recipe_with_conditioning_dropout_is_where_the_error_says() -> None:
    recipe = Path(__file__).parents[2] / "recipes" / "coco-ada-lstm.toml"
    assert "conditioning_dropout = 0.1" in recipe.read_text()


def test_a_model_whose_training_is_unknown_is_guided_with_a_warning(run, model_with, photos) -> None:
    model = model_with(None)
    result = run("caption", photos[0], "--model", model, "--guidance", 1.5)
    assert result.code == 0
    assert result.out.count("\n") == 1
    assert result.err.count("\n") == 1
    assert "does not say whether it was trained with conditioning dropout" in result.err
    assert run("caption", photos[0], "--model", model, "--guidance", 1).err == ""
    model_with(None, run_json(0.5))
    assert run("caption", photos[0], "--model", model, "--guidance", 1.5).err == ""
    model_with(None, {"recipe": []})
    assert "does not say" in run("caption", photos[0], "--model", model, "--guidance", 1.5).err


def test_a_language_model_replaces_conditioning_dropout(run, model_with, photos, language_model) -> None:
    model = model_with(0.0)
    guided = captions(run("caption", *photos, "--model", model, "--json", "--guidance", 1.5, "--lm", "runs/q"))
    assert [(caption["guidance"], caption["lm"]) for caption in guided] == [(1.5, "q")] * 3
    fused = captions(run("caption", *photos, "--model", model, "--json", "--lm", "runs/q", "--lm-weight", "1,0"))
    plain = captions(run("caption", *photos, "--model", model, "--json"))
    assert [caption["caption"] for caption in fused] == [caption["caption"] for caption in plain], "q is uniform"
    assert (fused[0]["lm"], fused[0]["lm_weight"]) == ("q", [1.0, 0.0])
    refused = run("caption", *photos, "--model", model, "--lm", "runs/q", "--lm-weight", "5,2.5")
    assert "use β = 0" in refused.error


def test_the_signature_of_scores_names_the_guidance(run, model_with, data: Path, language_model) -> None:
    arguments = ("evaluate", "--data", data, "--model", model_with(0.5), "--no-meteor", "--json", "--workers", 0)
    for options, expected in (
        (["--guidance", 1], "decode:beam2,length0.7,max6|"),
        (["--guidance", 1.5], "decode:beam2,length0.7,max6,guidance1.5|"),
        (["--guidance", 1.5, "--lm", "runs/q"], "decode:beam2,length0.7,max6,guidance1.5,lm:q|"),
        (["--lm", "runs/q", "--lm-weight", "5,2.5"], "decode:beam2,length0.7,max6,lm:q,alpha5,beta2.5|"),
    ):
        result = run(*arguments, *options)
        assert result.code == 0, result.err
        assert expected in json.loads(result.out)["signature"] + "|"


@pytest.mark.parametrize("options", [["--guidance", 1.5], ["--lm", "q", "--guidance", 2]], ids=str)
def test_guidance_has_no_effect_on_a_file_of_captions(run, data: Path, tmp_path: Path, options: list) -> None:
    captions_file = tmp_path / "captions.jsonl"
    captions_file.write_text("")
    assert "give one or the other" in run("evaluate", "--data", data, "--captions", captions_file, *options).error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--guidance", "nan"], "guidance = nan is out of range"),
        (["--guidance", "-1"], "guidance = -1.0 is out of range"),
        (["--lm-weight", "5,2.5"], "add --lm"),
    ],
)
def test_evaluate_refuses_wrong_guidance_before_a_model_is_loaded(run, no_model, data: Path, options, message) -> None:
    assert message in run("evaluate", "--data", data, *options).error
