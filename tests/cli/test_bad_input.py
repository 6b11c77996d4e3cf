"""Whatever a user gets wrong: one line that says so, exit code 2, nothing half-written."""

from __future__ import annotations

import json
import os
import pickle
import shutil
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
name = "timm:test_resnet"
weights = "none"
[training]
epochs = 1
precision = "float32"
"""


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png(width: int, height: int) -> bytes:
    """A PNG of such a size by its header; nobody who believes the header needs the rest."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


class RunsWhenOpened:
    """What a malicious pickle does: touch a file."""

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
    """Trainer `saywhy train` with the small recipe and more arguments."""

    def call(*more: object, recipe: Path = recipe, data: Path = data, out: Path = tmp_path / "run"):
        return run("train", recipe, "--data", data, "--out", out, "--device", "cpu", "--workers", 0, *more)

    return call


def no_model_is_loaded(*_: object) -> None:
    raise AssertionError("the mistake should have been found before a model is loaded")


def test_a_missing_file_is_named(run, tmp_path: Path) -> None:
    complaint = run("caption", tmp_path / "gone.jpg").complaint
    assert complaint == f"saywhy: {tmp_path / 'gone.jpg'}: no such file or folder; check the spelling"


def test_a_name_of_two_lines_makes_no_two_lines(run, tmp_path: Path) -> None:
    assert "two lines.jpg" in run("caption", tmp_path / "two\nlines.jpg").complaint


def test_a_text_file_called_jpg_is_no_image(run, tmp_path: Path) -> None:
    path = tmp_path / "notes.jpg"
    path.write_text("milk, bread, eggs")
    assert f"{path}: not an image" in run("caption", path).complaint


def test_a_truncated_jpeg_is_damaged(run, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "half.jpg"
    Image.effect_noise((200, 200), 90).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    complaint = run("caption", path, "--model", model).complaint
    assert f"{path}: damaged" in complaint
    assert "copy or download it again" in complaint


@pytest.mark.parametrize(("size", "what"), [((1, 1), "too small"), ((20_000, 20_000), "too large")])
def test_images_of_impossible_sizes_are_refused_by_their_header_at_once(
    run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: tuple[int, int], what: str
) -> None:
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    path = tmp_path / "odd.png"
    path.write_bytes(png(*size))
    began = time.process_time()
    complaint = run("caption", path).complaint
    assert time.process_time() - began < 1
    assert f"{path}: {what}" in complaint


def test_an_empty_folder_holds_no_images(run, tmp_path: Path) -> None:
    assert f"{tmp_path}: no images in this folder" in run("caption", tmp_path).complaint


def test_a_broken_image_among_others_is_named_and_the_others_are_captioned(
    run, model: Path, photos: list[Path], tmp_path: Path
) -> None:
    photos[1].write_bytes(photos[1].read_bytes()[:300])
    result = run("caption", photos[0].parent, tmp_path / "gone.jpg", "--model", model, "--json")
    assert result.code == 2
    assert [json.loads(line)["image"] for line in result.out.splitlines()] == [str(photos[0]), str(photos[2])]
    assert sorted(line.split(": ")[1] for line in result.err.splitlines()) == sorted(
        [str(photos[1]), str(tmp_path / "gone.jpg")]
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--beam", "0"], "'--beam'"),
        (["--length", "-1"], "'--length'"),
        (["--length", "nan"], "length"),
        (["--batch", "0"], "'--batch'"),
        (["--sample", "--temperature", "0"], "temperature = 0"),
        (["--sample", "--top-p", "2"], "top_p = 2"),
        (["--beem", "3"], "--beam"),
        (["--device", "abacus"], "unknown device 'abacus'"),
        (["--device", "meta"], "'meta' is not to be had"),
        (["--device", "cuda:99"], "'cuda:99' is not to be had"),
        (["--model", "no-such-model"], "no model at no-such-model"),
    ],
)
def test_options_out_of_range_are_refused(run, model: Path, photos: list[Path], options: list[str], said: str) -> None:
    given = [] if "--model" in options else ["--model", model]
    assert said in run("caption", *photos, *given, *options).complaint


def test_an_unknown_command_is_answered_with_the_nearest(run) -> None:
    assert "Did you mean 'caption'?" in run("captoin").complaint


def test_figures_are_refused_where_they_cannot_be_written_before_a_model_is_loaded(
    run, monkeypatch: pytest.MonkeyPatch, photos: list[Path], tmp_path: Path
) -> None:
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    assert "should be a folder" in run("caption", photos[0], "--figures", photos[1]).complaint
    assert "cannot be written" in run("caption", photos[0], "--figures", photos[1] / "deep" / "down").complaint
    monkeypatch.setattr("os.access", lambda _, mode: not mode & os.W_OK)  # root, too, may write nowhere now
    assert "permission denied" in run("caption", photos[0], "--figures", tmp_path / "new").complaint
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("option", ["--out", "--save-captions"])
def test_a_file_that_cannot_be_written_is_refused_before_a_model_is_loaded(
    run, monkeypatch: pytest.MonkeyPatch, data: Path, option: str
) -> None:
    monkeypatch.setattr("saywhy.inference.model.load", no_model_is_loaded)
    assert "cannot be written" in run("evaluate", "--data", data, option, data / "0.png" / "x.json").complaint
    assert "should be a file" in run("evaluate", "--data", data, option, data).complaint


def test_an_error_of_the_file_system_is_one_line_too(run, monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "results.json")

    monkeypatch.setattr("saywhy.data.datasets.read", full)
    assert "results.json: No space left on device" in run("evaluate", "--data", data).complaint


@pytest.mark.parametrize("command", ["check", "evaluate", "train"])
def test_a_captions_file_with_a_missing_column_is_refused(run, train, data: Path, tmp_path: Path, command: str) -> None:
    (data / "captions.csv").write_text("image,words\n0.png,a dog\n")
    calls = {
        "check": lambda: run("data", "check", data),
        "evaluate": lambda: run("evaluate", "--data", data),
        "train": train,
    }
    assert calls[command]().complaint == (
        f"saywhy: {data / 'captions.csv'}: line 1: no column caption or text; columns found: image, words"
    )
    assert not (tmp_path / "run").exists()


def test_a_data_folder_that_is_not_there_is_named(run, tmp_path: Path) -> None:
    assert f"{tmp_path / 'gone'}: no such file" in run("data", "check", tmp_path / "gone").complaint


def test_an_unknown_split_is_answered_with_those_there_are(run, data: Path) -> None:
    assert "unknown split 'tset'" in run("evaluate", "--data", data, "--split", "tset").complaint
    without_dev = (data / "captions.csv").read_text().replace("dev", "train")
    (data / "captions.csv").write_text(without_dev)
    complaint = run("evaluate", "--data", data, "--split", "val").complaint
    assert "no images in split 'dev'; splits there are: train (6), test (3)" in complaint


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("sead = 1", "unknown key 'sead': did you mean \"seed\"?"),
        ("[training]\nepoch = 1", "unknown key 'training.epoch': did you mean \"epochs\"?"),
        ("[captioner]\nname = 'soft-attention'\nhiden = 8", 'hiden\': did you mean "hidden"?'),
        ("[training]\nepochs = 'many'", "'training.epochs' must be int"),
        ("[training", "not TOML"),
    ],
)
def test_a_recipe_that_cannot_be_followed_is_refused(
    train, recipe: Path, tmp_path: Path, table: str, said: str
) -> None:
    recipe.write_text(table)
    complaint = train().complaint
    assert str(recipe) in complaint
    assert said in complaint
    assert not (tmp_path / "run").exists()


def test_a_missing_recipe_is_named(train, tmp_path: Path) -> None:
    assert f"{tmp_path / 'none.toml'}: no such recipe" in train(recipe=tmp_path / "none.toml").complaint


def test_a_pickle_passed_as_weights_is_refused_and_not_run(
    train, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    weights, ran = tmp_path / "weights.pt", tmp_path / "ran"
    weights.write_bytes(pickle.dumps(RunsWhenOpened(ran)))
    assert f"{weights} holds more than tensors" in train("--weights", weights).complaint
    assert not ran.exists()
    assert not (tmp_path / "run").exists()
    assert not recwarn.list, "a library's warnings would make it more than one line"


def test_weights_that_are_not_there_are_named(train, tmp_path: Path) -> None:
    assert f"no file {tmp_path / 'none.pt'}" in train("--weights", tmp_path / "none.pt").complaint


def test_training_is_refused_where_its_folder_cannot_be(train, data: Path) -> None:
    assert "cannot be written" in train(out=data / "0.png" / "run").complaint
    assert "should be a folder" in train(out=data / "0.png").complaint


def test_training_on_one_of_several_gpus_is_refused_with_the_way_to_do_it(train) -> None:
    assert "CUDA_VISIBLE_DEVICES" in train("--device", "cuda:1").complaint


def test_resuming_without_a_run_and_starting_over_one_are_refused(train, tmp_path: Path) -> None:
    assert "no checkpoint to resume from" in train("--resume").complaint
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"an earlier run")
    assert "holds a run already" in train().complaint
    assert (tmp_path / "run" / "checkpoint.safetensors").read_bytes() == b"an earlier run"


def test_a_checkpoint_of_another_version_is_refused(train, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    about = {"saywhy": json.dumps({"format": 99, "saywhy": "9.0.0"})}
    save_file({}, tmp_path / "run" / "checkpoint.safetensors", metadata=about)
    complaint = train("--resume").complaint
    assert "written by saywhy 9.0.0 in format 99" in complaint
    assert "resume with that version" in complaint


@pytest.fixture
def other_model(model: Path, tmp_path: Path):
    """A copy of the model whose config.json says something else."""

    def change(**changes: Any) -> Path:
        folder = Path(shutil.copytree(model, tmp_path / "other", dirs_exist_ok=True))
        config = json.loads((model / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | changes))
        return folder

    return change


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"format": 99, "saywhy": "9.0.0"}, "written by saywhy 9.0.0 in format 99"),
        ({"decoding": {"beam": 2, "mood": "happy"}}, "unknown here"),
        ({"captioner": {"name": "mind-reader", "settings": {}}}, "unknown captioner 'mind-reader'"),
        ({"preprocessing": {"size": 64, "glasses": True}}, "not a configuration saywhy"),
    ],
)
def test_a_model_of_another_version_is_refused(
    run, other_model, photos: list[Path], changes: dict[str, Any], said: str
) -> None:
    assert said in run("caption", photos[0], "--model", other_model(**changes)).complaint


def test_a_model_whose_weights_are_a_pickle_is_refused_and_not_run(
    run, other_model, photos: list[Path], tmp_path: Path
) -> None:
    folder, ran = other_model(), tmp_path / "ran"
    (folder / "model.safetensors").write_bytes(pickle.dumps(RunsWhenOpened(ran)))
    assert "not readable as safetensors" in run("caption", photos[0], "--model", folder).complaint
    assert not ran.exists()


def test_verbose_shows_where_an_error_came_from_wherever_it_stands(run, tmp_path: Path) -> None:
    for arguments in (["-v", "data", "check", tmp_path / "gone"], ["data", "check", tmp_path / "gone", "--verbose"]):
        result = run(*arguments)
        assert result.code == 2
        assert "Traceback" in result.err
        assert result.err.splitlines()[-1].startswith("saywhy: ")
