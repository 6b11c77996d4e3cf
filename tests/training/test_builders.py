"""The feature cache: a frozen encoder runs once per image."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import tiny
from saywhy.data.preprocess import Preprocessing
from saywhy.encoders.base import Encoder
from saywhy.training.builders import CachedFeatures, cached_features, weights_digest

PREPROCESSING = Preprocessing(tiny.SIDE, "squash")


@pytest.fixture(scope="module")
def fabric():
    return pytest.importorskip("lightning_fabric").Fabric(accelerator="cpu", devices=1)


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    (tmp_path / "images").mkdir()
    return tiny.image_files(tmp_path / "images", 5)


class CountingEncoder:
    """An encoder that counts its images, except the blank one by which the shape of features is found."""

    def __init__(self) -> None:
        self.encoder = tiny.encoder()
        self.images = 0
        self.encoder.register_forward_pre_hook(self._count)

    def _count(self, module, inputs) -> None:
        self.images += len(inputs[0]) if inputs[0].any() else 0

    def cache(self, paths, folder: Path, fabric, preprocessing=PREPROCESSING) -> CachedFeatures:
        self.images = 0
        return cached_features(self.encoder, preprocessing, paths, folder, 0, fabric, lambda event: None)


def test_cached_features_equal_the_encoders_output_in_half_precision(paths, tmp_path, fabric):
    counting = CountingEncoder()
    cached = counting.cache(paths, tmp_path / "cache", fabric)
    rows, errors = cached.rows([3, 0, 3])
    assert errors == ["", "", ""]
    assert rows.dtype == np.float32
    pixels = torch.from_numpy(np.stack([PREPROCESSING(Image.open(paths[n])) for n in (3, 0, 3)]))
    with torch.no_grad():
        features = counting.encoder(pixels)
    assert cached.grid == features.grid
    torch.testing.assert_close(torch.from_numpy(rows), features.vectors, rtol=2e-3, atol=2e-3)
    assert np.abs(rows[0] - rows[1]).max() > 0.01, "all images have the same features"


def test_every_image_is_encoded_once(paths, tmp_path, fabric):
    counting = CountingEncoder()
    counting.cache(paths[:3], tmp_path / "cache", fabric)
    assert counting.images == 3
    counting.cache(paths, tmp_path / "cache", fabric)
    assert counting.images == 2
    first = counting.cache(paths, tmp_path / "cache", fabric)
    assert counting.images == 0
    reversed_order = CountingEncoder().cache(paths[::-1], tmp_path / "cache", fabric)
    assert np.array_equal(first.rows([0, 1])[0], reversed_order.rows([4, 3])[0])


def test_another_encoder_or_preprocessing_never_reads_these_features(paths, tmp_path, fabric):
    counting = CountingEncoder()
    counting.cache(paths, tmp_path / "cache", fabric)
    counting.cache(paths, tmp_path / "cache", fabric, Preprocessing(tiny.SIDE, "crop"))
    assert counting.images == 5
    with torch.no_grad():
        next(counting.encoder.parameters()).view(-1)[0] += 1e-3
    counting.cache(paths, tmp_path / "cache", fabric)
    assert counting.images == 5


@pytest.mark.parametrize("unreadable", [[1, 3], [0, 1, 2, 3, 4]])
def test_unreadable_images_are_reported_every_time_and_the_others_stay_correct(paths, tmp_path, fabric, unreadable):
    counting = CountingEncoder()
    expected = counting.cache(paths, tmp_path / "complete", fabric).rows(range(5))[0]
    for n in unreadable:
        paths[n].write_bytes(b"not an image") if n % 2 else paths[n].unlink()
    for _ in range(2):
        rows, errors = counting.cache(paths, tmp_path / "cache", fabric).rows(range(5))
        assert [bool(error) for error in errors] == [n in unreadable for n in range(5)]
        assert all(str(paths[n]) in errors[n] for n in unreadable)
        assert not rows[unreadable].any()
        readable = [n for n in range(5) if n not in unreadable]
        np.testing.assert_allclose(rows[readable], expected[readable], atol=2e-3)


def test_the_digest_changes_when_any_weight_changes():
    def encoder_with_scalar() -> Encoder:
        encoder = tiny.encoder()
        encoder.body.scale = torch.nn.Parameter(torch.tensor(1.0))  # a weight without dimensions
        return encoder

    encoder = encoder_with_scalar()
    digest = weights_digest(encoder)
    assert weights_digest(encoder_with_scalar()) == digest
    for name, tensor in encoder.state_dict().items():
        if tensor.is_floating_point():
            last = tensor.view(-1)[-1:]
            before = last.clone()
            last += 1e-3
            assert weights_digest(encoder) != digest, name
            last.copy_(before)
    assert weights_digest(encoder) == digest
