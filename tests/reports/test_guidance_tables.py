"""Sweeps over guidance as tables and plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from saywhy.errors import UserError
from saywhy.reports.guidance_tables import guidance_section, plot_name, read_sweeps, sweep_plot, sweep_table
from saywhy.reports.results_page import results_page


def setting(kind: str, gamma: float, cider: float, **more: Any) -> dict[str, Any]:
    scores = {"bleu": [70, 50, 40, 30.04], "meteor": None, "rouge_l": 55, "cider": cider}
    return {"kind": kind, "guidance": gamma, "scores": scores, **more}


def judge(recall: float) -> dict[str, Any]:
    captions, human = {"recall_at_1": recall}, {"recall_at_1": 41.0}
    return {"judge": "judge", "encoder": "resnet50", "captions": captions, "human": human}


def sweep(**changes: Any) -> dict[str, Any]:
    shares = {"image_share": {"mean": 0.557}}
    chair = {"hallucination": {"chair": {"sentence": {"percent": 12.5}, "instance": {"percent": 8.6}}}}
    settings = [
        setting("classifier-free", 1, 120, **shares, **chair, judge=judge(20.0)),
        setting("classifier-free", 2, 80.5, judge=judge(35.0)),
        setting("mutual information", 2, 90, lm="lm-lstm"),
        setting("language model", 1, 100, lm="lm-lstm", lm_weight=[5, 2.5]),
    ]
    fields = {"model": "m", "data": "coco", "split": "test", "images": 10, "decoding": "beam3", "settings": settings}
    return {"sweep": "guidance", **fields, **changes}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "results" / "guidance"
    folder.mkdir(parents=True)
    (folder / "m coco.json").write_text(json.dumps(sweep()))
    return tmp_path / "results"


def test_a_row_is_a_setting_and_columns_without_values_are_left_out(results: Path) -> None:
    (one,) = read_sweeps(results)
    table = sweep_table(one)
    expected = ("guidance", "BLEU-4", "ROUGE-L", "CIDEr", "R@1", "CHAIR-s", "CHAIR-i", "image share")
    assert tuple(table.head) == expected
    assert [row[0] for row in table.rows] == [
        "γ = 1",
        "γ = 2",
        "γ = 2, p(word) by lm-lstm",
        "α = 5, β = 2.5, language model lm-lstm",
        "reference captions",
    ]
    assert table.rows[0][1:] == ("30.0", "55.0", "120.0", "20.0", "12.5", "8.6", "55.7")
    assert table.rows[1][1:] == ("30.0", "55.0", "80.5", "35.0", "–", "–", "–")
    assert table.rows[-1][1:] == ("–", "–", "–", "41.0", "–", "–", "–")
    assert "Retrieval by judge over resnet50." in table.caption


def test_the_page_has_the_table_and_its_plot(results: Path) -> None:
    page = results_page(results)
    (one,) = read_sweeps(results)
    assert "## Guidance" in page
    assert "### m on coco test, 10 images\n" in page
    assert f"]({plot_name(one)})" in page
    assert plot_name(one) == "guidance-m-coco.svg"
    assert guidance_section([]) == ""


def test_the_plot_names_every_setting_and_is_the_same_each_time(results: Path) -> None:
    (one,) = read_sweeps(results)
    svg = sweep_plot(one)
    assert svg == sweep_plot(one)
    assert svg.startswith("<?xml")
    assert svg.count("<g id=") > 10


def test_a_sweep_without_retrieval_is_plotted_over_unique_captions(tmp_path: Path) -> None:
    folder = tmp_path / "guidance"
    folder.mkdir()
    rows = [
        setting("classifier-free", gamma, 100 - gamma, diversity={"unique_captions": {"percent": 50 + gamma}})
        for gamma in (1, 2)
    ]
    (folder / "a.json").write_text(json.dumps(sweep(settings=rows)))
    (one,) = read_sweeps(tmp_path)
    assert sweep_plot(one)
    assert (one.retrieval, one.people) == ("", {})
    assert "unique" in sweep_table(one).head


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"settings": [{"kind": "classifier-free"}]}, "is missing"),
        ({"images": "many"}, "not a whole number"),
        ({"settings": [setting("language model", 1, 2, lm_weight=[1])]}, "is missing"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, content: dict[str, Any], problem: str) -> None:
    folder = tmp_path / "guidance"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(sweep(**content)))
    with pytest.raises(UserError, match=problem):
        read_sweeps(tmp_path)


def test_without_a_judge_retrieval_is_by_clip(tmp_path: Path) -> None:
    folder = tmp_path / "guidance"
    folder.mkdir()
    clip = {"model": "tiny-clip", "clip_score": 0.7512, "retrieval": {"recall_at_1": 12.5}}
    (folder / "a.json").write_text(json.dumps(sweep(settings=[setting("classifier-free", 1, 100, clip=clip)])))
    (one,) = read_sweeps(tmp_path)
    table = sweep_table(one)
    assert one.retrieval == "tiny-clip"
    assert [row[0] for row in table.rows] == ["γ = 1"]
    assert dict(zip(table.head, table.rows[0], strict=True))["CLIPScore"] == "0.751"
    assert dict(zip(table.head, table.rows[0], strict=True))["R@1"] == "12.5"
