"""An explanation maps its values onto the original image, and loads from disk unchanged."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import saywhy
import tiny
from saywhy.captioners.model_folder import SavedModel
from saywhy.data.preprocess import Preprocessing
from saywhy.data.regions import RegionSettings
from saywhy.errors import UserError
from saywhy.explain import METHODS, Budget, Explanation
from saywhy.explain.methods import REPORT_METHODS
from saywhy.inference.model import Model

SIZE = (150, 100)
PATCH = (80, 40, 100, 60)  # left, top, right, bottom: inside the crop, not at its centre
MARGIN = 256 / 224


def model_of(fit: str = "crop", name: str = "soft-attention", regions: RegionSettings | None = None) -> Model:
    preprocessing, decoding = Preprocessing(tiny.SIDE, fit), {"beam": 2, "min_words": 3, "max_words": 5}
    return Model(
        SavedModel("tiny", tiny.sensitive_captioner(name), tiny.vocabulary(), preprocessing, decoding, regions)
    )


@pytest.fixture(scope="module")
def cropping() -> Model:
    return model_of("crop")


@pytest.fixture(scope="module")
def patch_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A patch of noise on the encoder's mean colour, which normalises to 0, so that `gradient-input` is 0 there."""
    mean = np.array(tiny.encoder().settings.convention.mean)
    pixels = np.tile(np.rint(mean).astype(np.uint8), (SIZE[1], SIZE[0], 1))
    left, top, right, bottom = PATCH
    pixels[top:bottom, left:right] = np.random.default_rng(0).integers(0, 2, (bottom - top, right - left, 3)) * 255
    path = tmp_path_factory.mktemp("images") / "patch.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def explained(cropping: Model, patch_image: Path) -> Explanation:
    return cropping.explain(patch_image)


def share_in(values: np.ndarray, box: tuple[float, ...]) -> float:
    """The share of a map's absolute values inside a box."""
    left, top, right, bottom = (round(edge) for edge in box)
    return float(np.abs(values[top:bottom, left:right]).sum() / np.abs(values).sum())


def single_pixel(explanation: Explanation, row: int, column: int) -> Explanation:
    """The explanation with an LRP map of a single pixel of the encoder's input."""
    values = np.zeros((1, explanation.input_size, explanation.input_size), np.float32)
    values[0, row, column] = 1.0
    return replace(explanation, maps={"lrp": values})


def centre(values: np.ndarray) -> tuple[float, float]:
    """The centre of mass of a map, x and y."""
    y, x = (np.arange(length) + 0.5 for length in values.shape)
    total = values.sum()
    return float((values.sum(axis=0) * x).sum() / total), float((values.sum(axis=1) * y).sum() / total)


def test_fields_describe_the_caption_the_image_and_the_model(
    explained: Explanation, cropping: Model, patch_image: Path
):
    assert explained.tokens == cropping.caption(patch_image).words
    assert explained.caption == " ".join(explained.tokens)
    words = [(word.word, word.caption_word) for word in explained.words]
    assert words == [(token, token) for token in explained.tokens]
    assert [word.position for word in explained.words] == [*range(len(explained.tokens))]
    assert (explained.source, explained.model, explained.size) == (str(patch_image), "tiny", SIZE)
    assert (explained.methods, explained.composite) == (REPORT_METHODS, "by-stride")
    assert (explained.score, explained.map_kind) == ("logit", "why")
    assert explained.budget == [word.budget for word in explained.words]
    assert saywhy.Explanation is Explanation


def test_every_earlier_word_has_one_weight(explained: Explanation):
    for word in explained.words:
        assert set(word.earlier_words) == set(REPORT_METHODS) - {"attention"}
        assert {len(weights) for weights in word.earlier_words.values()} == {word.position}
        assert sum(word.earlier_words["lrp"]) == pytest.approx(word.budget.earlier_words, abs=1e-4)


@pytest.mark.parametrize("method", REPORT_METHODS)
def test_map_has_the_size_of_the_image_or_the_given_one(explained: Explanation, method: str):
    values = explained.map(1, method)
    assert values.shape == (SIZE[1], SIZE[0])
    assert np.isfinite(values).all()
    assert values.any()
    assert explained.map(1, method, size=(75, 50)).shape == (50, 75)


@pytest.mark.parametrize("method", METHODS)
def test_map_is_zero_outside_the_crop(explained: Explanation, method: str):
    side = SIZE[1] / MARGIN
    assert explained.crop == pytest.approx(((150 - side) / 2, (100 - side) / 2, (150 + side) / 2, (100 + side) / 2))
    for size in (SIZE, (300, 200)):
        crop = tuple(np.array(explained.crop) * size[0] / SIZE[0])
        assert share_in(explained.map(0, method, size=size), crop) == pytest.approx(1)


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("size", [SIZE, (100, 150), (1500, 1000), (40, 30)])
def test_input_pixel_maps_back_to_its_place_in_the_image(cropping: Model, fit: str, size: tuple[int, int]):
    model = cropping if fit == "crop" else model_of(fit)
    explanation = model.explain(Image.new("RGB", size, "green"), methods=["attention"])
    side = min(size) / MARGIN
    crop = size if fit == "squash" else (side, side)
    for row, column in ((30, 10), (50, 33)):
        x, y = centre(single_pixel(explanation, row, column).map(0, "lrp"))
        assert x == pytest.approx((size[0] - crop[0]) / 2 + (column + 0.5) * crop[0] / tiny.SIDE, abs=1)
        assert y == pytest.approx((size[1] - crop[1]) / 2 + (row + 0.5) * crop[1] / tiny.SIDE, abs=1)


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_map_covers_the_only_structure_of_the_image(patch_image: Path, fit: str):
    explanation = model_of(fit).explain(patch_image, methods=["gradient-input"])
    left, top, right, bottom = PATCH
    around = (left - 2, top - 2, right + 2, bottom + 2)
    for i in range(len(explanation.words)):
        assert share_in(explanation.map(i, "gradient-input"), around) > 0.6


@pytest.mark.parametrize("orientation", [2, 3, 6, 8])
def test_rotated_photograph_is_explained_upright(cropping: Model, patch_image: Path, tmp_path: Path, orientation: int):
    rotated, exif = tmp_path / "rotated.jpg", Image.Exif()
    exif[0x0112] = orientation
    inverse = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }
    with Image.open(patch_image) as upright:
        upright.transpose(inverse[orientation]).save(rotated, exif=exif, quality=100, subsampling=0)
    explanation = cropping.explain(rotated, methods=["gradient-input"])
    assert explanation.size == SIZE
    assert explanation.image is not None
    assert explanation.image.size == SIZE
    left, top, right, bottom = PATCH
    assert share_in(explanation.map(0, "gradient-input"), (left - 2, top - 2, right + 2, bottom + 2)) > 0.6


def test_attention_map_is_of_one_head_or_their_mean(patch_image: Path):
    explanation = model_of(name="mh-fc").explain(patch_image, methods=["attention"])
    heads = explanation.maps["attention"].shape[1]
    assert heads > 1
    maps = [explanation.map(0, "attention", head=head) for head in range(heads)]
    assert not np.allclose(maps[0], maps[1])
    np.testing.assert_allclose(explanation.map(0, "attention"), np.mean(maps, axis=0), atol=1e-6)


@pytest.fixture(scope="module")
def over_boxes(patch_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    """Two boxes, one of which exceeds the crop, and the full crop."""
    table = tmp_path_factory.mktemp("regions") / "boxes.jsonl"
    phrases = [{"boxes": [[80, 40, 100, 60], [0, 10, 60, 90]]}]
    table.write_text(json.dumps({"image": patch_image.name, "width": 150, "height": 100, "phrases": phrases}))
    return model_of(regions=RegionSettings("boxes", 6)).explain(patch_image, regions=table)


def test_padding_regions_have_no_maps(over_boxes: Explanation):
    assert over_boxes.boxes is not None
    assert over_boxes.grid is None
    assert len(over_boxes.boxes) == 3
    for method in ("attention", "gradcam"):
        assert over_boxes.maps[method].shape[-1] == 3
    assert over_boxes.maps["lrp"].shape[1:] == (tiny.SIDE, tiny.SIDE), "boxes are pooled from a grid of pixels"


def test_value_of_a_box_is_spread_over_its_area(over_boxes: Explanation):
    assert over_boxes.boxes is not None
    values = np.zeros((1, 3), np.float32)
    values[0, over_boxes.boxes[:, 0].argmax()] = 5.0  # the patch is the rightmost box
    values = replace(over_boxes, maps={"attention": values}).map(0, "attention")
    assert values.sum() == pytest.approx(5.0, rel=1e-5)
    assert share_in(values, PATCH) == pytest.approx(1.0, abs=0.02)
    assert len(np.unique(values[45:55, 85:95])) == 1
    total = over_boxes.map(0, "attention").sum()
    assert total == pytest.approx(over_boxes.maps["attention"][0].sum(), rel=1e-4)


def test_precomputed_features_are_explained_over_their_boxes(patch_image: Path, tmp_path: Path):
    from saywhy import encoders
    from saywhy.captioners import build

    np.savez(
        tmp_path / f"{patch_image.stem}.npz",
        features=np.random.default_rng(0).normal(size=(2, 5)).astype(np.float32),
        boxes=np.array([[0, 0, 75, 100], [75, 0, 150, 100]], np.float32),
        width=150,
        height=100,
    )
    captioner = build(
        "soft-attention", encoders.build("features:5", None), tiny.WORDS, **tiny.settings("soft-attention")
    )
    regions = RegionSettings("features", 4)
    saved = SavedModel("f", captioner.eval(), tiny.vocabulary(), Preprocessing(), {"max_words": 4}, regions)
    explanation = Model(saved).explain(patch_image, regions=tmp_path)
    word = explanation.words[0]
    assert word.pixel_relevance is None
    for method in METHODS:
        left, right = explanation.map(0, method)[:, :75], explanation.map(0, method)[:, 75:]
        np.testing.assert_allclose([left.sum(), right.sum()], explanation.maps[method][0], rtol=1e-3, atol=1e-6)
    assert explanation.map(0, "lrp").sum() == pytest.approx(word.budget.image, abs=1e-4)


def test_unknown_method_is_refused_with_the_available_ones(explained: Explanation):
    with pytest.raises(UserError, match="no map of method 'gradcamm': did you mean \"gradcam\""):
        explained.map(0, "gradcamm")


@pytest.mark.parametrize(
    ("budget", "share"),
    [
        (Budget(4.0, 0.0, 0.0, 9.0), 1.0),
        (Budget(-4.0, 0.0, 0.0, 9.0), -1.0),
        (Budget(1.0, -2.0, 1.0, 0.0), 0.25),
        (Budget(0.0, 0.0, 0.0, 3.0), 0.0),
    ],
)
def test_image_share_excludes_absorbed_relevance(budget: Budget, share: float):
    assert budget.image_share == share


def test_budget_sums_to_the_score_and_the_map_to_the_image_part(explained: Explanation):
    for word in explained.words:
        assert word.budget.total == pytest.approx(word.score, abs=1e-3 * max(1, abs(word.score)))
        assert word.score == word.logit
        assert word.pixel_relevance is not None
        assert word.pixel_relevance + word.absorbed_by_encoder == pytest.approx(word.budget.image, abs=1e-3)
        assert explained.maps["lrp"][word.position].sum() == pytest.approx(word.budget.image, abs=1e-5)


@pytest.mark.parametrize("kind", ["explained", "over_boxes"])
def test_saved_explanation_loads_unchanged(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    explanation: Explanation = request.getfixturevalue(kind)
    explanation.save(tmp_path / "why")
    loaded = saywhy.Explanation.load(tmp_path / "why")
    assert loaded.as_dict() == explanation.as_dict()
    assert loaded.words == explanation.words
    assert (loaded.tokens, loaded.grid, loaded.crop) == (explanation.tokens, explanation.grid, explanation.crop)
    assert set(loaded.maps) == set(explanation.maps)
    for method, values in explanation.maps.items():
        np.testing.assert_array_equal(loaded.maps[method], values)
        np.testing.assert_array_equal(loaded.map(0, method), explanation.map(0, method))
    assert (loaded.boxes is None) == (explanation.boxes is None)
    if explanation.boxes is not None:
        np.testing.assert_array_equal(loaded.boxes, explanation.boxes)
    assert explanation.image is not None
    assert loaded.image is not None
    difference = np.asarray(loaded.image, float) - np.asarray(explanation.image, float)
    assert np.abs(difference).mean() < 8, "the image is stored as a JPEG"


def test_loaded_explanation_can_be_saved_and_shown(explained: Explanation, tmp_path: Path):
    explained.save(tmp_path / "why")
    loaded = Explanation.load(tmp_path / "why")
    loaded.save(tmp_path / "again")
    names = ["explanation.json", "maps.npz", "report.html", "words.png"]
    for folder in ("why", "again"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == names
    texts = [(tmp_path / folder / "explanation.json").read_text() for folder in ("why", "again")]
    assert texts[0] == texts[1]
    assert loaded.show("gradcam").size == explained.show("gradcam").size


def test_image_without_a_path_is_explained_and_saved(cropping: Model, tmp_path: Path):
    explanation = cropping.explain(Image.new("RGB", SIZE, "green"), methods=["gradcam"])
    assert explanation.source == ""
    explanation.save(tmp_path)
    assert Explanation.load(tmp_path).methods == ("gradcam",)


def test_large_image_is_stored_small_and_its_map_is_full_size(cropping: Model):
    explanation = cropping.explain(Image.new("RGB", (3000, 2000), "green"), methods=["attention"])
    assert explanation.image is not None
    assert explanation.image.size == (1024, 683)
    assert explanation.map(0, "attention").shape == (2000, 3000)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("explanation.json", b"{"),
        ("explanation.json", b"\xff\xfe"),
        ("explanation.json", b'{"format": 2, "words": [{"word": 1}]}'),
        ("explanation.json", b"[" * 100_000),
        ("maps.npz", b""),
        ("maps.npz", b"PK\x03\x04 no archive"),
        ("maps.npz", b"no archive"),
    ],
)
def test_damaged_files_are_refused(explained: Explanation, tmp_path: Path, file: str, content: bytes):
    explained.save(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=rf"^{tmp_path}.*: (not a saved explanation|malformed JSON|not UTF-8)"):
        Explanation.load(tmp_path)


@pytest.mark.parametrize("missing", ["explanation.json", "maps.npz"])
def test_missing_file_is_named(explained: Explanation, tmp_path: Path, missing: str):
    explained.save(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(UserError, match=rf"^{tmp_path}: not a saved explanation \({missing} is missing\)"):
        Explanation.load(tmp_path)


@pytest.mark.parametrize("content", ["{}", "[]", '{"image": "a.jpg", "region": [0, 0, 1, 1], "words": []}'])
def test_explanation_of_another_version_is_refused(explained: Explanation, tmp_path: Path, content: str):
    explained.save(tmp_path)
    (tmp_path / "explanation.json").write_text(content)
    with pytest.raises(UserError, match=rf"^{tmp_path}: saved by another version of saywhy, such as 0.1"):
        Explanation.load(tmp_path)


@pytest.mark.parametrize("name", ["explanation.json", "maps.npz", "report.html", "words.png"])
def test_full_disk_names_the_file(explained: Explanation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str):
    write = Path.write_bytes

    def write_until_full(path: Path, data: bytes) -> int:
        if name in path.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    monkeypatch.setattr(Path, "write_bytes", write_until_full)
    monkeypatch.setattr(Path, "write_text", lambda path, text, **_: write_until_full(path, text.encode()))
    with pytest.raises(OSError, match="No space left on device") as error:
        explained.save(tmp_path)
    assert error.value.filename == str(tmp_path / name)
    assert not list(tmp_path.glob("*.part"))


def test_notebooks_show_the_figure_and_an_escaped_table(explained: Explanation):
    word = replace(explained.words[0], word="<b>", caption_word="<b>")
    explanation = replace(explained, tokens=('"<i>',), words=(word,))
    html = explanation._repr_html_()
    assert html.startswith('<img alt="&quot;&lt;i&gt;" src="data:image/jpeg;base64,')
    assert "&lt;b&gt;" in html
    assert "<b>" not in html
    assert f"{word.budget.image:.3f}".replace("-", "−") in html
