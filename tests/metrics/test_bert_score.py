"""BERTScore equals a loop over tokens, with a tiny BERT; layers, and folders that hold no text encoder."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from reference import metrics as reference
from saywhy.errors import UserError
from saywhy.metrics.bert_models import load_bert
from saywhy.metrics.bert_score import BertScorer, bert_score

pytest.importorskip("transformers")

import tiny_transformers

CAPTIONS = ["a dog runs on grass", "Two dogs .", ["the", "man", "sits"]]
REFERENCES = [
    ["a dog runs", "the cat sits on grass ."],
    ["two dogs run on grass"],
    ["the man", "a photo", "The man sits."],
]


@pytest.fixture(scope="module", autouse=True)
def _single_thread(one_thread: None) -> None:
    """The models are tiny."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "bert"
    tiny_transformers.save_bert(folder)
    return folder


@pytest.fixture(scope="module")
def encoder(folder: Path):
    return load_bert(folder)


def scores_of_a_loop(captions, references, encoder, idf: bool) -> np.ndarray:
    """The best P, R and F of each caption; every text goes through the model alone."""
    everything = [encoder.tokenize(text) for group in references for text in group]

    def vectors(tokens):
        with torch.inference_mode():
            output = encoder.model(torch.tensor([tokens]), output_hidden_states=True)
        return output.hidden_states[encoder.layer][0].double().tolist()

    best = []
    for caption, group in zip(captions, references, strict=True):
        candidate = encoder.tokenize(caption)
        scores = []
        for text in group:
            tokens = encoder.tokenize(text)
            weights = {token: 0.0 if token in (2, 3) else 1.0 for token in (*candidate, *tokens)}
            if idf:
                weights = {token: reference.inverse_document_frequency(token, everything) for token in weights}
            scores.append(reference.bert_score(candidate, tokens, vectors(candidate), vectors(tokens), weights))
        best.append(np.max(scores, axis=0))
    return np.array(best)


@pytest.mark.parametrize("idf", [True, False])
@pytest.mark.parametrize("layer", [1, 3])
def test_scores_equal_those_of_a_loop_over_tokens(folder: Path, idf: bool, layer: int) -> None:
    rng = random.Random(layer)

    def caption() -> str:
        return " ".join(rng.choices(tiny_transformers.WORDS, k=rng.randint(1, 8)))

    captions = [caption() for _ in range(70)]  # more than are embedded at once
    references = [[caption() for _ in range(rng.randint(1, 4))] for _ in captions]
    encoder = load_bert(f"{folder}@{layer}")
    score = bert_score(captions, references, encoder, idf=idf)
    assert score.per_caption == pytest.approx(scores_of_a_loop(captions, references, encoder, idf), abs=1e-5)
    assert [score.precision, score.recall, score.f1] == pytest.approx(score.per_caption.mean(axis=0).tolist())
    assert score.per_caption.std() > 0.01, "all captions alike"


def test_a_caption_equal_to_a_reference_scores_one(encoder) -> None:
    assert bert_score(["two dogs"], [["a cat on grass", "Two dogs"]], encoder).as_dict() == {
        name: pytest.approx(1) for name in ("precision", "recall", "f1")
    }


def test_precision_and_recall_differ_by_the_side_that_has_more_words(encoder) -> None:
    short = bert_score(["a dog"], [["a dog runs on grass"]], encoder, idf=False)
    long = bert_score(["a dog runs on grass"], [["a dog"]], encoder, idf=False)
    assert short.precision == pytest.approx(long.recall)
    assert short.recall == pytest.approx(long.precision)
    assert short.f1 == pytest.approx(long.f1)
    assert short.precision != pytest.approx(short.recall)


def test_a_baseline_rescales_each_score(encoder) -> None:
    plain = bert_score(CAPTIONS, REFERENCES, encoder)
    rescaled = bert_score(CAPTIONS, REFERENCES, encoder, baseline=(0.1, 0.2, 0.3))
    assert rescaled.precision == pytest.approx((plain.precision - 0.1) / 0.9)
    assert rescaled.f1 == pytest.approx((plain.f1 - 0.3) / 0.7)


@pytest.mark.parametrize("idf", [True, False])
def test_texts_without_words_score_zero(encoder, idf: bool) -> None:
    score = bert_score(["", " ", "a dog"], [["a dog"], [""], ["", "a dog"]], encoder, idf=idf)
    assert score.per_caption[:2].tolist() == [[0, 0, 0]] * 2
    assert score.f1 == pytest.approx(1 / 3)


def test_words_that_every_reference_has_do_not_count_with_idf(encoder) -> None:
    score = bert_score(["a dog"], [["a dog"]], encoder)
    assert (score.precision, score.f1) == (0, 0), "with a single reference, no word is rare"


def test_the_class_gives_the_score_of_the_function_for_any_batches(encoder) -> None:
    scorer = BertScorer(encoder)
    for number in range(3):
        scorer.update(CAPTIONS[number : number + 1], REFERENCES[number : number + 1])
    expected = bert_score(CAPTIONS, REFERENCES, encoder)
    assert scorer.compute().per_caption == pytest.approx(expected.per_caption, abs=1e-6)
    scorer.reset()
    scorer.update(CAPTIONS, REFERENCES)
    assert scorer.compute() == expected


def test_progress_is_reported_in_images(encoder) -> None:
    reports: list[tuple[int, int]] = []
    bert_score(["a dog"] * 70, [["a cat"]] * 70, encoder, progress=lambda *done: reports.append(done))
    assert reports == [(64, 70), (70, 70)]


@pytest.mark.parametrize(("captions", "references"), [([], []), (["a"], []), (["a"], [[]]), (["a", "b"], [["a"]])])
def test_captions_without_references_are_refused(encoder, captions, references) -> None:
    with pytest.raises(UserError, match="at least one reference for each"):
        bert_score(captions, references, encoder)
    with pytest.raises(UserError, match="not one text"):
        bert_score(["a dog"], ["a dog"], encoder)


def test_broken_weights_are_an_error_and_not_a_score(folder: Path) -> None:
    encoder = load_bert(folder)
    encoder.model.encoder.layer[2].output.dense.weight.data[:] = torch.nan
    with pytest.raises(UserError, match="zero or not finite"):
        bert_score(CAPTIONS, REFERENCES, encoder)


def test_long_texts_are_cut(encoder) -> None:
    assert len(encoder.tokenize("a dog " * 40)) == encoder.longest == 20


def test_the_layer_is_the_last_unless_named(folder: Path, tmp_path: Path) -> None:
    assert [load_bert(place).layer for place in (folder, f"{folder}@2")] == [3, 2]
    with pytest.raises(UserError, match="no layer 4; this model has 3, give @1 to @3"):
        load_bert(f"{folder}@4")


def test_models_of_the_paper_have_its_layers(folder: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setitem(load_bert.__globals__["LAYERS"], "bert", 2)
    assert load_bert(folder).layer == 2


def test_what_is_no_text_encoder_is_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    tiny_transformers.save_clip(tmp_path / "clip")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "config.json").write_text("{}")
    for place, message in {
        tmp_path / "gone": "no such folder; give the folder of a text encoder of Hugging Face, or hf:NAME",
        tmp_path / "clip": "not a text encoder that can be loaded .it is of the type clip",
        tmp_path / "broken": "not a text encoder that can be loaded",
        tmp_path: "not a text encoder that can be loaded",
    }.items():
        with pytest.raises(UserError, match=message) as caught:
            load_bert(place)
        assert "\n" not in str(caught.value)


def test_pickled_and_missing_weights_are_refused(tmp_path: Path) -> None:
    model = tiny_transformers.save_bert(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 4}))
    with pytest.raises(UserError, match=r"its weights lack 16 tensors, such as encoder\.layer\.3"):
        load_bert(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match="not a text encoder that can be loaded"):
        load_bert(tmp_path)


def test_loading_prints_nothing(folder: Path, capfd) -> None:
    load_bert(folder)
    assert capfd.readouterr() == ("", "")


def test_without_transformers_one_line_names_the_extra(folder: Path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r'BERTScore needs transformers: pip install "saywhy\[hf\]"'):
        load_bert(folder)
