"""`saywhy caption --in` and `saywhy explain --in`: rows of many images, and one line for what goes wrong."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny
from bulk_inputs import png, rows_of, write_tar
from saywhy.bulk.caption_task import CaptionTask
from saywhy.bulk.explain_task import ExplainTask

PAGE = Path(__file__).parents[2] / "docs" / "many-images.md"


@pytest.fixture
def folder(photos: list[Path]) -> Path:
    return photos[0].parent


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl", "rows"])
def test_images_of_a_folder_become_rows(run, model: Path, folder: Path, tmp_path: Path, name: str) -> None:
    (folder / "2.png").write_text("not an image")
    result = run("caption", "--in", folder, "--out", tmp_path / name, "--model", model)
    assert (result.code, result.err) == (0, "")
    assert result.out == f"{tmp_path / name}: 3 images, 3 of them in this run, 1 of these with an error\n"
    rows = rows_of(tmp_path / name)
    assert [row["image"] for row in rows] == [str(folder / f"{n}.png") for n in range(3)]
    assert [row["caption"] is None for row in rows] == [False, False, True]
    assert "not an image" in rows[2]["error"]
    again = run("caption", "--in", folder, "--out", tmp_path / name, "--model", model)
    assert (again.code, again.out) == (0, "")
    assert again.err == f"saywhy: {tmp_path / name}: is complete already; nothing was left to do\n"


def test_rows_hold_what_caption_prints(run, model: Path, folder: Path, tmp_path: Path) -> None:
    printed = [json.loads(line) for line in run("caption", folder, "--model", model, "--json").out.splitlines()]
    run("caption", "--in", folder, "--out", tmp_path / "out.jsonl", "--model", model, "--batch-size", 1)
    for row, line in zip(rows_of(tmp_path / "out.jsonl"), printed, strict=True):
        assert (row["image"], row["caption"]) == (line["image"], line["caption"])
        assert row["words"] == [word["word"] for word in line["words"]]
        assert row["word_logprobs"] == pytest.approx([word["logprob"] for word in line["words"]], abs=1e-5)
        assert row["score"] == pytest.approx(line["score"], abs=1e-5)


@pytest.mark.parametrize("name", ["why", "why.jsonl"])
def test_explanations_of_a_folder(run, model: Path, folder: Path, tmp_path: Path, name: str) -> None:
    result = run("explain", "--in", folder, "--out", tmp_path / name, "--model", model, "--method", "attention")
    assert (result.code, result.err) == (0, "")
    rows = rows_of(tmp_path / ("why/explanations.jsonl" if name == "why" else name))
    assert [row["image"] for row in rows] == [str(folder / f"{n}.png") for n in range(3)]
    if name == "why":
        assert all((tmp_path / "why" / row["folder"] / "report.html").is_file() for row in rows)
    else:
        assert all(row["explanation"]["caption"] == row["caption"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((), "no images: give files or folders, or many with --in"),
        (("--in", "x"), "--in needs --out"),
        (("a.jpg", "--in", "x", "--out", "y.jsonl"), "images are given twice"),
        (("--in", "x", "--out", "y.jsonl", "--engine", "rya"), "unknown engine 'rya': did you mean \"ray\"?"),
        (("a.jpg", "--engine", "ray"), "add --in"),
        (("a.jpg", "--part-size", "3"), "add --in"),
        (("--in", "x", "--out", "y.jsonl", "--json"), "--in writes rows to --out"),
        (("--in", "gone", "--out", "y.jsonl"), "gone: no such file or folder"),
        (("--in", "x", "--out", "y.csv"), "unknown kind of output '.csv'"),
        (("--in", "x", "--out", ""), "--out is empty: give a value"),
        (("--in", "x", "--out="), "--out is empty: give a value"),
        (("--in", "x", "--out", "y.jsonl", "--workers", "100000"), "'--workers'"),
        (("--in", "x", "--out", "y.jsonl", "--batch-size", "99999999999999999999"), "'--batch-size'"),
    ],
)
def test_options_that_do_not_fit_together_are_one_line(run, no_model, arguments, line, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert line in run("caption", *arguments).error
    assert not list(tmp_path.iterdir())


def test_parquet_without_pyarrow_is_one_line(run, no_model, folder: Path, tmp_path, monkeypatch) -> None:
    for module in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    error = run("caption", "--in", folder, "--out", tmp_path / "out.parquet").error
    assert error == 'saywhy: Parquet files need pyarrow: pip install "saywhy[parquet]"'


def test_a_parquet_file_without_images_is_one_line(run, model: Path, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
    from pyarrow import parquet

    parquet.write_table(arrow.table({"text": ["a"]}), tmp_path / "a.parquet")
    result = run("caption", "--in", tmp_path / "a.parquet", "--out", tmp_path / "out.jsonl", "--model", model)
    first, second = result.err.splitlines()
    assert (result.code, result.out) == (2, "")
    assert first.startswith(f"saywhy: {tmp_path}/a.parquet: no column of images; name one with --column")
    assert second.endswith("not complete: 1 of the inputs could not be read (named above)")


def test_a_truncated_shard_is_named_and_the_others_are_done(run, model: Path, tmp_path: Path) -> None:
    for shard in range(2):
        write_tar(tmp_path / f"{shard}.tar", [(f"{n}.png", png(n)) for n in range(3)])
    (tmp_path / "0.tar").write_bytes((tmp_path / "0.tar").read_bytes()[:20_000])
    result = run("caption", "--in", f"{tmp_path}/*.tar", "--out", tmp_path / "out.jsonl", "--model", model)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[0].startswith(f"saywhy: {tmp_path}/0.tar: truncated tar file")
    (part,) = (tmp_path / "out.jsonl.parts").glob("part-*")
    assert len(rows_of(part)) == 3


def test_another_model_is_refused_in_one_line(run, model: Path, model_copy: Path, folder: Path, tmp_path) -> None:
    run("caption", "--in", folder, "--out", tmp_path / "out.jsonl", "--model", model)
    before = (tmp_path / "out.jsonl").read_text()
    config = json.loads((model_copy / "config.json").read_text())
    (model_copy / "config.json").write_text(json.dumps({**config, "name": "other"}))
    error = run("caption", "--in", folder, "--out", tmp_path / "out.jsonl", "--model", model_copy).error
    assert "begun with another model: name = tiny, not other; choose another --out, or delete" in error
    assert (tmp_path / "out.jsonl").read_text() == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_a_full_disk_is_one_line_and_finished_parts_stay(run, model: Path, tmp_path, small_disk: Path, name) -> None:
    images = tmp_path / "images"
    images.mkdir()
    tiny.image_files(images, 40)
    command = ("caption", "--in", images, "--out", small_disk / name, "--model", model, "--part-size", 2)
    error = run(*command).error
    assert re.match(rf"saywhy: {small_disk}/{name}.parts/part-\S+: No space left on device", error)
    parts = sorted((small_disk / f"{name}.parts").glob("part-*"))
    assert len(parts) > 3
    assert [row["image"] for part in parts for row in rows_of(part)] == [
        str(images / f"{n}.png") for n in sorted(range(40), key=str)
    ][: 2 * len(parts)]
    assert not list(small_disk.rglob(".*.part"))
    subprocess.run(["mount", "-o", "remount,size=1m", str(small_disk)], check=True)
    assert run(*command).code == 0
    assert len(rows_of(small_disk / name)) == 40


def test_the_page_describes_every_column() -> None:
    rows = {line.split("|")[1].strip(" `") for line in PAGE.read_text().splitlines() if line.startswith("| `")}
    columns = {
        column.name for task in (CaptionTask(), ExplainTask(), ExplainTask(folder=Path())) for column in task.columns
    }
    assert columns <= rows, columns - rows
