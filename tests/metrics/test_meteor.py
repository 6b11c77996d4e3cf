from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from saywhy.metrics import Meteor, MetricUnavailable, meteor
from saywhy.metrics.meteor import _request

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="METEOR needs Java")


@pytest.fixture
def fake_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a Python script in the place of Java."""
    pytest.importorskip("pycocoevalcap.meteor.meteor")

    def install(script: str) -> None:
        java = tmp_path / "java"
        java.write_text(f"#!{sys.executable}\nimport sys, time\n{script}\n")
        java.chmod(java.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


@needs_java
@pytest.mark.data
def test_meteor_equals_pycocoevalcap(flickr_corpus, as_lines):
    theirs = pytest.importorskip("pycocoevalcap.meteor.meteor").Meteor()
    candidates, references = flickr_corpus[0][:40], flickr_corpus[1][:40]  # with an empty candidate
    expected, expected_per_caption = theirs.compute_score(*as_lines((candidates, references)))
    metric = Meteor()
    metric.update(candidates[:15], references[:15])
    metric.update(candidates[15:], references[15:])
    ours = metric.compute()
    assert ours.meteor == pytest.approx(expected, abs=1e-12)
    np.testing.assert_allclose(ours.per_caption, expected_per_caption, atol=1e-12)


def test_separators_and_line_breaks_are_removed_from_captions():
    request = _request(["a", "|||", "dög"], [["x\ny"], [], ["||||"]])
    assert request == "SCORE ||| x y |||  ||| | ||| a dög"


def test_without_java_the_error_says_what_to_install(monkeypatch):
    pytest.importorskip("pycocoevalcap.meteor.meteor")
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(MetricUnavailable, match=r"Java 8 or newer.*apt install default-jre-headless"):
        meteor(["a"], [["a"]])


def test_without_pycocoevalcap_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MetricUnavailable, match=r'pip install "saywhy\[meteor\]"'):
        meteor(["a"], [["a"]])


def test_an_early_end_of_java_is_reported_with_its_reason(fake_java):
    fake_java("print('Could not reserve memory', file=sys.stderr); sys.exit(1)")
    with pytest.raises(MetricUnavailable, match="ended early: Could not reserve memory"):
        meteor(["a"] * 5000, [["a b c d e f g h"]] * 5000)


def test_java_is_stopped_after_the_timeout(fake_java):
    fake_java("time.sleep(60)")
    start = time.monotonic()
    with pytest.raises(MetricUnavailable, match="no answer for"):
        meteor(["a"] * 5000, [["a b c d e f g h"]] * 5000, timeout=0.5)
    assert time.monotonic() - start < 20


def test_large_error_output_of_java_does_not_block(fake_java):
    fake_java(
        "for line in sys.stdin:\n"
        "    print('w' * 100_000, file=sys.stderr)\n"
        "    for _ in range(line.count('|||') + 1 if line.startswith('EVAL') else 1):\n"
        "        print('0.5', flush=True)"
    )
    assert meteor(["a"] * 30, [["a"]] * 30).meteor == 0.5


def test_an_answer_that_is_no_number_is_reported(fake_java):
    fake_java("for line in sys.stdin: print('Error: ?\\n' * 2, flush=True)")
    with pytest.raises(MetricUnavailable, match="instead of a number"):
        meteor(["a"], [["a"]])
