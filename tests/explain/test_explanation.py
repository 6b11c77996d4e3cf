"""An explanation lays its maps over the image the user gave, and comes back from disk as it was."""

from __future__ import annotations

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
from saywhy.inference.model import Model

SIZE = (150, 100)
PATCH = (80, 40, 100, 60)  # left, top, right, bottom: within the crop, away from its middle
MARGIN = 256 / 224


def model_of(fit: str = "crop", name: str = "soft-attention", regions: RegionSettings | None = None) -> Model:
    preprocessing, decoding = Preprocessing(tiny.SIDE, fit), {"beam": 2, "min_words": 3, "max_words": 5}
    return Model(SavedModel("tiny", tiny.opinionated(name), tiny.vocabulary(), preprocessing, decoding, regions))


@pytest.fixture(scope="module")
def cropping() -> Model:
    return model_of("crop")


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A patch of noise on the encoder's mean colour, which is 0 to it: there, `gradient-input` has nothing to say."""
    mean = np.array(tiny.encoder().settings.convention.mean)
    pixels = np.tile(np.rint(mean).astype(np.uint8), (SIZE[1], SIZE[0], 1))
    left, top, right, bottom = PATCH
    pixels[top:bottom, left:right] = np.random.default_rng(0).integers(0, 2, (bottom - top, right - left, 3)) * 255
    path = tmp_path_factory.mktemp("images") / "patch.png"
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def explained(cropping: Model, looked_at: Path) -> Explanation:
    return cropping.explain(looked_at)


def weight_in(values: np.ndarray, box: tuple[float, ...]) -> float:
    """How much of a map lies in a box."""
    left, top, right, bottom = (round(each) for each in box)
    return float(np.abs(values[top:bottom, left:right]).sum() / np.abs(values).sum())


def hot(explanation: Explanation, row: int, column: int) -> Explanation:
    """The same, with one pixel of the encoder's square alight."""
    values = np.zeros((1, explanation.seen, explanation.seen), np.float32)
    values[0, row, column] = 1.0
    return replace(explanation, maps={"lrp": values})


def centre(values: np.ndarray) -> tuple[float, float]:
    """Where the weight of a map lies, across and down."""
    down, across = (np.arange(length) + 0.5 for length in values.shape)
    return float((values.sum(axis=0) * across).sum() / values.sum()), float(
        (values.sum(axis=1) * down).sum() / values.sum()
    )


def test_it_tells_of_the_caption_the_image_and_the_model(explained: Explanation, cropping: Model, looked_at: Path):
    assert explained.tokens == cropping.caption(looked_at).words
    assert explained.caption == " ".join(explained.tokens)
    assert [word.word for word in explained.words] == [word.said for word in explained.words] == [*explained.tokens]
    assert [word.position for word in explained.words] == [*range(len(explained.tokens))]
    assert (explained.source, explained.model, explained.size) == (str(looked_at), "tiny", SIZE)
    assert (explained.methods, explained.composite) == (METHODS, "epsilon-plus")
    assert explained.budget == [word.budget for word in explained.words]
    assert saywhy.Explanation is Explanation


def test_every_weight_of_an_earlier_word_has_its_word(explained: Explanation):
    for word in explained.words:
        assert set(word.earlier) == set(METHODS) - {"attention"}, "attention weighs no words"
        assert {len(weights) for weights in word.earlier.values()} == {word.position}
        assert sum(word.earlier["lrp"]) == pytest.approx(word.budget.words, abs=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_map_has_the_images_own_size_or_the_one_asked_for(explained: Explanation, method: str):
    values = explained.map(1, method)
    assert values.shape == (SIZE[1], SIZE[0])
    assert np.isfinite(values).all()
    assert values.any()
    assert explained.map(1, method, size=(75, 50)).shape == (50, 75)


@pytest.mark.parametrize("method", METHODS)
def test_what_a_crop_cut_away_has_no_weight(explained: Explanation, method: str):
    side = SIZE[1] / MARGIN
    assert explained.region == pytest.approx(((150 - side) / 2, (100 - side) / 2, (150 + side) / 2, (100 + side) / 2))
    for size in (SIZE, (300, 200)):
        seen = tuple(np.array(explained.region) * size[0] / SIZE[0])
        assert weight_in(explained.map(0, method, size=size), seen) == pytest.approx(1)


@pytest.mark.parametrize("fit", ["crop", "squash"])
@pytest.mark.parametrize("size", [SIZE, (100, 150), (1500, 1000), (40, 30)])
def test_a_pixel_of_the_encoders_square_lands_where_it_was_cut_from(cropping: Model, fit: str, size: tuple[int, int]):
    model = cropping if fit == "crop" else model_of(fit)
    explanation = model.explain(Image.new("RGB", size, "green"), methods=["attention"])
    side = min(size) / MARGIN
    cut = size if fit == "squash" else (side, side)
    for row, column in ((30, 10), (50, 33)):
        x, y = centre(hot(explanation, row, column).map(0, "lrp"))
        assert x == pytest.approx((size[0] - cut[0]) / 2 + (column + 0.5) * cut[0] / tiny.SIDE, abs=1)
        assert y == pytest.approx((size[1] - cut[1]) / 2 + (row + 0.5) * cut[1] / tiny.SIDE, abs=1)


@pytest.mark.parametrize("fit", ["crop", "squash"])
def test_the_map_lies_on_what_there_is_to_see(looked_at: Path, fit: str):
    explanation = model_of(fit).explain(looked_at, methods=["gradient-input"])
    left, top, right, bottom = PATCH
    near = (left - 2, top - 2, right + 2, bottom + 2)
    for i in range(len(explanation.words)):
        assert weight_in(explanation.map(i, "gradient-input"), near) > 0.6


@pytest.mark.parametrize("orientation", [2, 3, 6, 8])
def test_a_photograph_that_was_turned_is_explained_upright(
    cropping: Model, looked_at: Path, tmp_path: Path, orientation: int
):
    turned, exif = tmp_path / "turned.jpg", Image.Exif()
    exif[0x0112] = orientation
    undone = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        6: Image.Transpose.ROTATE_90,
        8: Image.Transpose.ROTATE_270,
    }
    with Image.open(looked_at) as upright:
        upright.transpose(undone[orientation]).save(turned, exif=exif, quality=100, subsampling=0)
    explanation = cropping.explain(turned, methods=["gradient-input"])
    assert explanation.size == SIZE
    assert explanation.image is not None
    assert explanation.image.size == SIZE
    left, top, right, bottom = PATCH
    assert weight_in(explanation.map(0, "gradient-input"), (left - 2, top - 2, right + 2, bottom + 2)) > 0.6


def test_heads_of_attention_are_shown_each_or_as_their_mean(looked_at: Path):
    explanation = model_of(name="mh-fc").explain(looked_at, methods=["attention"])
    heads = explanation.maps["attention"].shape[1]
    assert heads > 1
    each = [explanation.map(0, "attention", head=head) for head in range(heads)]
    assert not np.allclose(each[0], each[1])
    np.testing.assert_allclose(explanation.map(0, "attention"), np.mean(each, axis=0), atol=1e-6)


@pytest.fixture(scope="module")
def of_boxes(looked_at: Path, tmp_path_factory: pytest.TempPathFactory) -> Explanation:
    """Two boxes, one of which the crop cuts, and the whole."""
    table = tmp_path_factory.mktemp("regions") / "boxes.jsonl"
    phrases = [{"boxes": [[80, 40, 100, 60], [0, 10, 60, 90]]}]
    table.write_text(json.dumps({"image": looked_at.name, "width": 150, "height": 100, "phrases": phrases}))
    return model_of(regions=RegionSettings("boxes", 6)).explain(looked_at, regions=table)


def test_of_regions_only_those_there_are_have_maps(of_boxes: Explanation):
    assert of_boxes.boxes is not None
    assert of_boxes.grid is None
    assert len(of_boxes.boxes) == 3
    for method in ("attention", "gradcam"):
        assert of_boxes.maps[method].shape[-1] == 3
    assert of_boxes.maps["lrp"].shape[1:] == (tiny.SIDE, tiny.SIDE), "boxes are cut out of a map of pixels"


def test_a_box_spreads_its_value_over_the_place_it_has_on_the_image(of_boxes: Explanation):
    assert of_boxes.boxes is not None
    values = np.zeros((1, 3), np.float32)
    values[0, of_boxes.boxes[:, 0].argmax()] = 5.0  # the patch is the rightmost of them
    shown = replace(of_boxes, maps={"attention": values}).map(0, "attention")
    assert shown.sum() == pytest.approx(5.0, rel=1e-5)
    assert weight_in(shown, PATCH) == pytest.approx(1.0, abs=0.02)
    assert len(np.unique(shown[45:55, 85:95])) == 1
    total = of_boxes.map(0, "attention").sum()
    assert total == pytest.approx(of_boxes.maps["attention"][0].sum(), rel=1e-4)


def test_given_features_are_explained_over_their_boxes(looked_at: Path, tmp_path: Path):
    from saywhy import encoders
    from saywhy.captioners import build

    np.savez(
        tmp_path / f"{looked_at.stem}.npz",
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
    explanation = Model(saved).explain(looked_at, regions=tmp_path)
    word = explanation.words[0]
    assert word.pixels is None
    for method in METHODS:
        left, right = explanation.map(0, method)[:, :75], explanation.map(0, method)[:, 75:]
        np.testing.assert_allclose([left.sum(), right.sum()], explanation.maps[method][0], rtol=1e-3, atol=1e-6)
    assert explanation.map(0, "lrp").sum() == pytest.approx(word.budget.image, abs=1e-4)


def test_an_unknown_or_absent_method_is_answered_with_those_there_are(explained: Explanation):
    with pytest.raises(UserError, match="no map by 'gradcamm' was made: did you mean \"gradcam\""):
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
def test_the_images_share_is_of_the_evidence_and_not_of_what_was_absorbed(budget: Budget, share: float):
    assert budget.share == share


def test_the_budget_adds_up_to_the_logit_and_pixels_to_what_the_encoder_left(explained: Explanation):
    for word in explained.words:
        assert word.budget.total == pytest.approx(word.logit, abs=1e-3 * max(1, abs(word.logit)))
        assert word.pixels is not None
        assert word.pixels + word.absorbed_by_encoder == pytest.approx(word.budget.image, abs=1e-3)
        assert explained.maps["lrp"][word.position].sum() == pytest.approx(word.pixels, abs=1e-4)


@pytest.mark.parametrize("kind", ["explained", "of_boxes"])
def test_what_was_saved_is_loaded_the_same(kind: str, request: pytest.FixtureRequest, tmp_path: Path):
    explanation: Explanation = request.getfixturevalue(kind)
    explanation.save(tmp_path / "why")
    loaded = saywhy.Explanation.load(tmp_path / "why")
    assert loaded.as_dict() == explanation.as_dict()
    assert loaded.words == explanation.words
    assert (loaded.tokens, loaded.grid, loaded.region) == (explanation.tokens, explanation.grid, explanation.region)
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
    assert np.abs(difference).mean() < 8, "the image is kept as a JPEG"


def test_what_was_loaded_is_saved_again_and_shown(explained: Explanation, tmp_path: Path):
    explained.save(tmp_path / "why")
    loaded = Explanation.load(tmp_path / "why")
    loaded.save(tmp_path / "again")
    names = ["explanation.json", "maps.npz", "report.html", "words.png"]
    for folder in ("why", "again"):
        assert sorted(path.name for path in (tmp_path / folder).iterdir()) == names
    texts = [(tmp_path / folder / "explanation.json").read_text() for folder in ("why", "again")]
    assert texts[0] == texts[1]
    assert loaded.show("gradcam").size == explained.show("gradcam").size


def test_a_image_without_a_name_is_explained_and_saved(cropping: Model, tmp_path: Path):
    explanation = cropping.explain(Image.new("RGB", SIZE, "green"), methods=["gradcam"])
    assert explanation.source == ""
    explanation.save(tmp_path)
    assert Explanation.load(tmp_path).methods == ("gradcam",)


def test_large_images_are_kept_small_and_their_maps_are_large(cropping: Model):
    explanation = cropping.explain(Image.new("RGB", (3000, 2000), "green"), methods=["attention"])
    assert explanation.image is not None
    assert explanation.image.size == (1024, 683)
    assert explanation.map(0, "attention").shape == (2000, 3000)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("explanation.json", b"{"),
        ("explanation.json", b"[]"),
        ("explanation.json", b"{}"),
        ("explanation.json", b"\xff\xfe"),
        ("explanation.json", b'{"words": [{"word": 1}]}'),
        ("maps.npz", b""),
        ("maps.npz", b"PK\x03\x04 no archive"),
        ("maps.npz", b"no archive"),
    ],
)
def test_a_folder_that_holds_something_else_is_no_explanation(
    explained: Explanation, tmp_path: Path, file: str, content: bytes
):
    explained.save(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError, match=f"^{tmp_path}: not an explanation that saywhy saved"):
        Explanation.load(tmp_path)


@pytest.mark.parametrize("missing", ["explanation.json", "maps.npz"])
def test_a_folder_that_lacks_a_file_is_no_explanation(explained: Explanation, tmp_path: Path, missing: str):
    explained.save(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(UserError, match=rf"^{tmp_path}: no explanation that saywhy saved \(.*{missing} is missing\)"):
        Explanation.load(tmp_path)
