"""What is kept is kept whole, is found again, and only where nothing it depends on has changed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch

import audit_data
from saywhy.audits.context import AuditContext, digest
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.result_cache import ResultCache
from saywhy.data.object_words import ObjectWords
from saywhy.decoding import Decoding
from saywhy.errors import UserError
from saywhy.explain.composites import composite

KEY = {"model": "abc", "patches": 20}
ARRAYS = {"maps": np.arange(600.0).reshape(2, 300), "map fine": np.ones((3, 3)), "words": np.array(["a", "naïve"])}


def file_of(kept: ResultCache) -> Path:
    (found,) = kept.folder.glob("*.npz")
    return found


def test_what_is_kept_is_found_by_its_name_and_by_no_other(tmp_path):
    kept = ResultCache(tmp_path, "stage", KEY)
    assert not kept.has("dog.jpg")
    kept.save("dog.jpg", ARRAYS)
    again = ResultCache(tmp_path, "stage", dict(reversed(KEY.items())))
    assert again.has("dog.jpg")
    assert not again.has("cat.jpg")
    found = again.load("dog.jpg")
    assert found.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        np.testing.assert_array_equal(found[name], values)


def test_arrays_that_are_not_wanted_are_not_read(tmp_path):
    kept = ResultCache(tmp_path, "stage", KEY)
    kept.save("dog.jpg", ARRAYS)
    assert kept.load("dog.jpg", but="map ").keys() == {"maps", "words"}


@pytest.mark.parametrize("other", [{**KEY, "model": "abd"}, {**KEY, "more": None}, {"model": "abc"}])
def test_another_key_finds_nothing(tmp_path, other):
    ResultCache(tmp_path, "stage", KEY).save("dog.jpg", ARRAYS)
    assert not ResultCache(tmp_path, "stage", other).has("dog.jpg")
    assert not ResultCache(tmp_path, "other stage", KEY).has("dog.jpg")
    assert ResultCache(tmp_path, "stage", KEY).has("dog.jpg")


def test_the_folder_says_what_its_numbers_depend_on(tmp_path):
    kept = ResultCache(tmp_path, "stage", KEY)
    assert json.loads((kept.folder / "about.json").read_text()) == {"stage": "stage", **KEY}


def test_a_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    kept = ResultCache(tmp_path, "stage", KEY)

    def interrupted(file, **arrays):
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept.save("dog.jpg", ARRAYS)
    assert not kept.has("dog.jpg")
    assert [path.name for path in kept.folder.iterdir()] == ["about.json"]


def test_what_was_there_stays_where_writing_it_anew_fails(tmp_path, monkeypatch):
    kept = ResultCache(tmp_path, "stage", KEY)
    kept.save("dog.jpg", ARRAYS)

    def full(file, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(UserError, match="No space left on device"):
        kept.save("dog.jpg", {})
    assert kept.load("dog.jpg").keys() == ARRAYS.keys()


@pytest.mark.parametrize("left", [0, 1, 0.5, 0.99])
def test_a_file_cut_short_is_as_good_as_none(tmp_path, left):
    kept = ResultCache(tmp_path, "stage", KEY)
    kept.save("dog.jpg", ARRAYS)
    path = file_of(kept)
    whole = path.read_bytes()
    path.write_bytes(whole[: left if isinstance(left, int) else int(left * len(whole))])
    assert not kept.has("dog.jpg")
    with pytest.raises(UserError, match=r"npz: was damaged .*run the audit again"):
        kept.load("dog.jpg")
    kept.save("dog.jpg", ARRAYS)
    assert kept.has("dog.jpg")


def test_a_file_that_holds_nothing_is_as_good_as_none(tmp_path):
    kept = ResultCache(tmp_path, "stage", KEY)
    kept.save("dog.jpg", {})
    assert file_of(kept).exists()
    assert not kept.has("dog.jpg")


def test_a_file_with_other_bytes_in_it_is_told_in_one_line(tmp_path):
    kept = ResultCache(tmp_path, "stage", KEY)
    kept.save("dog.jpg", ARRAYS)
    path = file_of(kept)
    whole = bytearray(path.read_bytes())
    whole[1000] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(UserError, match=r"npz: was damaged .*run the audit again") as told:
        kept.load("dog.jpg")
    assert "\n" not in str(told.value)
    assert not kept.has("dog.jpg"), "the next audit makes it again"


def test_a_folder_that_cannot_be_used_is_told_in_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be used .*another --cache"):
        ResultCache(tmp_path / "file", "stage", KEY)


def changed_weight(bench: AuditContext) -> AuditContext:
    altered = deepcopy(bench.model)
    with torch.no_grad():
        next(altered.captioner.parameters()).flatten()[0] += 1e-6
    return dataclasses.replace(bench, model=altered)


def changed_decoding(bench: AuditContext) -> AuditContext:
    altered = deepcopy(bench.model)
    altered.decoding = Decoding(beam=7)
    return dataclasses.replace(bench, model=altered)


def changed_objects(bench: AuditContext) -> AuditContext:
    table = bench.cache.parent / "objects.txt"
    table.write_text("[animals]\ndog\n")
    return dataclasses.replace(bench, objects=ObjectWords.read(table))


def changed_fit(bench: AuditContext) -> AuditContext:
    altered = deepcopy(bench.model)
    altered.preprocessing = dataclasses.replace(altered.preprocessing, fit="squash")
    return dataclasses.replace(bench, model=altered)


def changed_rules(bench: AuditContext) -> AuditContext:
    return dataclasses.replace(bench, rules=composite("paper"))


def changed_convention(bench: AuditContext) -> AuditContext:
    """The encoder subtracts another mean from its pixels, as `config.json` may say."""
    altered = deepcopy(bench.model)
    encoder = altered.captioner.encoder
    encoder.convention = dataclasses.replace(encoder.convention, mean=(0.0, 0.0, 0.0))
    encoder.settings = dataclasses.replace(encoder.settings, convention=encoder.convention)
    encoder.mean.zero_()
    return dataclasses.replace(bench, model=altered)


@pytest.mark.parametrize(
    "change", [changed_weight, changed_decoding, changed_objects, changed_fit, changed_rules, changed_convention]
)
def test_a_model_that_says_or_explains_otherwise_finds_nothing(bench, change):
    bench.kept("cases").save("dog.jpg", ARRAYS)
    assert not change(bench).kept("cases").has("dog.jpg")
    assert dataclasses.replace(bench, model=deepcopy(bench.model), batch=9).kept("cases").has("dog.jpg")


def test_the_digest_of_a_model_is_that_of_its_copy_and_of_what_is_loaded_from_disk(tmp_path):
    from saywhy.inference.model import load

    audit_data.saved().save(tmp_path / "model")
    assert digest(load(tmp_path / "model", "cpu")) == digest(audit_data.model()) != digest(audit_data.model(seed=4))


def test_a_image_is_kept_under_its_name_and_contents(data, tmp_path):
    folder = shutil.copytree(data, tmp_path / "data")
    before = {
        each.name: audit_data.bench(data, tmp_path).name_of(each)
        for each in audit_data.bench(data, tmp_path).data.images
    }
    (folder / "grey.png").write_bytes((folder / "pink.png").read_bytes())
    bench = audit_data.bench(folder, tmp_path)
    after = {each.name: bench.name_of(each) for each in bench.data.images}
    assert [name for name in before if before[name] != after[name]] == ["grey.png"]
    assert len(set(after.values())) == 3


def test_damaged_cases_are_heard_again_and_no_others(bench):
    EvidenceSet(bench)
    files = sorted((bench.cache / next(bench.cache.glob("cases-*")).name).glob("*.npz"))
    assert len(files) == 3
    times = {path: path.stat().st_mtime_ns for path in files}
    whole = files[1].read_bytes()
    files[1].write_bytes(whole[:100])
    EvidenceSet(bench)
    assert files[1].read_bytes() == whole
    assert [path for path in files if path.stat().st_mtime_ns != times[path]] == [files[1]]
