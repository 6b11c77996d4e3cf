"""Captioners of transformers from the command line: captions, explanations, audits, and what is refused in one line."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import adapted
import tiny_transformers
from saywhy.adapters import memory
from saywhy.adapters.load_adapter import load_adapter
from saywhy.bulk.tasks import ModelChoice
from saywhy.hallucination import fitting
from saywhy.inference.model import Model

PHOTO = "examples/images/chelsea.jpg"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A trained tiny ViT-GPT2."""
    path = tmp_path_factory.mktemp("adapted") / "vit-gpt2"
    adapted.trained("vision-encoder-decoder").save(path)
    return path


@pytest.fixture
def photo(tmp_path) -> Path:
    path = tmp_path / "photo.png"
    adapted.images()[0].save(path)
    return path


@pytest.fixture
def copied(folder, tmp_path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_caption_gives_words_with_log_probabilities(run, folder, photo):
    result = run("caption", photo, "--model", f"hf:{folder}", "--json")
    assert result.code == 0, result.err
    caption = json.loads(result.out)
    assert caption["caption"] == "a man riding a skateboard down a street"
    assert [word["word"] for word in caption["words"]] == caption["caption"].split()
    assert caption["model"] == "vit-gpt2"


def test_explanation_has_a_budget_that_names_class_token_and_pieces(run, folder, photo, tmp_path):
    result = run("explain", photo, "--model", folder, "--out", tmp_path / "out")
    assert (result.code, result.err) == (0, "")
    words = json.loads((tmp_path / "out" / "explanation.json").read_text())["words"]
    for word in words:
        assert sum(word["budget"].values()) == pytest.approx(word["score"], abs=1e-4)
    assert any(word["budget"].get("class_token") for word in words)
    page = (tmp_path / "out" / "report.html").read_text()
    assert '<th scope="col">class token</th>' in page
    assert "first pieces</th>" in page


def test_request_that_the_vocabulary_cannot_express_is_one_line(run, folder, photo, tmp_path):
    error = run("explain", photo, "--model", folder, "--out", tmp_path / "out", "--word", "Ж").error
    assert "not in the model's vocabulary" in error


@pytest.mark.parametrize(
    ("file", "key"), [("tokenizer_config.json", "model_max_length"), ("preprocessor_config.json", "rescale_factor")]
)
def test_a_value_of_the_wrong_type_is_one_line(run, copied, photo, file: str, key: str):
    contents = json.loads((copied / file).read_text())
    (copied / file).write_text(json.dumps(contents | {key: ["a"]}))
    assert f"{copied}: not a captioner that can be loaded" in run("caption", photo, "--model", copied).error


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("architectures",), 5, "writes no captions"),
        (("decoder", "add_cross_attention"), False, "its decoder has no cross-attention"),
        (("decoder_start_token_id",), "a", "by 'a', which is no number"),
    ],
)
def test_a_configuration_that_does_not_fit_is_one_line(run, copied, photo, keys: tuple, value, message: str):
    (copied / "generation_config.json").unlink()
    config = json.loads((copied / "config.json").read_text())
    part = config
    for key in keys[:-1]:
        part = part[key]
    part[keys[-1]] = value
    (copied / "config.json").write_text(json.dumps(config))
    assert message in run("caption", photo, "--model", copied).error


def test_risk_is_fitted_and_saved_in_another_folder(run, folder, photo, tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "MIN_WORDS", 5)
    data, saved, rows = tmp_path / "data", tmp_path / "with-risk", ["image,caption,split"]
    data.mkdir()
    for number, image in enumerate(adapted.images(40)):
        image.save(data / f"{number}.png")
        shows = "a man and a woman on a street with a dog and a cat and a train" if number % 2 else "a zebra"
        rows.append(f"{number}.png,{shows},{'test' if number % 4 < 2 else 'dev'}")
    (data / "captions.csv").write_text("\n".join(rows))
    result = run(
        "audit", "risk", "--model", f"hf:{folder}", "--data", data, "--fit", "dev", "--save-to", saved,
        "--out", tmp_path / "audits", "--workers", "0",
    )  # fmt: skip
    assert result.code == 0, result.err
    assert json.loads((saved / "config.json").read_text())["kind"] == "adapter"
    captioned = run("caption", photo, "--model", saved, "--risk")
    assert captioned.code == 0, captioned.err
    assert re.search(r"a man \(\d+%\) riding a skateboard", captioned.out)


@pytest.mark.parametrize(
    "name", ["sanity", "hallucination", "word-ablation", "image-ablation", "localisation", "specificity"]
)
def test_audits_run_to_their_end(run, folder, data, tmp_path, name):
    result = run("audit", name, "--model", f"hf:{folder}", "--data", data, "--out", tmp_path, "--workers", "0")
    assert result.code == 0, result.err
    assert list(tmp_path.glob(f"audit-*-{name}.json"))


def test_evaluate_scores_words_without_punctuation(run, folder, data, tmp_path):
    result = run(
        "evaluate",
        "--model",
        folder,
        "--data",
        data,
        "--save-captions",
        tmp_path / "captions.jsonl",
        "--workers",
        "0",
    )
    assert result.code == 0, result.err
    captions = [json.loads(line)["caption"] for line in (tmp_path / "captions.jsonl").read_text().splitlines()]
    assert captions
    assert not any("." in caption for caption in captions)


def test_a_judge_ranks_its_captions(run, folder, data, judge):
    options = ("--data", data, "--judge", judge, "--no-meteor", "--workers", 0, "--json")
    result = run("evaluate", "--model", f"hf:{folder}", *options)
    assert result.code == 0, result.err
    assert json.loads(result.out)["judge"]["images"] == 3


def test_a_model_that_is_not_in_a_folder_captions_many_images(folder):
    hub_model = Model(load_adapter(f"hf:{folder}"))
    settings, others = (ModelChoice(decoding=decoding).settings(hub_model) for decoding in ({}, {"beam": 2}))
    assert settings["model"] == others["model"] == {"name": "vit-gpt2", "digest": hub_model.digest()}
    assert settings["options"] != others["options"]


def remove(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink()


def edit_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))


def test_a_model_that_writes_no_captions(run, tmp_path):
    tiny_transformers.save_bert(tmp_path)
    assert "a bert model is no captioner" in run("caption", PHOTO, "--model", f"hf:{tmp_path}").error


def test_a_model_of_another_task(run, tmp_path):
    adapted.Tiny(*tiny_transformers.blip_parts()).save(tmp_path)
    edit_config(tmp_path, architectures=["BlipForQuestionAnswering"])
    assert "BlipForQuestionAnswering writes no captions" in run("caption", PHOTO, "--model", tmp_path).error


def test_a_tokenizer_that_is_missing(run, copied):
    remove(copied, "*token*", "vocab*", "merges*")
    assert "tokenizer" in run("caption", PHOTO, "--model", copied).error


def test_weights_that_are_missing_or_pickled(run, copied):
    (copied / "model.safetensors").rename(copied / "pytorch_model.bin")
    assert "safetensors" in run("caption", PHOTO, "--model", copied).error


def test_a_damaged_file_of_weights(run, copied):
    (copied / "model.safetensors").write_bytes((8).to_bytes(8, "little") + b"not json")
    assert "not a safetensors file" in run("caption", PHOTO, "--model", copied).error


def test_code_of_a_repository_is_not_run(run, copied):
    edit_config(copied, model_type="of-their-own", auto_map={"AutoConfig": "configuration.Config"})
    marker = copied / "was-run"
    (copied / "configuration.py").write_text(f"open({str(marker)!r}, 'w')\n")
    assert "code from its repository, which is not run" in run("caption", PHOTO, "--model", copied).error
    assert not marker.exists()


def test_transformers_is_not_installed(run, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert "saywhy[hf]" in run("caption", PHOTO, "--model", f"hf:{folder}").error


@pytest.mark.parametrize("model", ["hf:user/no-such-model", "user/no-such-model"])
def test_no_network(run, monkeypatch, model):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "the Hub cannot be reached" in run("caption", PHOTO, "--model", model).error


def test_a_folder_that_does_not_exist(run, tmp_path):
    assert "no such folder" in run("caption", PHOTO, "--model", f"hf:{tmp_path}/none").error


def test_a_model_that_is_too_large_is_refused_before_its_weights_are_read(run, copied, monkeypatch):
    header = json.dumps({"weight": {"dtype": "F16", "shape": [7_000, 1_000_000], "data_offsets": [0, 14_000_000_000]}})
    (copied / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header.encode())
    monkeypatch.setattr(memory, "available_memory", lambda device: 8 * 10**9)
    error = run("caption", PHOTO, "--model", copied).error
    assert "7.0 billion weights need 28.0 GB in single precision, and 8.0 GB are free" in error


def test_a_risk_model_is_not_saved_in_a_folder_that_does_not_exist(run, data, tmp_path):
    error = run("audit", "risk", "--model", "hf:user/model", "--data", data, "--out", tmp_path, "--save-risk").error
    assert "--save-to" in error


def test_a_familiarity_is_not_saved_for_a_model_of_transformers(run, folder, data, tmp_path):
    arguments = ("--fit-familiarity", data, "--save-familiarity")
    error = run("audit", "familiarity", "--model", folder, "--data", data, "--out", tmp_path, *arguments).error
    assert "no familiarity can be saved" in error


def test_models_lists_the_adapters(run):
    tables = json.loads(run("models", "--json").out)
    assert [row["name"] for row in tables["adapters"]] == ["vision-encoder-decoder", "blip", "git", "llava"]
