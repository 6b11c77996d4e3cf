"""Shared helpers of the commands: progress goes to stderr, as bars on a terminal and as few lines elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from saywhy.cli import common
from saywhy.cli.common import OutputPaths, progress_of, progress_of_stages


class Clock:
    """Seconds that pass only when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(common.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def count_to_100(clock: Clock, seconds: float) -> None:
    with progress_of("captioning") as report:
        for done in range(1, 101):
            clock.now += seconds
            report(done, 100)


def test_short_task_leaves_no_line_in_a_log(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    count_to_100(clock, seconds=0.1)
    assert capsys.readouterr() == ("", "")


def test_long_task_logs_a_line_every_30_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    count_to_100(clock, seconds=1)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "captioning: 31 of 100 images (31%), 69 s left",
        "captioning: 61 of 100 images (61%), 39 s left",
        "captioning: 91 of 100 images (91%), 9 s left",
    ]


def test_stages_log_their_start_and_end(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with progress_of_stages() as report:
        for done, finished in ((0, False), (1, False), (2, False), (2, True)):
            report("explaining", done, 2, finished)
            clock.now += 4
        report("masking", 2, 2, False)
        report("masking", 2, 2, True)
        report("explaining", 1, 3, False)  # a second set of images
        clock.now += 200
        report("explaining", 3, 3, True)
    assert capsys.readouterr().err.splitlines() == [
        "explaining: 2 images",
        "explaining: finished in 12 s",
        "masking: 2 images, 2 of them cached",
        "explaining: 3 images, 1 of them cached",
        "explaining: finished in 3 min",
    ]


def test_terminal_shows_bars_on_stderr_only(
    clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then treats any stream as a terminal
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    count_to_100(clock, seconds=1)
    out, err = capsys.readouterr()
    assert out == ""
    assert "captioning" in err
    assert "100/100" in err
    assert "images (31%)" not in err, "lines are for log files"


@pytest.mark.parametrize("stem", ["x" * 250, "é" * 125, "漢" * 83])
def test_long_names_are_shortened_and_stay_distinct(tmp_path: Path, stem: str) -> None:
    output = OutputPaths(tmp_path, [], suffix=".png")
    paths = [output(f"{folder}/{stem}{end}.jpg") for folder in "ab" for end in "12"]
    assert len(set(paths)) == 4
    for path in paths:
        path.write_text("")  # the file system accepts the name
        assert path.name.startswith(stem[:40])
        assert len(path.name.encode()) < 200
