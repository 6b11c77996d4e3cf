"""A frozen encoder runs once an image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from saywhy.data.preprocess import Preprocessing
from saywhy.encoders.base import Encoder
from saywhy.training.feature_cache import CachedFeatures, cached_features, weights_digest

PREPROCESSING = Preprocessing(tiny.SIDE, "squash")


@pytest.fixture(scope="module")
def fabric():
    return pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    (tmp_path / "images").mkdir()
    return tiny.image_files(tmp_path / "images", 5)


class Watched:
    """An encoder whose images are counted."""

    def __init__(self) -> None:
        self.encoder = tiny.encoder()
        self.images = -1  # the blank one, by which the shape is found
        self.encoder.register_forward_pre_hook(self._count)

    def _count(self, module, inputs) -> None:
        self.images += len(inputs[0])


def cached(watched: Watched, paths, folder: Path, fabric, preprocessing=PREPROCESSING) -> CachedFeatures:
    watched.images = -1
    return cached_features(watched.encoder, preprocessing, paths, folder, 0, fabric, lambda event: None)


def test_it_gives_what_the_encoder_gives_to_half_precision(paths, tmp_path, fabric):
    watched = Watched()
    features = cached(watched, paths, tmp_path / "cache", fabric)
    rows, faults = features.rows([3, 0, 3])
    assert faults == ["", "", ""]
    assert rows.dtype == np.float32
    pixels = torch.from_numpy(np.stack([PREPROCESSING(Image.open(paths[n])) for n in (3, 0, 3)]))
    with torch.no_grad():
        features = watched.encoder(pixels)
    assert features.grid == features.grid
    torch.testing.assert_close(torch.from_numpy(rows), features.vectors, rtol=2e-3, atol=2e-3)
    assert np.abs(rows[0] - rows[1]).max() > 0.01, "all images look the same"


def test_each_image_is_encoded_once_and_never_again(paths, tmp_path, fabric):
    watched = Watched()
    cached(watched, paths[:3], tmp_path / "cache", fabric)
    assert watched.images == 3
    cached(watched, paths, tmp_path / "cache", fabric)
    assert watched.images == 2
    first = cached(watched, paths, tmp_path / "cache", fabric)
    assert watched.images == 0
    again = cached(Watched(), paths[::-1], tmp_path / "cache", fabric)
    assert np.array_equal(first.rows([0, 1])[0], again.rows([4, 3])[0])


def test_another_encoder_or_preprocessing_never_reads_these(paths, tmp_path, fabric):
    watched = Watched()
    cached(watched, paths, tmp_path / "cache", fabric)
    cached(watched, paths, tmp_path / "cache", fabric, Preprocessing(tiny.SIDE, "crop"))
    assert watched.images == 5
    with torch.no_grad():
        next(watched.encoder.parameters()).view(-1)[0] += 1e-3
    cached(watched, paths, tmp_path / "cache", fabric)
    assert watched.images == 5


@pytest.mark.parametrize("broken", [[1, 3], [0, 1, 2, 3, 4]])
def test_broken_images_are_named_each_time_and_the_others_stay_right(paths, tmp_path, fabric, broken):
    watched = Watched()
    whole = cached(watched, paths, tmp_path / "whole", fabric).rows(range(5))[0]
    for n in broken:
        paths[n].write_bytes(b"not an image") if n % 2 else paths[n].unlink()
    for _ in range(2):
        rows, faults = cached(watched, paths, tmp_path / "cache", fabric).rows(range(5))
        assert [bool(line) for line in faults] == [n in broken for n in range(5)]
        assert all(str(paths[n]) in faults[n] for n in broken)
        assert not rows[broken].any()
        good = [n for n in range(5) if n not in broken]
        np.testing.assert_allclose(rows[good], whole[good], atol=2e-3)


def test_the_digest_changes_when_any_weight_changes():
    def scaled() -> Encoder:
        encoder = tiny.encoder()
        encoder.body.scale = torch.nn.Parameter(torch.tensor(1.0))  # a weight without dimensions
        return encoder

    encoder = scaled()
    digest = weights_digest(encoder)
    assert weights_digest(scaled()) == digest
    for name, tensor in encoder.state_dict().items():
        if tensor.is_floating_point():
            place = tensor.view(-1)[-1:]
            before = place.clone()
            place += 1e-3
            assert weights_digest(encoder) != digest, name
            place.copy_(before)
    assert weights_digest(encoder) == digest
