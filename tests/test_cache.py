"""The cache under rough handling: killed writers, two at once, full disks."""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from saywhy import cache as cache_module
from saywhy.cache import ArrayCache, content_key
from saywhy.errors import UnreadableImage, UserError

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc or sets limits as Linux does")

# What the child processes below share: a row that follows from its key, so that any reader can tell it.
COMMON = """
import sys, zlib
import numpy as np
from saywhy import cache
cache.SHARD_BYTES = 64 * 1024  # many small shards, so that writes cross from one to the next

def meant(key):
    return np.random.default_rng(zlib.crc32(key.encode())).integers(0, 255, (50, 70), dtype=np.uint8)

def opened(folder):
    return cache.ArrayCache(folder, (50, 70), np.uint8, {"made": "by keys"})
"""


def child(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", COMMON + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def every_claimed_row_is_right(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Compare all that the index claims with what was meant; returns the keys."""
    names: dict = {}
    monkeypatch.setattr(cache_module, "SHARD_BYTES", 64 * 1024)
    exec(COMMON, names)
    cache = names["opened"](folder)
    keys = list(cache._index.refresh())
    for key in keys:
        assert np.array_equal(cache.get([key])[0], names["meant"](key)), key
    return keys


@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 4)])
def test_what_is_put_comes_back_in_the_order_asked(tmp_path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    values = (np.random.default_rng(1).random((5, *shape)) * 200).astype(dtype)
    cache = ArrayCache(tmp_path, shape, dtype, "key")
    cache.put(list("abcde"), values)
    order = [4, 0, 2, 2]
    for opened in (cache, ArrayCache(tmp_path, shape, dtype, "key")):
        got = opened.get([list("abcde")[n] for n in order])
        assert got.dtype == dtype
        assert np.array_equal(got, values[order])
        assert len(opened) == 5
        assert opened.has(["a", "z"]).tolist() == [True, False]
    assert cache.get([]).shape == (0, *shape)


def test_rows_are_copies_of_ones_own(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, (2,), np.uint8, "key")
    cache.put(["a"], np.array([[1, 2]], np.uint8))
    cache.get(["a"])[:] = 9
    assert cache.get(["a"]).tolist() == [[1, 2]]


def test_rows_cross_from_shard_to_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "SHARD_BYTES", 40)
    cache = ArrayCache(tmp_path, (5,), np.uint16, "key")  # four rows a shard
    values = np.arange(13 * 5, dtype=np.uint16).reshape(13, 5)
    keys = [f"k{n}" for n in range(13)]
    cache.put(keys[:3], values[:3])
    cache.put(keys[3:], values[3:])
    assert len(list(cache.folder.glob("rows-*.bin"))) == 4
    assert np.array_equal(cache.get(keys[::-1]), values[::-1])


def test_another_key_shape_or_type_never_sees_these_rows(tmp_path: Path) -> None:
    ArrayCache(tmp_path, (2,), np.float16, {"encoder": "a"}).put(["x"], np.ones((1, 2), np.float16))
    assert ArrayCache(tmp_path, (2,), np.float16, {"encoder": "a"}).has(["x"]).all()
    for shape, dtype, key in (((2,), np.float16, "b"), ((1,), np.float16, "a"), ((2,), np.int16, "a")):
        assert not ArrayCache(tmp_path, shape, dtype, {"encoder": key}).has(["x"]).any()


def test_a_row_is_kept_once_and_the_first_stays(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, (1,), np.uint8, "key")
    cache.put(["a", "b", "a"], np.array([[1], [2], [3]], np.uint8))
    cache.put(["b", "c"], np.array([[7], [8]], np.uint8))
    assert cache.get(["a", "b", "c"]).ravel().tolist() == [1, 2, 8]
    assert len(cache) == 3
    assert (cache.folder / "rows-00000.bin").stat().st_size == 3


def test_a_program_that_errs_is_told(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, (2,), np.uint8, "key")
    with pytest.raises(KeyError, match="nowhere"):
        cache.get(["nowhere"])
    with pytest.raises(ValueError, match="need values"):
        cache.put(["a"], np.zeros((1, 3), np.uint8))
    with pytest.raises(TypeError, match="cast"):
        cache.put(["a"], np.zeros((1, 2), np.float32))
    with pytest.raises(ValueError, match="one word"):
        cache.put(["a b"], np.zeros((1, 2), np.uint8))
    assert len(cache) == 0


def test_a_pickled_cache_opens_the_same_rows(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, (1,), np.uint8, {"k": 1})
    cache.put(["a"], np.array([[5]], np.uint8))
    assert pickle.loads(pickle.dumps(cache)).get(["a"]).tolist() == [[5]]


def test_rows_that_another_process_wrote_are_seen(tmp_path: Path) -> None:
    here, there = (ArrayCache(tmp_path, (1,), np.uint8, "key") for _ in range(2))
    assert not here.has(["a"]).any()
    there.put(["a"], np.array([[5]], np.uint8))
    assert here.has(["a"]).all()
    assert here.get(["a"]).tolist() == [[5]]


@pytest.mark.parametrize("tail", [b"3 d", b"2 d 0badcafe\n", b"\x00\x00\x00\n\xff\xfe", b"9 d 12345678"])
def test_a_torn_or_spoilt_line_is_ignored_and_mended(tmp_path: Path, tail: bytes) -> None:
    cache = ArrayCache(tmp_path, (1,), np.uint8, "key")
    cache.put(list("abc"), np.array([[1], [2], [3]], np.uint8))
    with (cache.folder / "index").open("ab") as index:
        index.write(tail)
    again = ArrayCache(tmp_path, (1,), np.uint8, "key")
    assert again.has(list("abcd")).tolist() == [True, True, True, False]
    again.put(["d"], np.array([[4]], np.uint8))
    third = ArrayCache(tmp_path, (1,), np.uint8, "key")
    assert third.get(list("abcd")).ravel().tolist() == [1, 2, 3, 4]


def test_rows_of_a_lost_file_count_as_absent_and_can_be_put_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "SHARD_BYTES", 2)
    cache = ArrayCache(tmp_path, (1,), np.uint8, "key")
    cache.put(list("abcd"), np.array([[1], [2], [3], [4]], np.uint8))
    (cache.folder / "rows-00000.bin").unlink()
    with pytest.raises(UserError):
        cache.get(["a"])
    again = ArrayCache(tmp_path, (1,), np.uint8, "key")
    assert again.has(list("abcd")).tolist() == [False, False, True, True]
    again.put(["a", "b"], np.array([[1], [2]], np.uint8))
    assert ArrayCache(tmp_path, (1,), np.uint8, "key").get(list("abcd")).ravel().tolist() == [1, 2, 3, 4]


def test_a_cache_emptied_under_ones_hands_starts_anew(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, (1,), np.uint8, "key")
    cache.put(["a", "b"], np.array([[1], [2]], np.uint8))
    shutil.rmtree(cache.folder)
    assert not cache.has(["a"]).any()
    cache.put(["a"], np.array([[3]], np.uint8))
    assert cache.get(["a"]).tolist() == [[3]]


@linux_only
def test_a_writer_killed_at_any_moment_leaves_only_rows_that_are_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = """
kept, n = opened(sys.argv[1]), 0
print("writing", flush=True)
while True:
    keys = [f"{sys.argv[2]}-{n + i}" for i in range(7)]
    kept.put(keys, np.stack([meant(key) for key in keys]))
    n += 7
"""
    rng, before = random.Random(3), 0
    for round_ in range(8):
        writer = child(code, tmp_path, round_)
        assert writer.stdout is not None
        assert writer.stdout.readline() == "writing\n"
        time.sleep(0.02 + rng.random() * 0.15)
        writer.kill()
        writer.communicate()
        assert writer.returncode == -9
        keys = every_claimed_row_is_right(tmp_path, monkeypatch)
        assert len(keys) >= before, "rows were lost"
        before = len(keys)
    assert before > 50, "the writers hardly wrote"


def test_two_writers_at_once_do_not_disturb_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import random
kept, order = opened(sys.argv[1]), list(range(240))
random.Random(sys.argv[2]).shuffle(order)
for n in range(0, 240, 6):
    keys = [f"k{i}" for i in order[n : n + 6]]
    kept.put(keys, np.stack([meant(key) for key in keys]))
"""
    writers = [child(code, tmp_path, seed) for seed in range(2)]
    for writer in writers:
        assert writer.communicate()[1] == ""
    keys = every_claimed_row_is_right(tmp_path, monkeypatch)
    assert sorted(keys) == sorted(f"k{i}" for i in range(240))
    size = sum(path.stat().st_size for path in tmp_path.glob("*/rows-*.bin"))
    assert size == 240 * 50 * 70, "rows were kept twice"


@linux_only
def test_memory_does_not_grow_with_the_rows(tmp_path: Path) -> None:
    code = """
def anonymous():
    with open("/proc/self/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1])

cache.SHARD_BYTES = 8 * 2**20
kept = cache.ArrayCache(sys.argv[1], (256, 256), np.uint8, "k")
values, sizes = np.ones((16, 256, 256), np.uint8), []
for n in range(0, 1600, 16):
    keys = [str(n + i) for i in range(16)]
    kept.put(keys, values)
    assert kept.get(keys).all()
    sizes.append(anonymous())
print(max(sizes) - sizes[10])
"""
    runner = child(code, tmp_path)
    out, error = runner.communicate()
    assert error == ""
    assert int(out) < 3000, "kB more, while 92 MB of rows went through"


@linux_only
def test_a_full_disk_is_one_line_and_spoils_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import resource
kept = opened(sys.argv[1])
kept.put(["first"], meant("first")[None])
resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))
try:
    kept.put(["x", "y", "z"], np.stack([meant(key) for key in "xyz"]))
except Exception as error:
    print(type(error).__name__, error)
"""
    out, error = child(code, tmp_path).communicate()
    assert error == ""
    assert out.startswith(f"UserError {tmp_path}: the disk is full")
    assert out.count("\n") == 1
    assert every_claimed_row_is_right(tmp_path, monkeypatch) == ["first"]


def test_too_little_room_is_said_before_the_work_begins(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="GB more are needed"):
        ArrayCache(tmp_path, (1024, 1024), np.float32, "key", capacity=10**9)
    ArrayCache(tmp_path, (2,), np.float32, "key", capacity=10)


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="cannot be used"):
        ArrayCache(tmp_path / "file", (2,), np.uint8, "key")


def test_a_file_is_known_by_its_contents(tmp_path: Path) -> None:
    one, two = tmp_path / "one.jpg", tmp_path / "two.jpg"
    one.write_bytes(b"same")
    two.write_bytes(b"same")
    assert content_key(one) == content_key(two)
    two.write_bytes(b"else")
    os.utime(two, ns=(1, 1))  # some file systems keep time too coarsely to see the change
    assert content_key(one) != content_key(two)
    with pytest.raises(UnreadableImage, match=r"gone\.jpg"):
        content_key(tmp_path / "gone.jpg")


def test_a_batch_of_images_comes_back_within_a_few_milliseconds(tmp_path: Path) -> None:
    cache = ArrayCache(tmp_path, (3, 299, 299), np.uint8, "images")
    keys = [str(n) for n in range(64)]
    cache.put(keys, np.ones((64, 3, 299, 299), np.uint8))
    times = []
    for _ in range(7):
        start = time.perf_counter()
        cache.get(keys)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.05, "a tenth of what decoding takes"
