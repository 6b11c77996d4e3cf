"""The familiarity of an image: a calibrated share, the same in a batch and alone, and refused for another model."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import audit_data
import tiny
from saywhy.captioners.model_folder import WEIGHTS
from saywhy.errors import UserError
from saywhy.inference.familiarity_model import (
    FAMILIARITY_FILE,
    FEATURES,
    Familiarity,
    MapDistance,
)
from saywhy.inference.map_statistics import image_statistics, middle_blocks
from saywhy.inference.model import Model, load


def gaussian(count: int, seed: int, size: int = 6, shift: float = 0.0) -> np.ndarray:
    """Correlated vectors."""
    random = np.random.default_rng(seed)
    mixing = np.random.default_rng(0).normal(size=(size, size))
    return (random.normal(size=(count, size)) @ mixing + shift).astype(np.float32)


def fitted(count: int = 400) -> Familiarity:
    return Familiarity.fit({FEATURES: gaussian(count, 1)}, {FEATURES: gaussian(count, 2)}, {"data": ["photos"]})


def test_the_distance_is_the_mahalanobis_distance():
    train, dev, other = gaussian(500, 1), gaussian(300, 2), gaussian(50, 3)
    part = MapDistance.fit(train, dev)
    covariance = np.cov(((train - part.mean) / part.scale).T, bias=True)
    inverse = np.linalg.inv(covariance + 0.05 * np.trace(covariance) / 6 * np.eye(6))

    def log_distance(rows: np.ndarray) -> np.ndarray:
        scaled = (rows - part.mean) / part.scale
        return np.log([row @ inverse @ row for row in scaled])

    expected = (log_distance(other) - log_distance(dev).mean()) / log_distance(dev).std()
    np.testing.assert_allclose(part(other), expected, atol=0.02)  # components are stored in half precision


def test_left_out_components_still_count(monkeypatch):
    monkeypatch.setattr("saywhy.inference.familiarity_model.MATRIX_NUMBERS", 12)
    part = MapDistance.fit(gaussian(500, 1), gaussian(300, 2))
    assert part.components.shape == (2, 6)
    shifted = part.mean[None] + 30 * part.scale * _orthogonal_to(part.components)
    assert part(shifted) > part(gaussian(300, 3)).max()


def _orthogonal_to(components: np.ndarray) -> np.ndarray:
    _, _, rows = np.linalg.svd(components.astype(float))
    return rows[-1:]


def test_familiarity_is_the_share_of_dev_photographs_that_are_less_familiar():
    familiarity = fitted(2000)
    shares = familiarity({FEATURES: gaussian(2000, 3)})
    for level in (0.02, 0.25, 0.5, 0.9):
        assert np.mean(shares < level) == pytest.approx(level, abs=0.03)


def test_familiarity_falls_with_distance_and_never_ties_far_away():
    distances = np.linspace(-9, 12, 200)
    shares = fitted().shares(distances)
    assert (np.diff(shares) <= 0).all()
    assert (np.diff(shares[distances > 4]) < 0).all()
    assert shares[0] == 1
    assert 0 < shares[-1] < 1e-3


def test_statistics_are_mean_and_deviation_of_each_channel():
    captioner = audit_data.captioner()
    pixels = torch.randint(0, 256, (3, 3, tiny.SIDE, tiny.SIDE), dtype=torch.uint8)
    with torch.inference_mode():
        features, statistics = image_statistics(captioner, pixels, None, middle_blocks(captioner, pixels))
    vectors = features.vectors.numpy()
    expected = np.concatenate([vectors.mean(axis=1), vectors.std(axis=1)], axis=1)
    np.testing.assert_allclose(statistics[FEATURES], expected, rtol=1e-4, atol=1e-5)
    assert not any(module._forward_hooks for module in captioner.modules())


def test_blocks_of_stride_8_and_16_are_used():
    from saywhy.encoders import build

    captioner = audit_data.captioner()
    captioner.encoder = build("efficientnet-lite0", weights=None)
    names = middle_blocks(captioner, torch.zeros(1, 3, 64, 64, dtype=torch.uint8))
    assert names == ("blocks.2", "blocks.3", "blocks.4")


def tiny_model(folder: Path | None = None, **changes) -> Model:
    """A model with a familiarity that was fitted to images of noise."""
    saved = audit_data.saved()
    photographs = [audit_data.image(number) for number in range(60)]
    pixels = torch.from_numpy(np.stack([saved.preprocessing(image) for image in photographs]))
    with torch.inference_mode():
        _, statistics = image_statistics(saved.captioner, pixels, None, middle_blocks(saved.captioner, pixels))
    train, dev = ({name: values[half] for name, values in statistics.items()} for half in (slice(30), slice(30, 60)))
    familiarity = dataclasses.replace(Familiarity.fit(train, dev), **changes)
    if folder is None:
        return Model(saved, familiarity=familiarity)
    saved.save(folder)
    familiarity.save(folder)
    return load(folder, "cpu")


def test_captions_and_explanations_have_the_same_familiarity():
    model = tiny_model()
    images = [audit_data.image(70), Image.new("RGB", (90, 70))]
    alone = [model.caption(image).familiarity for image in images]
    together = [caption.familiarity for caption in model.captions(images)]
    given = [model.explain(image, methods=["attention"], caption="a dog").familiarity for image in images]
    np.testing.assert_allclose(together, alone, rtol=1e-3)
    np.testing.assert_allclose(given, alone, rtol=1e-3)
    assert alone[1] < alone[0]


def test_an_image_below_the_threshold_is_not_familiar():
    image = Image.new("RGB", (90, 70))
    share = tiny_model().caption(image).familiarity
    assert tiny_model(threshold=share).caption(image).familiar is True
    assert tiny_model(threshold=share * 1.01).caption(image).familiar is False


def test_json_has_the_familiarity_only_where_it_is_known():
    caption = tiny_model().caption(audit_data.image(70))
    assert caption.as_dict()["familiarity"] == caption.familiarity
    assert caption.as_dict()["familiar"] is caption.familiar
    unknown = audit_data.model().caption(audit_data.image(70))
    assert (unknown.familiarity, unknown.familiar) == (None, None)
    assert "familiarity" not in unknown.as_dict()


def test_an_explanation_keeps_its_familiarity_on_disk(tmp_path):
    explanation = tiny_model().explain(audit_data.image(70), methods=["lrp"])
    explanation.save(tmp_path)
    restored = type(explanation).load(tmp_path)
    assert (restored.familiarity, restored.familiar) == (explanation.familiarity, explanation.familiar)
    assert f"familiarity {explanation.familiarity:.2g}" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_the_page_says_that_an_image_is_unfamiliar(tmp_path):
    sentence = "unlike the photographs the model was trained on"
    for threshold, expected in ((0.0, False), (1.0, True)):
        model = tiny_model(threshold=threshold)
        model.explain(Image.new("RGB", (90, 70)), methods=["lrp"]).save(tmp_path)
        assert (sentence in (tmp_path / "report.html").read_text(encoding="utf-8")) is expected


def test_saved_and_loaded_it_gives_the_same_numbers(tmp_path):
    image = audit_data.image(70)
    assert tiny_model(tmp_path).caption(image).familiarity == pytest.approx(
        tiny_model().caption(image).familiarity, rel=1e-3
    )
    assert tiny_model(tmp_path, threshold=0.5).familiarity.threshold == 0.5


def test_the_file_of_another_model_is_refused(tmp_path):
    tiny_model(tmp_path / "one")
    audit_data.saved(seed=8).save(tmp_path / "other")
    shutil.copy(tmp_path / "one" / FAMILIARITY_FILE, tmp_path / "other")
    model = load(tmp_path / "other", "cpu")
    assert f"was fitted to other weights than {WEIGHTS} beside it" in str(model.familiarity_error)
    assert model.caption(audit_data.image(70)).familiarity is None
    with pytest.raises(UserError):
        _ = model.familiarity


@pytest.mark.parametrize("damage", [b"", b"not safetensors", None])
def test_a_damaged_file_is_one_line(tmp_path, damage):
    tiny_model(tmp_path)
    path = tmp_path / FAMILIARITY_FILE
    path.write_bytes(path.read_bytes()[:-100] if damage is None else damage)
    error = str(load(tmp_path, "cpu").familiarity_error)
    assert error.startswith(f"{path}: not a familiarity model of saywhy")
    assert "\n" not in error


def test_a_model_without_the_file_has_no_familiarity(tmp_path):
    audit_data.saved().save(tmp_path)
    model = load(tmp_path, "cpu")
    assert model.familiarity is None
    assert model.familiarity_error is None
