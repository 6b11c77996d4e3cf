"""Image batches: one path for every source, every batch size and every number of workers."""

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from saywhy.data.preprocess import Preprocessing
from saywhy.errors import UnreadableImage, UserError
from saywhy.inference.batches import ImageBatches
from saywhy.inference.image_loading import DISPLAY_SIDE

SQUARE = Preprocessing(32, "squash")


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return tiny.image_files(tmp_path, 5)


def pixels(batches: ImageBatches) -> torch.Tensor:
    return torch.cat([batch.pixels for batch in batches])


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 9])
def test_batch_size_and_workers_do_not_change_the_pixels(paths, batch_size, workers):
    expected = torch.from_numpy(np.stack([SQUARE(Image.open(path)) for path in paths]))
    batches = list(ImageBatches(SQUARE, paths, batch_size=batch_size, workers=workers))
    assert torch.equal(torch.cat([batch.pixels for batch in batches]), expected)
    assert [index for batch in batches for index in batch.indices] == list(range(5))
    assert [len(batch) for batch in batches] == [min(batch_size, 5 - start) for start in range(0, 5, batch_size)]


def test_paths_bytes_files_images_arrays_and_tensors_give_the_same_pixels(paths):
    path = paths[0]
    array = np.asarray(Image.open(path))
    sources = [
        path,
        str(path),
        path.read_bytes(),
        io.BytesIO(path.read_bytes()),
        Image.open(path),
        array,
        torch.from_numpy(array.copy()).permute(2, 0, 1),
    ]
    batch = next(iter(ImageBatches(SQUARE, sources, batch_size=len(sources))))
    for row in batch.pixels[1:]:
        assert torch.equal(row, batch.pixels[0])
    assert [image.source for image in batch.images] == [str(path), str(path), "", "", "", "", ""]


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_image_is_reported_with_its_index_and_left_out(paths, workers):
    paths[1].write_bytes(b"not an image")
    errors: list[tuple[int, UnreadableImage]] = []
    options = {"batch_size": 3, "workers": workers, "on_unreadable": lambda *error: errors.append(error)}
    batches = list(ImageBatches(SQUARE, paths, **options))
    assert [batch.indices for batch in batches] == [[0, 2], [3, 4]]
    assert [index for index, _ in errors] == [1]
    assert str(paths[1]) in str(errors[0][1])


@pytest.mark.parametrize("workers", [0, 1])
def test_without_a_callback_an_unreadable_image_raises(paths, workers):
    paths[1].write_bytes(b"not an image")
    with pytest.raises(UnreadableImage, match=r"1\.png"):
        list(ImageBatches(SQUARE, paths, workers=workers))


def test_a_batch_of_unreadable_images_is_skipped(paths):
    for path in paths[:2]:
        path.write_bytes(b"")
    batches = ImageBatches(SQUARE, paths, batch_size=2, on_unreadable=lambda index, error: None)
    assert [batch.indices for batch in batches] == [[2, 3], [4]]


def test_sources_are_taken_one_batch_at_a_time(paths):
    opened = []

    def sources():
        for path in paths:
            opened.append(path)
            yield path

    batches = iter(ImageBatches(SQUARE, sources(), batch_size=2))
    next(batches)
    assert len(opened) == 2


def test_a_kept_image_is_small_and_its_crop_is_scaled_with_it(tmp_path):
    Image.new("RGB", (3000, 1500), "red").save(tmp_path / "large.png")
    geometry = Preprocessing(32, "crop")
    (batch,) = ImageBatches(geometry, [tmp_path / "large.png"], keep_images=True)
    (image,) = batch.images
    assert image.size == (3000, 1500)
    assert image.image.size == (DISPLAY_SIDE, DISPLAY_SIDE // 2)
    assert image.crop == geometry.crop(3000, 1500)
    assert image.image_crop == geometry.crop(DISPLAY_SIDE, DISPLAY_SIDE // 2)


def test_padding_repeats_the_first_image(paths):
    (batch,) = ImageBatches(SQUARE, paths)
    padded = batch.padded(8)
    assert torch.equal(padded.pixels[:5], batch.pixels)
    assert all(torch.equal(row, batch.pixels[0]) for row in padded.pixels[5:])


def test_something_that_is_no_image_is_a_one_line_error():
    with pytest.raises(UserError, match="int"):
        list(ImageBatches(SQUARE, [7]))


ORPHANS = """
import os, time
import torch.utils.data._utils.worker as worker
from saywhy.inference.batches import read_ahead

worker.ManagerWatchdog.is_alive = lambda self: True  # as when the parent has ended before it is made

class Slow:
    def __getitem__(self, key):
        time.sleep(0.05)
        return os.getpid()

for pid in read_ahead(Slow(), range(100_000), 2):
    print(pid, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_workers_end_with_their_process_also_where_torch_does_not_notice():
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", ORPHANS]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        workers = {process.stdout.readline().strip() for _ in range(20)}
        process.send_signal(signal.SIGKILL)
    assert len(workers) == 2
    deadline = time.monotonic() + 60
    while alive := [pid for pid in workers if Path(f"/proc/{pid}/cmdline").exists()]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.1)
