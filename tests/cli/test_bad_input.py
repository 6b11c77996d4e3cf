"""Every mistake of a user is one line that says what to do, with exit code 2, and writes nothing."""

from __future__ import annotations

import json
import os
import pickle
import struct
import time
import zlib
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import save_file

RECIPE = """
name = "mine"
[vocabulary]
min_count = 1
[preprocessing]
size = 64
[encoder]
name = "efficientnet-lite0"
weights = "none"
[captioner]
embedding = 8
hidden = 8
attention = 8
[training]
epochs = 1
precision = "float32"
"""
NESTED = "[" * 100_000 + "]" * 100_000


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int) -> bytes:
    """A PNG whose header claims this size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


class RunsWhenOpened:
    """What a malicious pickle does: run code, here to create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE)
    return path


@pytest.fixture
def train(run, recipe: Path, data: Path, tmp_path: Path):
    """Run `saywhy train` with the small recipe and more arguments."""

    def call(*options: object, recipe: Path = recipe, data: Path = data, out: Path = tmp_path / "run"):
        return run("train", recipe, "--data", data, "--out", out, "--device", "cpu", "--workers", 0, *options)

    return call


def test_missing_file_is_named(run, tmp_path: Path) -> None:
    error = run("caption", tmp_path / "gone.jpg").error
    assert error == f"saywhy: {tmp_path / 'gone.jpg'}: no such file or folder; check the spelling"


def test_file_name_with_a_line_break_stays_on_one_line(run, tmp_path: Path) -> None:
    assert "lines.jpg" in run("caption", tmp_path / "two\nlines.jpg").error


def test_text_file_named_jpg_is_not_an_image(run, tmp_path: Path) -> None:
    path = tmp_path / "notes.jpg"
    path.write_text("milk, bread, eggs")
    assert f"{path}: not an image" in run("caption", path).error


def test_truncated_jpeg_is_damaged(run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.jpg"
    Image.effect_noise((200, 200), 90).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    error = run("caption", path, "--model", model).error
    assert f"{path}: damaged" in error
    assert "copy or download it again" in error


@pytest.mark.parametrize(("size", "reason"), [((1, 1), "too small"), ((20_000, 20_000), "too large")])
def test_image_of_impossible_size_is_refused_by_its_header(run, no_model, tmp_path, size, reason: str) -> None:
    path = tmp_path / "odd.png"
    path.write_bytes(png(*size))
    began = time.process_time()
    error = run("caption", path).error
    assert time.process_time() - began < 1
    assert f"{path}: {reason}" in error


def test_empty_folder_has_no_images(run, tmp_path: Path) -> None:
    assert f"{tmp_path}: no images in this folder" in run("caption", tmp_path).error


def test_unreadable_image_is_named_and_the_others_are_captioned(run, model, photos, tmp_path: Path) -> None:
    photos[1].write_bytes(photos[1].read_bytes()[:300])
    result = run("caption", photos[0].parent, tmp_path / "gone.jpg", "--model", model, "--json")
    assert result.code == 2
    assert [json.loads(line)["image"] for line in result.out.splitlines()] == [str(photos[0]), str(photos[2])]
    assert sorted(line.split(": ")[1] for line in result.err.splitlines()) == sorted(
        [str(photos[1]), str(tmp_path / "gone.jpg")]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--beam", "0"], "'--beam'"),
        (["--beam", "3000"], "beam = 3000"),
        (["--beam", "100000000"], "beam = 100000000"),
        (["--length-penalty", "-1"], "'--length-penalty'"),
        (["--length-penalty", "nan"], "length"),
        (["--length-penalty", "1e308"], "length_penalty = 1e+308"),
        (["--batch-size", "0"], "'--batch-size'"),
        (["--sample", "--temperature", "0"], "temperature = 0"),
        (["--sample", "--temperature", "1e-300"], "temperature = 1e-300"),
        (["--sample", "--temperature", "1e300"], "temperature = 1e+300"),
        (["--sample", "--top-p", "2"], "top_p = 2"),
        (["--sample", "--seed", str(2**70)], "seed = 1180591620717411303424"),
        (["--beem", "3"], "--beam"),
        (["--guidance", "nan"], "guidance = nan is out of range: use 0 to 100"),
        (["--guidance", "-1"], "guidance = -1.0 is out of range"),
        (["--guidance", "inf"], "guidance = inf is out of range"),
        (["--guidance", "much"], "'--guidance'"),
        (["--lm-weight", "5,2.5"], "--lm-weight is the weight of a language model: add --lm"),
        (["--lm", "q"], "--lm has no effect alone"),
        (["--lm", "", "--guidance", "2"], "--lm is empty"),
        (["--lm", "q", "--guidance", "1"], "--lm has no effect alone"),
        (["--lm", "q", "--guidance", "2", "--lm-weight", "5,2.5"], "give one or the other"),
        (["--lm", "q", "--lm-weight", "5"], "lm_weight must be two numbers"),
        (["--lm", "q", "--lm-weight", "5,nan"], "lm_weight must be two numbers"),
        (["--lm", "q", "--lm-weight", "5,-1"], "lm_weight must be two numbers"),
        (["--lm", "q", "--lm-weight", "5;2"], "--lm-weight 5;2: give two numbers, such as 5,2.5"),
    ],
)
def test_option_out_of_range_is_refused_before_a_model_is_loaded(run, no_model, photos, options, message) -> None:
    assert message in run("caption", *photos, *options).error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--device", "abacus"], "unknown device 'abacus'"),
        (["--device", "meta"], "'meta' is not available"),
        (["--device", "cuda:99"], "'cuda:99' is not available"),
        (["--model", "no-such-model"], "no model at no-such-model"),
        (["--import", "no_such_module"], "no_such_module: cannot be imported"),
        (["--import", "gone.py"], "gone.py: no such file"),
    ],
)
def test_missing_device_model_or_module_is_named(run, model: Path, photos, options, message: str) -> None:
    model_option = [] if "--model" in options else ["--model", model]
    assert message in run("caption", *photos, *model_option, *options).error


def test_an_empty_argument_is_refused_and_is_not_the_current_folder(run, monkeypatch, photos: list[Path]) -> None:
    monkeypatch.chdir(photos[0].parent)
    assert "an argument is empty" in run("caption", "").error
    assert "--model is empty" in run("caption", photos[0], "--model", "").error


def test_unknown_command_suggests_the_most_similar(run) -> None:
    assert "Did you mean 'caption'?" in run("captoin").error


@pytest.mark.parametrize(("command", "option"), [("caption", "--figures"), ("explain", "--out")])
def test_folder_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    run, no_model, monkeypatch: pytest.MonkeyPatch, photos: list[Path], tmp_path: Path, command: str, option: str
) -> None:
    assert "should be a folder" in run(command, photos[0], option, photos[1]).error
    assert "cannot be written" in run(command, photos[0], option, photos[1] / "deep" / "down").error
    monkeypatch.setattr("os.access", lambda _, mode: not mode & os.W_OK)  # not even root may write now
    assert "permission denied" in run(command, photos[0], option, tmp_path / "new").error
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", ["--out", "--save-captions"])
def test_file_that_cannot_be_written_is_refused_before_a_model_is_loaded(run, no_model, data, option: str) -> None:
    assert "cannot be written" in run("evaluate", "--data", data, option, data / "0.png" / "x.json").error
    assert "should be a file" in run("evaluate", "--data", data, option, data).error


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (OSError(28, "No space left on device", "out.json"), 2, "out.json: No space left on device"),
        (MemoryError(), 1, "out of memory; use a smaller --batch-size"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 1, "out of memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20 GiB"), 1, "out of memory"),
        (RecursionError("maximum recursion depth exceeded"), 1, "nested too deeply"),
        (TypeError("two\nlines"), 1, "internal error: TypeError: two lines; run again with -v for the traceback"),
    ],
)
def test_every_error_is_one_line(run, monkeypatch, data: Path, error: Exception, code: int, message: str) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("saywhy.data.datasets.read", fail)
    assert message in run("evaluate", "--data", data).one_line(code)
    shown = run("evaluate", "--data", data, "-v")
    assert "Traceback" in shown.err
    assert message in shown.err.splitlines()[-1]


@pytest.mark.parametrize("command", ["check", "evaluate", "train"])
def test_captions_file_without_a_required_column_is_refused(run, train, data: Path, tmp_path, command: str) -> None:
    (data / "captions.csv").write_text("image,words\n0.png,a dog\n")
    calls = {
        "check": lambda: run("data", "check", data),
        "evaluate": lambda: run("evaluate", "--data", data),
        "train": train,
    }
    error = calls[command]().error
    assert error.startswith(f"saywhy: {data / 'captions.csv'}: line 1: no column caption or text")
    assert "image, words" in error
    assert not (tmp_path / "run").exists()


def test_missing_dataset_folder_is_named(run, tmp_path: Path) -> None:
    assert f"{tmp_path / 'gone'}: no such file" in run("data", "check", tmp_path / "gone").error


def test_unknown_split_lists_the_splits(run, data: Path) -> None:
    assert "unknown split 'tset'" in run("evaluate", "--data", data, "--split", "tset").error
    without_dev = (data / "captions.csv").read_text().replace("dev", "train")
    (data / "captions.csv").write_text(without_dev)
    error = run("evaluate", "--data", data, "--split", "val").error
    assert "no images in split 'dev'" in error
    assert "train (6), test (3)" in error


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("sead = 1", "unknown key 'sead': did you mean \"seed\"?"),
        ("[training]\nepoch = 1", "unknown key 'training.epoch': did you mean \"epochs\"?"),
        ("[captioner]\nname = 'soft-attention'\nhiden = 8", 'hiden\': did you mean "hidden"?'),
        ("[training]\nepochs = 'many'", "'training.epochs' must be int"),
        ("[training", "not TOML"),
    ],
)
def test_malformed_recipe_is_refused(train, recipe: Path, tmp_path: Path, table: str, message: str) -> None:
    recipe.write_text(table)
    error = train().error
    assert str(recipe) in error
    assert message in error
    assert not (tmp_path / "run").exists()


def test_missing_recipe_is_named(train, tmp_path: Path) -> None:
    assert f"{tmp_path / 'none.toml'}: no such recipe" in train(recipe=tmp_path / "none.toml").error


def test_training_seed_beyond_64_bits_is_refused(train) -> None:
    assert "seed" in train("--seed", 2**70).error


def test_pickle_given_as_weights_is_refused_and_not_run(train, tmp_path, recwarn: pytest.WarningsRecorder) -> None:
    weights, ran = tmp_path / "weights.pt", tmp_path / "ran"
    weights.write_bytes(pickle.dumps(RunsWhenOpened(ran)))
    assert str(weights) in train("--weights", weights).error
    assert not ran.exists()
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["train.lock"], "nothing but the lock"
    assert not recwarn.list, "warnings of a library would be more than one line"


@pytest.mark.parametrize("option", ["--start", "--teacher"])
def test_a_folder_without_a_model_to_start_or_learn_from_is_named(train, data: Path, option: str) -> None:
    distil = ("--set", "training.distil=0.5") if option == "--teacher" else ()
    assert "no model at gone: give a folder" in train(option, "gone", *distil).error
    assert f"{data} has no config.json: it is not a saywhy model" in train(option, data, *distil).error


def test_missing_weights_are_named(train, tmp_path: Path) -> None:
    assert f"{tmp_path / 'none.pt'}" in train("--weights", tmp_path / "none.pt").error


def test_training_folder_that_cannot_be_created_is_refused(train, data: Path) -> None:
    assert "cannot be written" in train(out=data / "0.png" / "run").error
    assert "should be a folder" in train(out=data / "0.png").error


def test_training_on_one_of_several_gpus_names_the_variable_to_set(train) -> None:
    assert "CUDA_VISIBLE_DEVICES" in train("--device", "cuda:1").error


def test_resume_needs_a_run_and_a_new_run_needs_an_empty_folder(train, tmp_path: Path) -> None:
    assert "no checkpoint to resume from" in train("--resume").error
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"an earlier run")
    assert "--resume" in train().error
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == b"an earlier run"


def test_checkpoint_of_another_version_is_refused(train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    metadata = {"saywhy": json.dumps({"format": 99, "saywhy": "9.0.0"})}
    save_file({}, tmp_path / "run" / "checkpoint.safetensors", metadata=metadata)
    assert "saywhy 9.0.0" in train("--resume").error


@pytest.fixture
def changed_model(model: Path, model_copy: Path):
    """A copy of the model with changes to its config.json."""

    def change(**changes: Any) -> Path:
        config = json.loads((model / "config.json").read_text())
        (model_copy / "config.json").write_text(json.dumps(config | changes))
        return model_copy

    return change


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 99, "saywhy": "9.0.0"}, "saywhy 9.0.0"),
        ({"decoding": {"beam": 2, "mood": "happy"}}, "mood"),
        ({"decoding": {"beam": 2, "max_words": 10**9}}, "max_words"),
        ({"decoding": {"beam": 2, "max_words": "six"}}, "max_words"),
        ({"decoding": [2]}, "config.json"),
        ({"captioner": {"name": "mind-reader", "settings": {}}}, "unknown captioner 'mind-reader'"),
        ({"encoder": {"name": 7}}, "config.json"),
        ({"preprocessing": {"size": 64, "glasses": True}}, "config.json"),
        ({"conditioning_dropout": "half"}, "conditioning_dropout must be a number from 0 to 1, not 'half'"),
        ({"conditioning_dropout": 2}, "conditioning_dropout must be a number from 0 to 1, not 2"),
    ],
)
def test_model_with_unknown_settings_is_refused(run, changed_model, photos, tmp_path, changes, message: str) -> None:
    folder = changed_model(**changes)
    assert message in run("caption", photos[0], "--model", folder).error
    assert message in run("explain", photos[0], "--model", folder, "--out", tmp_path / "why").error


def test_model_whose_weights_are_a_pickle_is_refused_and_not_run(run, changed_model, photos, tmp_path) -> None:
    folder, ran = changed_model(), tmp_path / "ran"
    (folder / "model.safetensors").write_bytes(pickle.dumps(RunsWhenOpened(ran)))
    assert "model.safetensors" in run("caption", photos[0], "--model", folder).error
    assert not ran.exists()


@pytest.mark.parametrize("command", ["config", "risk", "captions", "results", "audit results", "dataset"])
def test_json_nested_100_000_deep_is_refused(run, model_copy, photos, data, tmp_path: Path, command: str) -> None:
    file = {
        "config": model_copy / "config.json",
        "risk": model_copy / "risk.json",
        "captions": tmp_path / "captions.json",
        "results": tmp_path / "results" / "nested.json",
        "audit results": tmp_path / "results" / "audit-nested-sanity.json",
        "dataset": data / "dataset_mine.json",
    }[command]
    file.parent.mkdir(exist_ok=True)
    file.write_text(NESTED)
    arguments = {
        "config": ("caption", photos[0], "--model", model_copy),
        "risk": ("caption", photos[0], "--model", model_copy, "--risk"),
        "captions": ("evaluate", "--data", data, "--captions", file),
        "results": ("results", tmp_path / "results"),
        "audit results": ("results", tmp_path / "results", "--audits", tmp_path / "pages"),
        "dataset": ("data", "check", file),
    }[command]
    assert file.name in run(*arguments).error


def test_results_file_with_an_empty_object_is_refused(run, tmp_path: Path) -> None:
    (tmp_path / "empty.json").write_text("{}")
    assert "empty.json" in run("results", tmp_path).error


def test_verbose_shows_the_traceback_wherever_it_is_given(run, tmp_path: Path) -> None:
    for arguments in (["-v", "data", "check", tmp_path / "gone"], ["data", "check", tmp_path / "gone", "--verbose"]):
        result = run(*arguments)
        assert result.code == 2
        assert "Traceback" in result.err
        assert result.err.splitlines()[-1].startswith("saywhy: ")


def test_no_arguments_show_the_help(run) -> None:
    assert "Commands" in run().out


def test_a_caption_of_10_000_words_is_refused_and_does_not_fill_the_memory(train, data: Path, tmp_path: Path) -> None:
    with (data / "captions.csv").open("a") as table:
        table.write(f"0.png,{'word1 ' * 10_000},train\n")
    assert "0.png: a caption of 10,000 words, and training reads at most 1,000" in train().error
    assert train("--set", "training.max_words=40").code == 0
