"""Inputs: what a folder, a pattern, a tar shard and a Parquet file contain, and how their images are read."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from bulk_inputs import png, write_tar
from saywhy.bulk.find_inputs import find_shards
from saywhy.bulk.parquet_shards import ParquetShard
from saywhy.bulk.shards import ImageFiles, digest_of
from saywhy.bulk.tar_shards import TarShard
from saywhy.data.images import EncodedImage
from saywhy.errors import UnreadableImage, UserError

arrow = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
parquet = pytest.importorskip("pyarrow.parquet", reason="Parquet needs pyarrow")


def contents(ref) -> bytes:
    source = ref.read()
    return source.contents if isinstance(source, EncodedImage) else source.read_bytes()


def write_parquet(path: Path, columns: dict, rows_per_group: int = 1000) -> Path:
    parquet.write_table(arrow.table(columns), path, row_group_size=rows_per_group, write_batch_size=8)
    return path


def test_a_folder_is_searched_recursively_and_sorted_without_hidden_files(tmp_path):
    for name in ("b/2.jpg", "a.png", "b/1.JPG", ".hidden.jpg", ".thumbs/3.jpg", "notes.txt", "c.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (shard,) = find_shards([str(tmp_path)])
    assert [os.path.relpath(ref.image, tmp_path) for ref in shard.refs()] == ["a.png", "b/1.JPG", "b/2.jpg", "c.webp"]
    assert {(ref.shard, ref.key) for ref in shard.refs()} == {(None, None)}


def test_a_folder_of_shards_a_pattern_and_single_files_are_found(tmp_path):
    for name in ("s/1.tar", "s/0.parquet", "x/1.jpg", "x/2.jpg", "x/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    names = [shard.name for shard in find_shards([str(tmp_path / "s")])]
    assert names == [str(tmp_path / "s" / name) for name in ("0.parquet", "1.tar")]
    (images,) = find_shards([f"{tmp_path}/x/*"])
    assert [Path(path).name for path in images.names()] == ["1.jpg", "2.jpg"]
    files, tar = find_shards([str(tmp_path / "s" / "1.tar"), str(tmp_path / "x" / "2.jpg")])
    assert isinstance(files, ImageFiles), "image files are one shard, the first"
    assert tar == TarShard(str(tmp_path / "s" / "1.tar"))


@pytest.mark.parametrize(
    ("argument", "line"),
    [
        ("gone", "no such file"),
        ("none-*.jpg", "tar file matches"),
        ("*.txt", "tar file matches"),
        ("", "no images"),
        ("a.tar.gz", "decompress"),
    ],
)
def test_inputs_without_images_are_refused(tmp_path, argument, line):
    (tmp_path / "a.tar.gz").write_bytes(b"x")
    (tmp_path / "notes.txt").write_bytes(b"x")
    with pytest.raises(UserError, match=line):
        find_shards([str(tmp_path / argument)])


def test_the_digest_depends_on_names_and_their_order():
    one, other = ImageFiles(["a.jpg", "b.jpg"]), ImageFiles(["b.jpg", "a.jpg"])
    assert digest_of([one]) == digest_of([ImageFiles(["a.jpg", "b.jpg"])])
    assert len({digest_of([shard]) for shard in (one, other, TarShard("a.jpg"))}) == 3


def test_a_folder_that_vanishes_stops_the_run_and_a_file_that_vanishes_does_not(tmp_path):
    (tmp_path / "x").mkdir()
    (ref,) = ImageFiles([str(tmp_path / "x" / "1.jpg")]).refs()
    assert ref.read() == tmp_path / "x" / "1.jpg", "the error is found when the image is opened"
    (tmp_path / "x").rmdir()
    with pytest.raises(UserError, match="folder of images has vanished"):
        ref.read()


def test_a_tar_shard_has_its_images_with_keys(tmp_path):
    members = [("000/dog.jpg", png(1)), ("000/dog.json", b"{}"), ("001/cat.left.png", png(2))]
    refs = TarShard(str(write_tar(tmp_path / "a.tar", members))).refs()
    assert [(ref.image, ref.key) for ref in refs] == [("000/dog.jpg", "000/dog"), ("001/cat.left.png", "001/cat")]
    assert [contents(ref) for ref in refs] == [png(1), png(2)]
    assert refs[0].read().name == f"{tmp_path}/a.tar/000/dog.jpg"


@pytest.mark.parametrize("kept", [0.3, 0.55, 0.9, "without end"])
def test_a_truncated_tar_is_named(tmp_path, kept):
    path = write_tar(tmp_path / "a.tar", [(f"{n}.png", png(n)) for n in range(3)])
    whole = path.read_bytes()
    last = TarShard(str(path)).refs()[-1]
    end = -(-(last.offset + last.size) // 512) * 512
    path.write_bytes(whole[: end if kept == "without end" else int(kept * end)])
    with pytest.raises(UserError, match=r"a\.tar: truncated tar file"):
        TarShard(str(path)).refs()


def test_something_else_named_tar_is_named(tmp_path):
    (tmp_path / "a.tar").write_bytes(b"\x1f\x8b not a tar file" * 100)
    with pytest.raises(UserError, match=r"a\.tar: not an uncompressed tar file"):
        TarShard(str(tmp_path / "a.tar")).refs()


@pytest.mark.parametrize("shard", [TarShard, ParquetShard])
def test_a_pipe_is_refused_and_does_not_block(tmp_path, shard):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe: not an ordinary file"):
        shard(str(tmp_path / "pipe")).refs()


def test_a_tar_member_beyond_64_bits_is_an_error_of_the_shard(tmp_path):
    path = write_tar(tmp_path / "a.tar", [("0.png", png(0))])
    header = bytearray(path.read_bytes()[:512])
    header[124:136] = b"\x80\0\0\0\x7f" + b"\xff" * 7  # the size of the member
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path.write_bytes(bytes(header) + path.read_bytes()[512:])
    with pytest.raises(UserError, match=r"a\.tar: "):
        TarShard(str(path)).refs()


def test_parquet_reads_structs_bytes_and_paths_alike(tmp_path):
    images = [png(n) for n in range(5)]
    (tmp_path / "0.png").write_bytes(images[0])
    struct = arrow.array([{"bytes": image, "path": None} for image in images])
    files = [
        write_parquet(tmp_path / "struct.parquet", {"id": [*range(5)], "image": struct}, 2),
        write_parquet(tmp_path / "bytes.parquet", {"sha": [b"1"] * 5, "jpg": images}, 5),
        write_parquet(tmp_path / "path.parquet", {"text": ["x"] * 5, "file_name": ["0.png"] * 5}),
    ]
    for path in files:
        refs = ParquetShard(str(path)).refs()
        expected = [images[0]] * 5 if path.stem == "path" else images
        assert [contents(ref) for ref in refs] == expected
        assert [ref.image for ref in refs] == ["0", "1", "2", "3", "4"]
        assert contents(refs[1]) == expected[1], "an earlier row is read again from its row group"
    assert [contents(ref) for ref in ParquetShard(str(files[0]), "image").refs()[3:]] == images[3:]


def test_a_hugging_face_row_without_bytes_is_read_by_its_path(tmp_path):
    (tmp_path / "0.png").write_bytes(png(0))
    image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.string())])
    column = arrow.array([{"bytes": None, "path": "0.png"}, {"bytes": None, "path": None}], image)
    first, second = ParquetShard(str(write_parquet(tmp_path / "a.parquet", {"image": column}))).refs()
    assert first.read() == tmp_path / "0.png"
    with pytest.raises(UnreadableImage, match=r"a\.parquet, row 1: no image"):
        second.read()


def test_rows_that_hold_something_else_than_an_image_are_unreadable_images(tmp_path):
    image = arrow.struct([("bytes", arrow.binary()), ("path", arrow.int64())])
    numbers = arrow.array([{"bytes": None, "path": 7}], image)
    text = [None, arrow.py_buffer(struct.pack("<ii", 0, 2)), arrow.py_buffer(b"\xff\xfe")]
    names = arrow.Array.from_buffers(arrow.string(), 1, text)
    for file, column, line in (("a.parquet", numbers, "row 0: neither"), ("b.parquet", names, "row 0: .* UTF-8")):
        (ref,) = ParquetShard(str(write_parquet(tmp_path / file, {"image": column}))).refs()
        with pytest.raises(UnreadableImage, match=line):
            ref.read()


@pytest.mark.parametrize(
    ("columns", "column", "line"),
    [
        ({"text": ["a"], "n": [1]}, "", r"no column of images; .*text string, n int64"),
        ({"x": [b"a"], "y": [b"b"]}, "", r"several columns may be the images \(x, y\)"),
        ({"image": [b"a"]}, "picture", r"no column 'picture'"),
        ({"n": [1]}, "n", r"no column 'n' of images"),
    ],
)
def test_a_parquet_file_without_a_column_of_images_is_named(tmp_path, columns, column, line):
    path = write_parquet(tmp_path / "a.parquet", columns)
    with pytest.raises(UserError, match=rf"a\.parquet: {line}"):
        ParquetShard(str(path), column).refs()


def test_a_damaged_parquet_file_is_named(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"PAR1 nothing else")
    with pytest.raises(UserError, match=r"a\.parquet: not a readable Parquet file"):
        ParquetShard(str(tmp_path / "a.parquet")).refs()


def test_a_large_row_group_is_not_held_in_memory(tmp_path):
    """40 MB in one row group; reading it by rows must hold far less."""
    rows = [os.urandom(100_000) for _ in range(400)]
    refs = ParquetShard(str(write_parquet(tmp_path / "a.parquet", {"image": rows}))).refs()
    before = arrow.total_allocated_bytes()
    assert contents(refs[0]) == rows[0]
    assert contents(refs[350]) == rows[350]
    assert arrow.total_allocated_bytes() - before < 15e6
