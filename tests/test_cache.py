"""The disk cache: items are found by name and key, files are complete or ignored, several processes may write."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from saywhy.cache import DiskCache, content_key
from saywhy.errors import UnreadableImage, UserError

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="uses signals and limits as on Linux")

KEY = {"model": "abc", "patches": 20}
ARRAYS = {"maps": np.arange(600.0).reshape(2, 300), "map fine": np.ones((3, 3)), "words": np.array(["a", "naïve"])}

# For child processes: the values of an item follow from its name, so that a reader can verify them.
COMMON = """
import sys, zlib
from pathlib import Path
import numpy as np
from saywhy.cache import DiskCache

def expected(name):
    return np.random.default_rng(zlib.crc32(name.encode())).integers(0, 255, (50, 70), dtype=np.uint8)

def opened(folder):
    return DiskCache(Path(folder), "values", {"computed from": "names"})
"""


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMON + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_items(folder: Path, names: list[str]) -> int:
    """Verify the values of all cached items with these names; returns how many there are."""
    scope: dict = {}
    exec(COMMON, scope)
    cache = scope["opened"](folder)
    cached = [name for name in names if cache.has(name)]
    for name in cached:
        np.testing.assert_array_equal(cache.load(name)["values"], scope["expected"](name))
    return len(cached)


def item_file(cache: DiskCache) -> Path:
    (path,) = cache.folder.glob("*/*.npz")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> DiskCache:
    return DiskCache(tmp_path, "stage", KEY)


def test_an_item_is_found_under_its_name_only(tmp_path, cache):
    assert not cache.has("dog.jpg")
    cache.save("dog.jpg", ARRAYS)
    again = DiskCache(tmp_path, "stage", dict(reversed(KEY.items())))
    assert again.has("dog.jpg")
    assert not again.has("cat.jpg")
    loaded = again.load("dog.jpg")
    assert loaded.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        np.testing.assert_array_equal(loaded[name], values)
        assert loaded[name].dtype == values.dtype


def test_arrays_whose_names_start_with_skip_are_not_read(cache):
    cache.save("dog.jpg", ARRAYS)
    assert cache.load("dog.jpg", skip="map ").keys() == {"maps", "words"}


def test_a_name_may_be_any_file_name(cache):
    names = ["a b/c.jpg", "naïve.jpg", "x" * 300, os.fsdecode(b"\xff.jpg"), "../up.jpg"]
    for number, name in enumerate(names):
        cache.save(name, {"number": np.array(number)})
    assert [int(cache.load(name)["number"]) for name in names] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("other", [{**KEY, "model": "abd"}, {**KEY, "more": None}, {"model": "abc"}])
def test_another_key_or_stage_finds_nothing(tmp_path, cache, other):
    cache.save("dog.jpg", ARRAYS)
    assert not DiskCache(tmp_path, "stage", other).has("dog.jpg")
    assert not DiskCache(tmp_path, "other", KEY).has("dog.jpg")
    assert DiskCache(tmp_path, "stage", KEY).has("dog.jpg")


def test_the_folder_states_its_key(cache):
    assert json.loads((cache.folder / "about.json").read_text()) == {"stage": "stage", **KEY}
    assert cache.folder.name.startswith("stage-")


def test_items_are_spread_over_sub_folders(cache):
    for number in range(40):
        cache.save(f"{number}.jpg", {"values": np.zeros(1)})
    folders = [path for path in cache.folder.iterdir() if path.is_dir()]
    assert 20 < len(folders) <= 40
    assert all(len(path.name) == 2 for path in folders)


def test_a_pickled_cache_reads_the_same_items(cache):
    cache.save("dog.jpg", ARRAYS)
    assert pickle.loads(pickle.dumps(cache)).load("dog.jpg").keys() == ARRAYS.keys()


def test_an_interrupted_write_leaves_no_file(cache, monkeypatch):
    def interrupted(file, **arrays):
        file.write(b"half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(np, "savez", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.save("dog.jpg", ARRAYS)
    assert not cache.has("dog.jpg")
    assert [path.name for path in cache.folder.rglob("*") if path.is_file()] == ["about.json"]


def test_a_full_disk_is_one_line_and_keeps_the_old_item(tmp_path, cache, monkeypatch):
    cache.save("dog.jpg", ARRAYS)

    def full(file, **arrays):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(UserError, match=f"^{tmp_path}: the disk is full .*free some space or choose .* --cache$"):
        cache.save("dog.jpg", {})
    assert cache.load("dog.jpg").keys() == ARRAYS.keys()


@linux_only
def test_a_file_that_exceeds_the_limit_is_one_line_and_damages_nothing(tmp_path):
    code = """
import resource
cache = opened(sys.argv[1])
cache.save("first", {"values": expected("first")})
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    cache.save("second", {"values": expected("second")})
except Exception as error:
    print(type(error).__name__, error)
"""
    out, error = child(code, tmp_path).communicate()
    assert error == ""
    assert out.startswith(f"UserError {tmp_path}: the disk is full")
    assert out.count("\n") == 1
    assert check_items(tmp_path, ["first", "second"]) == 1


@pytest.mark.parametrize("size", [0, 1, 0.5, 0.99])
def test_a_file_cut_short_counts_as_missing(cache, size):
    cache.save("dog.jpg", ARRAYS)
    path = item_file(cache)
    contents = path.read_bytes()
    path.write_bytes(contents[: size if isinstance(size, int) else int(size * len(contents))])
    assert not cache.has("dog.jpg")
    with pytest.raises(UserError, match=r"npz: damaged .* deleted; run the same command again"):
        cache.load("dog.jpg")
    cache.save("dog.jpg", ARRAYS)
    assert cache.has("dog.jpg")


def test_an_item_without_arrays_counts_as_missing(cache):
    cache.save("dog.jpg", {})
    assert item_file(cache).exists()
    assert not cache.has("dog.jpg")


def test_a_file_with_changed_bytes_is_deleted_and_reported_in_one_line(cache):
    cache.save("dog.jpg", ARRAYS)
    path = item_file(cache)
    contents = bytearray(path.read_bytes())
    contents[1000] ^= 0xFF
    path.write_bytes(contents)
    with pytest.raises(UserError, match=r"npz: damaged .* deleted") as caught:
        cache.load("dog.jpg")
    assert "\n" not in str(caught.value)
    assert not cache.has("dog.jpg")


def test_nothing_is_unpickled(cache):
    cache.save("dog.jpg", {"objects": np.array([{}], dtype=object)})
    with pytest.raises(UserError, match="damaged"):
        cache.load("dog.jpg")


def test_an_unreadable_item_is_reported_and_not_deleted(cache, monkeypatch):
    cache.save("dog.jpg", ARRAYS)

    def denied(path, **options):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(np, "load", denied)
    with pytest.raises(UserError, match=r"cannot be used \(Permission denied\)"):
        cache.load("dog.jpg")
    assert item_file(cache).exists()


def test_a_folder_that_cannot_be_written_is_reported_in_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file: the cache cannot be used .*choose another cache folder with --cache$"):
        DiskCache(tmp_path / "file", "stage", KEY)


@linux_only
def test_a_killed_writer_leaves_only_correct_items(tmp_path):
    code = """
cache, number = opened(sys.argv[1]), 0
print("writing", flush=True)
while True:
    name = f"{sys.argv[2]}-{number}"
    cache.save(name, {"values": expected(name)})
    number += 1
"""
    delays, total = random.Random(3), 0
    for run in range(5):
        writer = child(code, tmp_path, run)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        time.sleep(0.05 + delays.random() * 0.15)
        writer.kill()
        writer.communicate()
        assert writer.returncode == -9
        total += check_items(tmp_path, [f"{run}-{number}" for number in range(5000)])
    assert total > 50, "the writers wrote too little to test anything"


def test_two_processes_may_write_the_same_items(tmp_path):
    code = """
import random
cache, order = opened(sys.argv[1]), list(range(100)) * 2
random.Random(sys.argv[2]).shuffle(order)
for number in order:
    cache.save(str(number), {"values": expected(str(number))})
    assert cache.has(str(number))
"""
    writers = [child(code, tmp_path, seed) for seed in range(2)]
    for writer in writers:
        assert writer.communicate()[1] == ""
    assert check_items(tmp_path, [str(number) for number in range(100)]) == 100
    assert len(list(tmp_path.rglob("*.npz"))) == 100
    assert not list(tmp_path.rglob("*.part"))


def test_content_key_depends_on_the_contents_of_a_file_only(tmp_path):
    first, second = tmp_path / "first.jpg", tmp_path / "second.jpg"
    first.write_bytes(b"same")
    second.write_bytes(b"same")
    assert content_key(first) == content_key(second)
    second.write_bytes(b"else")
    os.utime(second, ns=(1, 1))  # the time stamps of some file systems are too coarse to show the change
    assert content_key(first) != content_key(second)
    with pytest.raises(UnreadableImage, match=r"gone\.jpg"):
        content_key(tmp_path / "gone.jpg")


def test_reading_a_batch_of_images_is_much_faster_than_decoding_them(cache):
    for number in range(32):
        cache.save(str(number), {"pixels": np.ones((3, 299, 299), np.uint8)})
    times = []
    for _ in range(5):
        start = time.process_time()
        for number in range(32):
            cache.load(str(number))
        times.append(time.process_time() - start)
    assert min(times) < 0.1, "decoding takes about 0.25 s"
