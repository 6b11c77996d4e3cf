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
from saywhy.metrics.meteor import _question

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="METEOR is a Java program, and Java is missing")


@pytest.fixture
def java_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a stand-in for Java first on the path."""
    pytest.importorskip("pycocoevalcap.meteor.meteor")

    def install(script: str) -> None:
        java = tmp_path / "java"
        java.write_text(f"#!{sys.executable}\nimport sys, time\n{script}\n")
        java.chmod(java.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", str(tmp_path))

    return install


@needs_java
@pytest.mark.data
def test_meteor_equals_pycocoevalcap(thousand, as_lines):
    theirs = pytest.importorskip("pycocoevalcap.meteor.meteor").Meteor()
    some = thousand[0][:40], thousand[1][:40]  # an empty candidate is among them
    whole, each = theirs.compute_score(*as_lines(some))
    metric = Meteor()
    metric.update(some[0][:15], some[1][:15])
    metric.update(some[0][15:], some[1][15:])
    ours = metric.compute()
    assert ours.meteor == pytest.approx(whole, abs=1e-12)
    np.testing.assert_allclose(ours.per_caption, each, atol=1e-12)


def test_separators_and_line_ends_in_captions_do_not_upset_the_protocol():
    question = _question(["a", "|||", "dög"], [["x\ny"], [], ["||||"]])
    assert question == "SCORE ||| x y |||  ||| | ||| a dög"


def test_a_machine_without_java_says_what_to_install(monkeypatch):
    pytest.importorskip("pycocoevalcap.meteor.meteor")
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(MetricUnavailable, match=r"Java 8 or newer.*apt install default-jre-headless"):
        meteor(["a"], [["a"]])


def test_without_pycocoevalcap_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MetricUnavailable, match=r'pip install "saywhy\[meteor\]"'):
        meteor(["a"], [["a"]])


def test_a_java_that_dies_is_reported_with_its_reason(java_that):
    java_that("print('Could not reserve memory', file=sys.stderr); sys.exit(1)")
    with pytest.raises(MetricUnavailable, match="ended early: Could not reserve memory"):
        meteor(["a"] * 5000, [["a b c d e f g h"]] * 5000)


def test_a_java_that_falls_silent_is_given_up(java_that):
    java_that("time.sleep(60)")
    start = time.monotonic()
    with pytest.raises(MetricUnavailable, match="nothing for"):
        meteor(["a"] * 5000, [["a b c d e f g h"]] * 5000, silence=0.5)
    assert time.monotonic() - start < 20


def test_a_java_that_floods_its_error_output_does_not_block(java_that):
    java_that(
        "for line in sys.stdin:\n"
        "    print('w' * 100_000, file=sys.stderr)\n"
        "    for _ in range(line.count('|||') + 1 if line.startswith('EVAL') else 1):\n"
        "        print('0.5', flush=True)"
    )
    assert meteor(["a"] * 30, [["a"]] * 30).meteor == 0.5


def test_a_java_that_talks_nonsense_is_reported(java_that):
    java_that("for line in sys.stdin: print('Error: ?\\n' * 2, flush=True)")
    with pytest.raises(MetricUnavailable, match="no number"):
        meteor(["a"], [["a"]])
