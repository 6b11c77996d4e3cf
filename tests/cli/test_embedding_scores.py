"""`saywhy evaluate --clip`, `--bert-score` and `--diversity` with tiny models."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from saywhy.data.datasets import read
from saywhy.metrics.bert_models import load_bert
from saywhy.metrics.bert_score import bert_score
from saywhy.metrics.clip_models import load_clip
from saywhy.metrics.clip_score import ClipScorer
from saywhy.metrics.retrieval import retrieval

pytest.importorskip("transformers")

import tiny_transformers

CAPTIONS = {"6.png": ["word0", "word1"], "7.png": ["a", "dog", "on", "grass"], "8.png": ["a", "dog", "on", "grass"]}


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a CLIP and a BERT."""
    folder = tmp_path_factory.mktemp("transformers")
    tiny_transformers.save_clip(folder / "tiny-clip")
    tiny_transformers.save_bert(folder / "tiny-bert")
    return folder


@pytest.fixture
def captions(tmp_path: Path) -> Path:
    path = tmp_path / "captions.jsonl"
    path.write_text("\n".join(json.dumps({"image": name, "words": words}) for name, words in CAPTIONS.items()))
    return path


@pytest.fixture
def command(data: Path, captions: Path) -> tuple[object, ...]:
    return ("evaluate", "--data", data, "--captions", captions, "--no-meteor")


def printed_cells(output: str) -> list[list[str]]:
    return [re.split(r"\s{2,}", line.strip()) for line in output.splitlines()]


def test_clip_scores_and_retrieval_are_those_of_the_metrics(run, command, models: Path, data: Path) -> None:
    result = run(*command, "--clip", models / "tiny-clip", "--json")
    assert (result.code, result.err) == (0, "")
    images = read(data).split("test").images
    scorer = ClipScorer(load_clip(models / "tiny-clip"))
    scorer.update([CAPTIONS[i.name] for i in images], [i.path for i in images], [i.captions for i in images])
    found = json.loads(result.out)["clip"]
    assert found == {
        "model": "tiny-clip",
        "clip_score": pytest.approx(scorer.compute().clip_score),
        "ref_clip_score": pytest.approx(scorer.compute().ref_clip_score),
        "retrieval": retrieval(scorer.captions, scorer.images).as_dict(),
    }
    assert found["retrieval"]["images"] == 3


def test_bert_score_is_that_of_the_metric_and_names_model_and_layer(run, command, models: Path, data: Path) -> None:
    result = run(*command, "--bert-score", f"{models / 'tiny-bert'}@2", "--json")
    assert (result.code, result.err) == (0, "")
    images = read(data).split("test").images
    encoder = load_bert(f"{models / 'tiny-bert'}@2")
    expected = bert_score([CAPTIONS[i.name] for i in images], [i.captions for i in images], encoder)
    settings = {"model": "tiny-bert", "layer": 2, "idf": True}
    assert json.loads(result.out)["bert_score"] == {**settings, **expected.as_dict()}


def test_scores_are_in_the_table_the_json_and_the_results_file(run, command, models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    options = ("--clip", models / "tiny-clip", "--bert-score", models / "tiny-bert", "--diversity")
    result = run(*command, *options, "--out", out)
    assert (result.code, result.err) == (0, "")
    scores, results = json.loads(run(*command, *options, "--json").out), json.loads(out.read_text())
    for name in ("clip", "bert_score", "diversity"):
        assert scores[name] == results[name]
    assert str(tmp_path) not in out.read_text()
    cells = printed_cells(result.out)
    clip = scores["clip"]
    assert ["CLIP", "CLIPScore", "RefCLIPScore", "R@1", "R@5", "R@10", "median rank"] in cells
    numbers = [f"{clip['clip_score']:.3f}", f"{clip['ref_clip_score']:.3f}"]
    recall = [f"{clip['retrieval'][f'recall_at_{k}']:.1f}" for k in (1, 5, 10)]
    assert ["tiny-clip", *numbers, *recall, f"{clip['retrieval']['median_rank']:g}"] in cells
    assert next(row for row in cells if row[0] == "tiny-bert, layer 3, idf")[3] == f"{scores['bert_score']['f1']:.3f}"
    assert ["6", "66.7", "3.3", "66.7"] in cells


def test_diversity_needs_no_model(run, command) -> None:
    result = run(*command, "--diversity", "--json")
    assert json.loads(result.out)["diversity"] == {
        "distinct_words": 6,
        "unique_captions": {"percent": pytest.approx(200 / 3), "count": 2, "of": 3},
        "mean_length": pytest.approx(10 / 3),
        "self_bleu": pytest.approx(200 / 3, abs=0.01),
    }


def test_scores_that_were_not_requested_are_left_out(run, command) -> None:
    plain = run(*command, "--json")
    assert not {"clip", "bert_score", "diversity"} & set(json.loads(plain.out))


def test_scores_can_be_added_to_a_results_file(run, command, models: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    assert run(*command, "--diversity", "--out", out).code == 0
    before = json.loads(out.read_text())
    assert run(*command, "--rescore", out, "--clip", models / "tiny-clip").code == 0
    after = json.loads(out.read_text())
    assert after.pop("clip")["model"] == "tiny-clip"
    assert after == before


def test_images_that_could_not_be_read_are_left_out(run, model: Path, data: Path, models: Path) -> None:
    (data / "7.png").write_text("not an image")
    options = ("--model", model, "--clip", models / "tiny-clip", "--diversity", "--workers", 0, "--json")
    result = run("evaluate", "--data", data, "--no-meteor", *options)
    scores = json.loads(result.out)
    assert scores["clip"]["retrieval"]["images"] == scores["diversity"]["unique_captions"]["of"] == 2


def test_captions_of_an_unreadable_image_have_no_clip_score(run, command, data: Path, models: Path) -> None:
    (data / "7.png").write_text("not an image")
    assert "7.png: not an image" in run(*command, "--clip", models / "tiny-clip").error


@pytest.mark.parametrize("option", ["--clip", "--bert-score"])
def test_a_folder_without_a_model_is_refused_before_captioning(run, no_model, data: Path, models: Path, option) -> None:
    wrong = models / ("tiny-bert" if option == "--clip" else "tiny-clip")
    assert "can be loaded" in run("evaluate", "--data", data, option, wrong).error
    assert "no such folder" in run("evaluate", "--data", data, option, models / "gone").error


@pytest.mark.parametrize(
    ("option", "value", "package", "extra"),
    [
        ("--clip", "hf:name", "transformers", "hf"),
        ("--clip", "open_clip:ViT-B-32/openai", "open_clip", "clip"),
        ("--bert-score", "hf:name", "transformers", "hf"),
    ],
)
def test_a_missing_package_is_one_line(run, no_model, data: Path, monkeypatch, option, value, package, extra) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    assert f'pip install "saywhy[{extra}]"' in run("evaluate", "--data", data, option, value).error
