"""Model folders: saving, formats, and folders that are incomplete or malformed."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import saywhy
import tiny
from saywhy.captioners.model_folder import CONFIG, FORMAT, VOCABULARY, WEIGHTS, SavedModel, load, read_config
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import MARKERS
from saywhy.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    SavedModel("tiny", tiny.captioner(), tiny.vocabulary(), Preprocessing(tiny.SIDE)).save(folder)
    return folder


def change_config(folder: Path, **changes: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def change_setting(folder: Path, section: str, **changes: object) -> None:
    config = json.loads((folder / CONFIG).read_text())
    change_config(folder, **{section: {**config[section], **changes}})


def change_tensor(folder: Path, name: str, tensor: torch.Tensor) -> None:
    save_file({**load_file(folder / WEIGHTS), name: tensor}, folder / WEIGHTS)


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        saywhy.load(folder)
    line = str(caught.value)
    assert "\n" not in line
    assert str(folder) in line or "model tiny: config.json" in line
    return line


def test_complete_folder_loads_and_has_three_files(folder):
    assert load(folder).name == "tiny"
    assert sorted(path.name for path in folder.iterdir()) == sorted([CONFIG, VOCABULARY, WEIGHTS])


def test_missing_folder_and_folder_without_model_are_refused(tmp_path):
    assert "no model at" in refusal(tmp_path / "missing")
    assert "has no config.json" in refusal(tmp_path)


def test_missing_files_are_named(folder):
    (folder / WEIGHTS).unlink()
    assert "model.safetensors is missing" in refusal(folder)
    (folder / VOCABULARY).unlink()
    assert "vocabulary.json" in refusal(folder)


@pytest.mark.parametrize("version", [0, 3, "1", 1.0, True, None, [1]], ids=str)
def test_other_formats_are_refused_with_both_versions(folder, version):
    change_config(folder, format=version, saywhy="9.9")
    line = refusal(folder)
    assert "saywhy 9.9" in line
    assert "reads formats 1 to 2" in line


def test_folder_of_version_0_1_loads_under_the_new_names(tmp_path):
    folder = tmp_path / "model"
    captioner = tiny.captioner("mh-fc", no_image="learned", image_dropout=0.25)
    SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE)).save(folder)
    config = json.loads((folder / CONFIG).read_text())
    settings = config["captioner"]["settings"]
    for old, new in (("no_picture", "no_image"), ("picture_dropout", "image_dropout")):
        settings[old] = settings.pop(new)
    config |= {"format": 1, "saywhy": "0.1.0", "decoding": {"beam": 2, "length": 0.5, "attend": "expected"}}
    del config["regions"]  # early versions did not write it
    (folder / CONFIG).write_text(json.dumps(config))
    tensors = load_file(folder / WEIGHTS)
    tensors["no_picture"] = torch.ones_like(tensors.pop("no_image"))
    save_file(tensors, folder / WEIGHTS)

    model = load(folder)
    assert model.captioner.settings == captioner.settings
    assert model.captioner.no_image.eq(1).all()
    assert model.decoding == {"beam": 2, "length_penalty": 0.5, "attention": "expected"}
    assert saywhy.load(folder).decoding.length_penalty == 0.5
    model.save(folder)
    assert read_config(folder)["format"] == FORMAT == 2


def test_coca_of_version_0_1_loads_under_the_new_tensor_name(tmp_path):
    captioner = tiny.captioner("coca")
    SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE)).save(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors["contrastive.of_picture.weight"] = tensors.pop("contrastive.of_image.weight")
    save_file(tensors, tmp_path / WEIGHTS)
    assert torch.equal(load(tmp_path).captioner.contrastive.of_image.weight, captioner.contrastive.of_image.weight)


def test_baseline_of_version_0_1_that_is_nan_loads_as_unset(tmp_path):
    captioner = tiny.captioner("hard-attention")
    captioner.baseline.fill_(torch.nan)
    SavedModel("tiny", captioner, tiny.vocabulary(), Preprocessing(tiny.SIDE)).save(tmp_path)
    assert load(tmp_path).captioner.baseline == 0


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1}', "\x00", "[" * 100_000, '{"a":' * 100_000])
def test_file_that_is_no_configuration_is_refused(folder, text):
    (folder / CONFIG).write_text(text)
    refusal(folder)


def test_configuration_in_another_encoding_is_refused(folder):
    (folder / CONFIG).write_bytes(b'{"name": "\xff"}')
    assert "not UTF-8" in refusal(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"preprocessing": {"side": 64}},
        {"preprocessing": None},
        {"captioner": {"name": "soft-attention"}},
        {"captioner": {"name": "soft-attention", "settings": 3}},
        {"captioner": {"name": 3, "settings": {}}},
        {"captioner": "soft-attention"},
        {"encoder": None},
        {"encoder": 3},
        {"encoder": {}},
        {"decoding": 3},
        {"regions": 3},
    ],
    ids=str,
)
def test_configuration_with_malformed_sections_is_refused(folder, changes):
    change_config(folder, **changes)
    assert "not a configuration" in refusal(folder)


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("encoder", {"name": 3}),
        ("encoder", {"name": "timm:nothing_like_it"}),
        ("encoder", {"sise": 3}),
        *(("encoder", {"size": size}) for size in (4096, 10**9, "64", -1)),
        *(
            ("encoder", {"convention": {"mean": [0, 0, 0], "std": std}})
            for std in ("1", ["1", "1", "1"], [1, 1, 0], [1, 1, 1e-300], [1, 1, None], 10**400)
        ),
        ("preprocessing", {"size": 10**9}),
        ("preprocessing", {"size": "64"}),
        ("decoding", {"max_words": 10**9}),
        ("decoding", {"beam": "3"}),
        ("captioner", {"name": "loud-attention"}),
        *(("captioner", {"settings": {"hidden": hidden}}) for hidden in ("many", 16.5, True, 10**9, 10**30, 0, None)),
        ("captioner", {"settings": {"hiden": 3}}),
        ("captioner", {"settings": {"score": 3}}),
        ("captioner", {"settings": {"no_image": ["zero"]}}),
    ],
    ids=str,
)
def test_invalid_settings_are_refused_in_one_line(folder, section, changes):
    change_setting(folder, section, **changes)
    refusal(folder)


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("captioner", {"settings": {"hidden": 10**5, "embedding": 10**5}}),
        ("encoder", {"name": f"features:{10**10}"}),
    ],
)
def test_sizes_that_do_not_fit_the_weights_allocate_no_memory(folder, section, changes):
    change_setting(folder, section, **changes)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refusal(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kilobytes


@pytest.mark.parametrize(
    "words", [[*MARKERS, 7], [*MARKERS, None], [*MARKERS, ["a"]], list(MARKERS[:2]), {}, 3], ids=str
)
def test_malformed_vocabulary_is_refused(folder, words):
    (folder / VOCABULARY).write_text(json.dumps(words))
    assert VOCABULARY in refusal(folder)


def test_weights_of_other_sizes_do_not_fit(folder):
    settings = json.loads((folder / CONFIG).read_text())["captioner"]["settings"]
    change_setting(folder, "captioner", settings={**settings, "hidden": settings["hidden"] + 1})
    assert "has shape (16, 256) and should have (17, 256)" in refusal(folder)


def test_vocabulary_of_another_size_does_not_fit(folder):
    tiny.vocabulary(tiny.WORDS + 1).save(folder / VOCABULARY)
    assert "E.weight" in refusal(folder)


def test_missing_and_additional_tensors_do_not_fit(folder):
    tensors = load_file(folder / WEIGHTS)
    save_file({name: tensor for name, tensor in tensors.items() if name != "gate.bias"}, folder / WEIGHTS)
    assert "gate.bias is missing" in refusal(folder)
    save_file({**tensors, "spare": torch.zeros(1)}, folder / WEIGHTS)
    assert "no tensor spare" in refusal(folder)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_that_are_not_finite_are_refused(folder, value):
    bias = load_file(folder / WEIGHTS)["lstm.bias_ih"]
    bias[3] = value
    change_tensor(folder, "lstm.bias_ih", bias)
    line = refusal(folder)
    assert WEIGHTS in line
    assert "lstm.bias_ih contains NaN or infinite values" in line


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_integer_weights_are_refused(folder, dtype):
    bias = load_file(folder / WEIGHTS)["gate.bias"]
    change_tensor(folder, "gate.bias", bias.to(dtype))
    assert f"gate.bias has type {dtype} and should have torch.float32" in refusal(folder)


def test_untied_weights_are_not_taken_for_tied_ones(folder):
    tensors = load_file(folder / WEIGHTS)
    del tensors["L_o.weight"]
    save_file(tensors, folder / WEIGHTS)
    assert "L_o.weight" in refusal(folder)


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_truncated_weights_are_refused(folder, size):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:size])
    assert "not readable as safetensors" in refusal(folder)


def test_pickle_is_not_read_as_weights(folder, tmp_path):
    class CreatesFile:
        def __reduce__(self):
            return Path.touch, (tmp_path / "created",)

    torch.save({"E.weight": CreatesFile()}, folder / WEIGHTS)
    assert "not readable as safetensors" in refusal(folder)
    assert not (tmp_path / "created").exists()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SafetensorError("No space left on device (os error 28)")])
def test_failed_saving_leaves_the_old_model(folder, monkeypatch, error):
    before = (folder / WEIGHTS).read_bytes()

    def interrupted(tensors: Any, path: Path, **options: Any) -> None:
        Path(path).write_bytes(b"half")
        raise error

    monkeypatch.setattr("saywhy.captioners.model_folder.save_file", interrupted)
    other = SavedModel("other", tiny.captioner(seed=5), tiny.vocabulary(), Preprocessing(tiny.SIDE))
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else UserError
    with pytest.raises(expected) as caught:
        other.save(folder)
    if expected is UserError:
        assert str(folder / WEIGHTS) in str(caught.value)
    assert (folder / WEIGHTS).read_bytes() == before
    assert sorted(path.name for path in folder.iterdir()) == sorted([CONFIG, VOCABULARY, WEIGHTS])


@pytest.mark.slow
def test_shipped_model_captions_without_torchvision_and_timm():
    image = Path(__file__).parents[2] / "examples" / "images" / "chelsea.jpg"
    code = (
        "import sys; sys.modules['torchvision'] = sys.modules['timm'] = None\n"
        f"sys.argv = ['saywhy', 'caption', {str(image)!r}]\n"
        "from saywhy.cli import main; main()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(f"{image}: a ")
