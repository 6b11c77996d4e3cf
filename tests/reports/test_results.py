"""The page of results."""

import json

import pytest

from saywhy.errors import UserError
from saywhy.reports.results import page


def result(seed: int, cider: float, meteor: float | None = 22.0) -> dict:
    scores = {"bleu": [66.0, 48.0, 34.0, 24.0], "bleu_no_penalty": [67.0, 49.0, 35.0, 25.0], "meteor": meteor}
    scores |= {"rouge_l": 48.0, "cider": cider, "n": 1000, "signature": "tok:ptb"}
    progress = {"seconds": 120.0}
    training = {"recipe": {"seed": seed}, "progress": progress, "device": "a GPU", "parameters": 16_000_000}
    return {"model": "soft", "data": "flickr8k", "split": "test", "scores": scores, "training": training}


def test_the_mean_over_seeds_stands_beside_every_run(tmp_path):
    for seed, cider in enumerate((60.0, 61.0, 62.0)):
        (tmp_path / f"{seed}.json").write_text(json.dumps(result(seed, cider)))
    text = page(tmp_path)
    assert "61.0 ± 1.0" in text
    for cider in ("60.00", "61.00", "62.00"):
        assert cider in text
    assert "120 s on a GPU" in text
    assert "`tok:ptb`" in text


def test_a_metric_that_was_left_out_is_a_dash_and_not_a_number(tmp_path):
    (tmp_path / "one.json").write_text(json.dumps(result(0, 60.0, meteor=None)))
    rows = [line for line in page(tmp_path).splitlines() if line.startswith("| soft |")]
    assert all("–" in row for row in rows)


def test_no_results_and_broken_ones_are_said_in_a_line(tmp_path):
    with pytest.raises(UserError, match="no results"):
        page(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match="not JSON"):
        page(tmp_path)


def test_the_page_in_the_docs_is_the_one_the_results_give():
    from pathlib import Path

    root = Path(__file__).parents[2]
    assert (root / "docs" / "results.md").read_text() == page(root / "results")
