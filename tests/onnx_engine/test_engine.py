"""The engine captions without torch, and says in one line what it cannot do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
from PIL import Image

import saywhy
import tiny
from saywhy.errors import UnreadableImage, UserError
from saywhy.inference.model import Model
from saywhy.onnx_engine import export_cache
from saywhy.onnx_engine.engine import OnnxModel, load_onnx
from saywhy.onnx_engine.export_cache import cache_folder, load_exported
from saywhy.onnx_engine.manifest import GRAPHS, MANIFEST, STEP

CODE = """
import sys, saywhy
from saywhy.cli import main
try:
    main()
finally:
    assert "torch" not in sys.modules, "torch is imported"
"""


@pytest.fixture
def copy(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def test_the_command_imports_no_torch(torch_model: Model, exported: Path, tmp_path: Path) -> None:
    images = tiny.image_files(tmp_path, 2)
    options = ["--engine", "onnx", "--model", str(exported), "--json", "--figures", str(tmp_path / "figures")]
    done = subprocess.run(
        [sys.executable, "-c", CODE, "caption", *map(str, images), *options],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(saywhy.__file__).parents[1])},
    )
    assert (done.returncode, done.stderr) == (0, "")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    expected = [caption.as_dict() for caption in torch_model.captions(images)]
    assert [row["caption"] for row in rows] == [row["caption"] for row in expected]
    assert [list(row) for row in rows] == [list(row) for row in expected]
    assert len(list((tmp_path / "figures").iterdir())) == 2


def test_load_onnx_is_offered(exported: Path) -> None:
    assert repr(saywhy.load_onnx(exported)) == "<OnnxModel tiny: ada-lstm over timm:test_efficientnet, 24 words, fp32>"


def test_one_image_where_several_are_expected_is_one_line(torch_model: Model, exported: Path, tmp_path: Path) -> None:
    (photo,) = tiny.image_files(tmp_path, 1)
    images = (str(photo), photo, Image.open(photo))
    for model, image in product((torch_model, load_onnx(exported)), images):
        with pytest.raises(UserError, match="captions takes several images: give a list, or use caption for one image"):
            next(model.captions(image))


def test_unreadable_images_are_reported_and_left_out(exported: Path, tmp_path: Path) -> None:
    images = [*tiny.image_files(tmp_path, 2), tmp_path / "none.jpg"]
    errors: list[UserError] = []
    assert len(list(load_onnx(exported).captions(images, on_unreadable=errors.append))) == 2
    assert ["none.jpg" in str(error) for error in errors] == [True]
    with pytest.raises(UnreadableImage):
        list(load_onnx(exported).captions(images))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "sample"}, "no decoding method 'sample'"),
        ({"guidance": 1.5}, "no guidance"),
        ({"attention": "argmax"}, "no attention mode 'argmax'"),
        ({"style": "haiku"}, "unknown style"),
        ({"beem": 3}, 'did you mean "beam"'),
    ],
)
def test_what_the_engine_lacks_is_one_line(changes: dict, message: str, exported: Path) -> None:
    with pytest.raises(UserError, match=message):
        load_onnx(exported).captions([], **changes)


@pytest.mark.parametrize("name", [*GRAPHS, "vocabulary.json"])
def test_a_truncated_file_is_one_line(name: str, copy: Path) -> None:
    contents = (copy / name).read_bytes()
    (copy / name).write_bytes(contents[: len(contents) // 2])
    with pytest.raises(UserError, match=f"{name}: damaged"):
        load_onnx(copy)
    (copy / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        load_onnx(copy)


def test_a_graph_of_another_model_is_one_line(copy: Path) -> None:
    shutil.copyfile(copy / GRAPHS[1], copy / STEP)
    with pytest.raises(UserError, match=f"{STEP}: damaged, or of another model"):
        load_onnx(copy)


@pytest.mark.parametrize(
    "change",
    [{"maps": ["a", "b", "c"]}, {"preprocessing": {"size": 96}}, {"state": [{"name": "other", "constant": True}]}],
)
def test_graphs_that_do_not_fit_the_manifest_are_one_line(copy: Path, change: dict) -> None:
    manifest = json.loads((copy / MANIFEST).read_text()) | change
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="do not fit"):
        load_onnx(copy)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"format": 99}, "format 99"), ({"grid": None}, "not a manifest"), ({"decoding": {"beam": "x"}}, "beam must be")],
)
def test_a_manifest_of_another_kind_is_one_line(change: dict, message: str, copy: Path) -> None:
    manifest = json.loads((copy / MANIFEST).read_text()) | change
    (copy / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(UserError, match=message):
        load_onnx(copy)


def test_a_folder_of_another_kind_is_one_line(torch_model: Model, tmp_path: Path) -> None:
    assert torch_model.folder is not None
    for folder, message in ((tmp_path, "not a saywhy model"), (torch_model.folder, "a model of torch")):
        with pytest.raises(UserError, match=message):
            load_onnx(folder)
    with pytest.raises(UserError, match="no model at"):
        load_onnx(tmp_path / "none")


def test_a_model_of_torch_is_exported_once(torch_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAYWHY_CACHE", str(tmp_path))
    messages: list[str] = []
    first = load_exported(torch_model.folder, messages.append)
    assert len(messages) == 1
    monkeypatch.setattr(export_cache, "_export", None)  # a second export would fail
    assert load_exported(torch_model.folder, messages.append).folder == first.folder
    assert first.folder.parent == cache_folder() == tmp_path / "onnx"


def test_a_damaged_cached_export_is_made_again(
    torch_model: Model, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAYWHY_CACHE", str(tmp_path))

    def export(_: Path, cached: Path) -> None:
        shutil.copytree(exported, cached, dirs_exist_ok=True)

    monkeypatch.setattr(export_cache, "_export", export)
    folder = load_exported(torch_model.folder).folder
    (folder / STEP).write_bytes(b"")
    assert isinstance(load_exported(torch_model.folder), OnnxModel)


EXPORT_ONCE = """
import shutil, sys, time
from saywhy.onnx_engine import export_cache

def export(_, cached):
    print("exported")
    time.sleep(1)
    shutil.copytree(sys.argv[2], cached)

export_cache._export = export
export_cache.load_exported(sys.argv[1])
"""


def test_processes_that_start_together_export_a_model_once(
    torch_model: Model, exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAYWHY_CACHE", str(tmp_path))
    command = [sys.executable, "-c", EXPORT_ONCE, str(torch_model.folder), str(exported)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "".join(outputs) == "exported\n"


def test_missing_onnxruntime_is_one_line(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UserError, match=r'pip install "saywhy\[onnx\]"'):
        load_onnx(exported)
