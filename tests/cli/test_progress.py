"""Bars are for terminals; a log file gets few lines, and no control characters."""

from __future__ import annotations

import pytest

from saywhy.cli.progress import TrainingDisplay, counting


def train_two_epochs() -> None:
    with TrainingDisplay() as display:
        for step in range(1, 501):
            display({"kind": "step", "step": step, "steps": 500, "loss": 3.0, "images_per_second": 80.0, "epoch": 1})
        display({"kind": "broken", "line": "[red]/x.jpg: damaged " + "x" * 200, "count": 1})
        for epoch in (1, 2):
            scores = {"cider": 50.0 - epoch, "bleu4": 20.0, "best": 49.0}
            display({"kind": "epoch", "epoch": epoch, "epochs": 2, "is_best": epoch == 1, **scores})


def count() -> None:
    with counting("captioning") as progress:
        for done in range(1, 501):
            progress(done, 500)


def test_a_log_of_training_holds_only_its_epochs_and_broken_images(capsys: pytest.CaptureFixture[str]) -> None:
    train_two_epochs()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "skipped, 1 so far: [red]/x.jpg: damaged " + "x" * 200,
        "epoch 1/2  dev CIDEr 49.0  BLEU-4 20.0  best so far",
        "epoch 2/2  dev CIDEr 48.0  BLEU-4 20.0",
    ]


def test_a_log_of_counting_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    count()
    assert capsys.readouterr() == ("", "")


def test_a_terminal_shows_bars_on_stderr_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes anything for a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    count()
    out, err = capsys.readouterr()
    assert out == ""
    assert "captioning" in err
    train_two_epochs()
    out, err = capsys.readouterr()
    assert out == ""
    assert "500/500" in err
    assert "80 images/s" in err


def test_of_several_processes_only_the_first_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    train_two_epochs()
    assert capsys.readouterr() == ("", "")
