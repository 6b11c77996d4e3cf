"""What `saywhy train` prints: bars on a terminal; in a log file a line at the start and one per epoch."""

from __future__ import annotations

import pytest

from saywhy.cli.train import TrainingDisplay, changes_of
from saywhy.errors import UserError

START = {
    "kind": "start", "captioner": "soft-attention", "encoder": "vgg16", "parameters": 12_345_678,
    "trained_parameters": 2_345_678, "images": 6000, "captions": 30000, "epochs": 2, "steps": 500, "step": 0,
    "out": "runs/\x1b[31mred", "device": "cpu",
}  # fmt: skip


def show_a_run() -> None:
    """Two epochs, of which the second is evaluated."""
    with TrainingDisplay() as display:
        for done in (32, 64):
            display({"kind": "encode", "done": done, "total": 64})
        display(START)
        for step in range(1, 501):
            display({"kind": "step", "step": step, "steps": 500, "loss": 3.0, "images_per_second": 80.0, "epoch": 1})
        display({"kind": "unreadable", "line": "[red]/x.jpg: damaged " + "x" * 200, "count": 1})
        epoch = {"kind": "epoch", "epochs": 2, "loss": 3.14159, "images_per_second": 80.04}
        display({**epoch, "epoch": 1, "seconds_left": 600.0})
        display({**epoch, "epoch": 2, "seconds_left": 0.0, "cider": 49.0, "bleu4": 20.0, "best": 49.0, "is_best": True})


def test_a_log_file_has_a_line_at_the_start_per_epoch_and_per_unreadable_image(
    capsys: pytest.CaptureFixture[str],
) -> None:
    show_a_run()
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "encoding 64 images with the frozen encoder, for the feature cache",
        "training: soft-attention over vgg16, 12,345,678 parameters (2,345,678 trained); 6,000 images, "
        "30,000 captions, 2 epochs, 500 steps; device cpu; folder runs/\\x1b[31mred",
        "skipped, 1 so far: [red]/x.jpg: damaged " + "x" * 200,
        "epoch 1/2  loss 3.142  80.0 images/s  10 min left",
        "epoch 2/2  loss 3.142  80.0 images/s  0 s left  dev CIDEr 49.0  BLEU-4 20.0  best so far",
    ]


def test_a_resumed_run_says_from_which_step(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay() as display:
        display({**START, "step": 1200})
    assert capsys.readouterr().err.startswith("resuming at step 1,200: soft-attention over vgg16")


def test_a_terminal_shows_bars_on_stderr_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then treats any file as a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    show_a_run()
    out, err = capsys.readouterr()
    assert out == ""
    assert "500/500" in err
    assert "80 images/s" in err


def test_of_several_processes_only_the_first_prints(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    show_a_run()
    assert capsys.readouterr() == ("", "")


def test_set_changes_keys_of_the_recipe() -> None:
    digits = "9" * 5000  # more than Python converts: no TOML
    settings = ["training.lr=1e-4", "relevance.weights=random", "name=mine", "augmentation.scale=[0.5, 1.0]"]
    assert changes_of(3, None, 2, [*settings, f"vocabulary.size={digits}"]) == {
        "vocabulary": {"size": digits},
        "name": "mine",
        "seed": 3,
        "training": {"lr": 1e-4, "epochs": 2},
        "relevance": {"weights": "random"},
        "augmentation": {"scale": [0.5, 1.0]},
    }


@pytest.mark.parametrize("setting", ["training.lr", "=3", "training.=1", ".lr=1", "training lr=1"])
def test_set_needs_a_key_and_a_value(setting: str) -> None:
    with pytest.raises(UserError, match=r"write TABLE\.KEY=VALUE"):
        changes_of(None, None, None, [setting])


def test_set_refuses_a_table_that_is_also_a_value() -> None:
    with pytest.raises(UserError, match="training is given as a value, too"):
        changes_of(None, None, None, ["training=1", "training.lr=1"])
    with pytest.raises(UserError, match="training is given as a value, too"):
        changes_of(None, None, 2, ["training=1"])
