"""Runs over many images: every image has exactly one row, whatever the input, and a run that stopped goes on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import saywhy
import tiny
from bulk_inputs import png, rows_of, write_tar
from saywhy.bulk.caption_task import CaptionTask
from saywhy.bulk.explain_task import ExplainTask
from saywhy.bulk.job import run_here
from saywhy.bulk.output import Output
from saywhy.bulk.parts import Part, Plan, parts_of
from saywhy.bulk.shards import ImageFiles
from saywhy.bulk.tasks import ModelChoice
from saywhy.errors import UserError
from saywhy.explain import Explanation
from saywhy.language_models import SavedLanguageModel
from saywhy.language_models import build as build_language_model

arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_rows_are_the_captions_of_the_model_in_order(caption, model, photos, tmp_path, workers, batch_size):
    caption(photos, tmp_path / "out.jsonl", workers=workers, batch_size=batch_size)
    rows = rows_of(tmp_path / "out.jsonl")
    images = sorted(str(path) for path in photos.rglob("*.png"))
    assert [row["image"] for row in rows] == images
    readable = [path for path in images if not path.endswith("3.png")]
    expected = {one.source: one for one in saywhy.load(model, "cpu").captions(readable)}
    for row in rows:
        if row["image"] not in expected:
            assert row["caption"] is None
            assert row["error"] == f"{row['image']}: not an image in a known format; save it as JPEG or PNG"
            continue
        one = expected[row["image"]]
        assert (row["caption"], row["words"], row["error"]) == (one.text, list(one.words), None)
        assert row["logprob"] == pytest.approx(sum(one.logprobs), abs=1e-4)
        assert row["score"] == pytest.approx(one.score, abs=1e-4)
    assert len({row["caption"] for row in rows}) > 5, "the captioner ignores the image"


def test_parquet_json_lines_and_a_folder_have_the_same_rows(caption, photos, tmp_path):
    for name in ("out.parquet", "out.jsonl", "folder"):
        caption(photos, tmp_path / name)
    expected = rows_of(tmp_path / "out.jsonl")
    assert rows_of(tmp_path / "out.parquet") == expected
    assert rows_of(tmp_path / "folder") == expected
    assert len(list((tmp_path / "folder").glob("part-*.parquet"))) == 3
    assert sorted(path.name for path in (tmp_path / "out.jsonl.parts").iterdir()) == ["_lock", "_run.json"]


def test_the_image_is_the_same_from_files_tar_shards_and_parquet(caption, tmp_path):
    images = [png(number, (300, 200)) for number in range(6)]
    (tmp_path / "files").mkdir()
    for number, image in enumerate(images):
        (tmp_path / "files" / f"{number}.png").write_bytes(image)
    write_tar(tmp_path / "a.tar", [(f"{n}.png", image) for n, image in enumerate(images[:4])])
    write_tar(tmp_path / "b.tar", [(f"{n}.png", image) for n, image in enumerate(images[4:])])
    column = arrow.array([{"bytes": image, "path": None} for image in images])
    parquet.write_table(arrow.table({"image": column}), tmp_path / "c.parquet", row_group_size=2)
    inputs = {"files": tmp_path / "files", "tar": f"{tmp_path}/*.tar", "parquet": tmp_path / "c.parquet"}
    for name, value in inputs.items():
        caption(value, tmp_path / f"{name}.jsonl", workers=1)
    rows = {name: rows_of(tmp_path / f"{name}.jsonl") for name in inputs}
    keys = ("caption", "logprob")
    assert [[row[key] for key in keys] for row in rows["tar"]] == [[row[key] for key in keys] for row in rows["files"]]
    assert [[row[key] for key in keys] for row in rows["parquet"]] == [
        [row[key] for key in keys] for row in rows["files"]
    ]
    names = [(Path(row["shard"]).name, row["image"], row["key"]) for row in rows["tar"]]
    assert names == [("a.tar", f"{n}.png", str(n)) for n in range(4)] + [("b.tar", f"{n}.png", str(n)) for n in (0, 1)]
    assert [(row["image"], row["key"]) for row in rows["parquet"]] == [(str(n), None) for n in range(6)]


class Stopped(Exception):
    """What a test raises in place of a crash."""


def stop_after(images: int):
    """Raises when this many rows exist."""

    def progress(done: int) -> None:
        if done >= images:
            raise Stopped

    return progress


@pytest.mark.parametrize("name", ["out.parquet", "out.jsonl", "folder"])
def test_a_stopped_run_goes_on_where_it_stopped(caption, photos, tmp_path, name):
    caption(photos, tmp_path / "whole" / name)
    with pytest.raises(Stopped):
        caption(photos, tmp_path / name, progress=stop_after(4))
    begun = tmp_path / ("folder" if name == "folder" else f"{name}.parts")
    (begun / ".part-000000-killed.part").write_text("half a pa")
    (part,) = begun.glob("part-*")
    before = (part.read_bytes(), part.stat().st_mtime_ns)
    if name != "folder":
        assert not (tmp_path / name).exists()
    with pytest.raises(Stopped):
        caption(photos, tmp_path / name, progress=stop_after(8))
    assert (part.read_bytes(), part.stat().st_mtime_ns) == before, "a finished part is not done again"
    assert caption(photos, tmp_path / name).written == 3
    assert rows_of(tmp_path / name) == rows_of(tmp_path / "whole" / name)
    assert not list(tmp_path.rglob(".*.part"))


def test_a_finished_run_does_nothing(caption, photos, tmp_path):
    caption(photos, tmp_path / "out.jsonl")
    before = (tmp_path / "out.jsonl").stat().st_mtime_ns
    assert caption(photos, tmp_path / "out.jsonl").was_finished
    assert (tmp_path / "out.jsonl").stat().st_mtime_ns == before


def test_a_run_killed_while_it_joins_its_parts_joins_them_again(caption, photos, tmp_path, monkeypatch):
    caption(photos, tmp_path / "whole.jsonl")
    write_run = Output._write_run

    def killed(self: Output, settings: dict, finished: bool) -> None:
        if finished:
            raise Stopped
        write_run(self, settings, finished)

    with monkeypatch.context() as patch:
        patch.setattr(Output, "_write_run", killed)
        with pytest.raises(Stopped):
            caption(photos, tmp_path / "out.jsonl")
    assert (tmp_path / "out.jsonl").exists()
    summary = caption(photos, tmp_path / "out.jsonl")
    assert (summary.written, summary.images) == (0, 11)
    assert rows_of(tmp_path / "out.jsonl") == rows_of(tmp_path / "whole.jsonl")


def task(model: Path, **options) -> CaptionTask:
    return CaptionTask(ModelChoice(str(model), "cpu", **options))


@pytest.mark.parametrize("finished", [True, False])
def test_another_model_other_options_and_other_inputs_are_refused(caption, model, photos, tmp_path, finished):
    out = tmp_path / "out.jsonl"
    if finished:
        caption(photos, out)
    else:
        with pytest.raises(Stopped):
            caption(photos, out, progress=stop_after(4))
    copy = Path(shutil.copytree(model, tmp_path / "model"))
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    before = {path: path.read_bytes() for path in tmp_path.glob("out*/*")}
    with pytest.raises(UserError, match="begun with another model: digest"):
        caption(photos, out, task(copy))
    with pytest.raises(UserError, match="begun with beam = 2, not 3; choose another --out, or delete"):
        caption(photos, out, task(model, decoding={"beam": 3}))
    with pytest.raises(UserError, match="begun with part size = 4, not 5"):
        caption(photos, out, part_size=5)
    with pytest.raises(UserError, match="begun with task = caption, not explain"):
        caption(photos, out, ExplainTask(ModelChoice(str(model), "cpu")))
    (photos / "new.png").write_bytes(png(99))
    with pytest.raises(UserError, match="begun with another input: image files = 11, not 12"):
        caption(photos, out)
    assert {path: path.read_bytes() for path in tmp_path.glob("out*/*")} == before


def test_rows_depend_on_the_contents_of_the_language_model(model, tmp_path):
    def train() -> None:
        words = tiny.vocabulary()
        SavedLanguageModel("lm", build_language_model("lstm", len(words), width=8, hidden=8), words).save(guide)

    guide = tmp_path / "lm"
    choice = ModelChoice(str(model), "cpu", decoding={"lm": str(guide), "guidance": 2.0})
    train()
    before = choice.settings(choice.load())
    assert choice.settings(choice.load()) == before
    train()
    assert choice.settings(choice.load()) != before


def test_another_batch_size_and_number_of_workers_may_continue(caption, photos, tmp_path):
    with pytest.raises(Stopped):
        caption(photos, tmp_path / "out.jsonl", progress=stop_after(4))
    assert caption(photos, tmp_path / "out.jsonl", batch_size=4, workers=1).images == 11


def test_a_second_run_is_refused_while_one_writes(caption, photos, tmp_path, lock_held):
    with pytest.raises(Stopped):
        caption(photos, tmp_path / "out.jsonl", progress=stop_after(4))
    lock = tmp_path / "out.jsonl.parts" / "_lock"
    with lock_held(lock), pytest.raises(UserError, match="another process is writing it"):
        caption(photos, tmp_path / "out.jsonl")
    assert caption(photos, tmp_path / "out.jsonl").images == 11


@pytest.mark.parametrize("name", ["out.jsonl", "folder"])
def test_files_that_no_run_has_made_are_never_overwritten(caption, photos, tmp_path, name):
    file = tmp_path / ("out.jsonl" if name == "out.jsonl" else "folder/notes.txt")
    file.parent.mkdir(exist_ok=True)
    file.write_text("mine")
    with pytest.raises(UserError, match="exists already, and no run"):
        caption(photos, tmp_path / name)
    assert file.read_text() == "mine"


def test_a_broken_shard_is_named_and_done_when_it_is_replaced(caption, tmp_path):
    for shard in range(3):
        write_tar(tmp_path / f"{shard}.tar", [(f"{n}.png", png(10 * shard + n)) for n in range(5)])
    whole = (tmp_path / "1.tar").read_bytes()
    (tmp_path / "1.tar").write_bytes(whole[:20_000])
    errors: list[UserError] = []
    summary = caption(f"{tmp_path}/*.tar", tmp_path / "out.jsonl", on_broken=errors.append)
    assert (summary.broken, summary.images) == (1, 10)
    assert "1.tar: truncated" in str(errors[0])
    assert not (tmp_path / "out.jsonl").exists()
    (tmp_path / "1.tar").write_bytes(whole)
    assert caption(f"{tmp_path}/*.tar", tmp_path / "out.jsonl").written == 5
    rows = rows_of(tmp_path / "out.jsonl")
    assert [(Path(row["shard"]).stem, row["image"]) for row in rows] == [
        (str(shard), f"{n}.png") for shard in range(3) for n in range(5)
    ]


def test_a_shard_that_changes_between_runs_is_refused(caption, tmp_path):
    write_tar(tmp_path / "a.tar", [(f"{n}.png", png(n)) for n in range(6)])
    with pytest.raises(Stopped):
        caption(tmp_path / "a.tar", tmp_path / "out.jsonl", progress=stop_after(4))
    write_tar(tmp_path / "a.tar", [(f"{n}.png", png(n)) for n in range(7)])
    with pytest.raises(UserError, match=r"a\.tar: has 7 images, and had 6"):
        caption(tmp_path / "a.tar", tmp_path / "out.jsonl")


def test_an_output_folder_that_vanishes_ends_the_run_with_one_line(caption, photos, tmp_path):
    def vanish(done: int) -> None:
        if done == 4:
            (tmp_path / "out.jsonl.parts").rename(tmp_path / "elsewhere")

    with pytest.raises(UserError, match=r"out\.jsonl\.parts: the output folder has vanished"):
        caption(photos, tmp_path / "out.jsonl", progress=vanish)
    assert not (tmp_path / "out.jsonl.parts").exists(), "it is not made again with a part of the rows"
    (tmp_path / "elsewhere").rename(tmp_path / "out.jsonl.parts")
    assert caption(photos, tmp_path / "out.jsonl").written == 7


def test_a_folder_of_images_that_vanishes_is_not_a_folder_of_broken_images(caption, photos, tmp_path):
    def vanish(done: int) -> None:
        if done == 4:
            photos.rename(tmp_path / "moved")

    with pytest.raises(UserError, match="this folder of images has vanished"):
        caption(photos, tmp_path / "out.jsonl", progress=vanish)
    (tmp_path / "moved").rename(photos)
    caption(photos, tmp_path / "out.jsonl")
    assert sum(row["error"] is not None for row in rows_of(tmp_path / "out.jsonl")) == 1


def test_sampling_does_not_depend_on_where_a_run_was_stopped(caption, model, photos, tmp_path):
    sampling = task(model, decoding={"method": "sample", "seed": 3})
    caption(photos, tmp_path / "whole.jsonl", sampling)
    with pytest.raises(Stopped):
        caption(photos, tmp_path / "out.jsonl", sampling, progress=stop_after(4))
    caption(photos, tmp_path / "out.jsonl", sampling, batch_size=3)
    texts = [[row["caption"] for row in rows_of(tmp_path / name)] for name in ("whole.jsonl", "out.jsonl")]
    assert texts[0] == texts[1]


def test_explanations_are_those_of_the_model_in_rows_and_in_folders(caption, model, photos, tmp_path):
    options = {"methods": ("attention", "gradient-input")}
    choice = ModelChoice(str(model), "cpu")
    caption(photos, tmp_path / "why.parquet", ExplainTask(choice, options))
    caption(photos, tmp_path / "why" / "rows.jsonl", ExplainTask(choice, options, tmp_path / "why"))
    in_rows, in_folders = rows_of(tmp_path / "why.parquet"), rows_of(tmp_path / "why" / "rows.jsonl")
    (expected,) = saywhy.load(model, "cpu").explanations([photos / "0.png"], **options)
    assert json.loads(in_rows[0]["explanation"]) == json.loads(json.dumps(expected.as_dict()))
    for row, folder_row in zip(in_rows, in_folders, strict=True):
        assert (row["image"], row["caption"], row["error"]) == tuple(
            folder_row[name] for name in ("image", "caption", "error")
        )
        if row["error"]:
            assert "3.png" in row["image"]
            continue
        saved = Explanation.load(tmp_path / "why" / folder_row["folder"])
        assert (saved.source, saved.caption) == (row["image"], row["caption"])
        folder = tmp_path / "one" / Path(row["image"]).stem
        folder.mkdir(parents=True)
        (folder / "maps.npz").write_bytes(row["maps"])
        (folder / "explanation.json").write_text(row["explanation"])
        loaded = Explanation.load(folder)
        assert (loaded.maps["attention"] == saved.maps["attention"]).all()
    assert len(list((tmp_path / "why").rglob("report.html"))) == 10


def test_a_caption_without_the_word_to_explain_is_a_row_with_the_reason(caption, model, photos, tmp_path):
    task = ExplainTask(ModelChoice(str(model), "cpu"), {"methods": ("attention",), "position": 6})
    caption(photos, tmp_path / "why.jsonl", task)
    errors = [row["error"] for row in rows_of(tmp_path / "why.jsonl")]
    assert sum("no word 6 in" in str(error) for error in errors) + errors.count(None) == 10


def test_every_image_is_in_exactly_one_part():
    for count in (0, 1, 7, 8, 9):
        parts = parts_of(2, count, 4)
        assert [index for part in parts for index in range(part.start, part.stop)] == list(range(count))
        assert [Part.parse(part.name) for part in parts] == parts
    assert Part.parse("part-1-2-3") is None


def test_a_plan_opens_no_shard_whose_parts_all_exist(tmp_path):
    shards = [ImageFiles([f"{shard}-{n}.jpg" for n in range(5)]) for shard in range(3)]
    opened = []
    for number, shard in enumerate(shards):
        shard.refs = lambda number=number, refs=shard.refs: opened.append(number) or refs()  # type: ignore[method-assign]
    plan = Plan(shards, 2, [*parts_of(0, 5, 2), *parts_of(1, 5, 2)[:1]], on_broken=lambda error: None)
    works = list(plan.remaining())
    assert opened == [1, 2]
    assert [ref.image for work in works for ref in work.refs] == [
        *(f"1-{n}.jpg" for n in range(2, 5)),
        *(f"2-{n}.jpg" for n in range(5)),
    ]
    assert sorted(plan.parts) == [part for shard in range(3) for part in parts_of(shard, 5, 2)]


def test_the_engine_of_this_process_writes_nothing_of_a_part_that_it_has_not_finished(caption, photos, tmp_path):
    def slow(job, works, worker):
        for number, written in enumerate(run_here(job, works, worker)):
            assert len(list((tmp_path / "out.jsonl.parts").glob("part-*"))) == number + 1
            yield written

    caption(photos, tmp_path / "out.jsonl", engine=slow)
