"""Localisation with planted boxes and maps, and compared with loops over pixels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import audit_data
from reference import audits as reference
from saywhy.audits.context import NotApplicable
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.localisation import MAPS, Localisation, centre_map, map_scores, wrong_word_scores
from saywhy.audits.object_boxes import Box, box_mask, object_boxes, points, shares
from saywhy.data.phrases import Phrases
from saywhy.data.preprocess import Preprocessing, upsample_grid
from saywhy.explain.methods import METHODS

SIDE = 61.25  # of the crop of an image of 90 × 70 pixels, which starts at (14.375, 4.375)
PREPROCESSING = {
    "crop": Preprocessing(64),
    "crop without margin": Preprocessing(64, margin=1),
    "squash": Preprocessing(64, "squash"),
}
run = Localisation().run


@pytest.fixture(params=PREPROCESSING)
def preprocessing(request: pytest.FixtureRequest) -> Preprocessing:
    return PREPROCESSING[request.param]


def random_boxes(seed: int, count: int) -> np.ndarray:
    corners = np.random.default_rng(seed).random((count, 2, 2)).astype(np.float32)
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)  # (n, 4)


@pytest.mark.parametrize("size", [(500, 333), (200, 417), (64, 64)])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_mask_contains_the_pixels_whose_centres_lie_in_a_box(preprocessing, size, count):
    boxes = random_boxes(7, count)
    mask = box_mask(boxes, size, preprocessing, 23)
    assert mask.dtype == bool
    assert mask.any()
    np.testing.assert_array_equal(mask, reference.box_mask(boxes, size, preprocessing.crop(*size), 23))


def test_a_mask_covers_what_is_painted_in_its_boxes(preprocessing):
    pixels = np.zeros((200, 300, 3), np.uint8)
    pixels[60:100, 120:210] = pixels[90:160, 60:140] = 255
    painted = preprocessing(Image.fromarray(pixels))[0] > 127
    boxes = np.array([[120, 60, 210, 100], [60, 90, 140, 160]]) / [300, 200, 300, 200]
    assert (box_mask(boxes, (300, 200), preprocessing, 64) != painted).mean() < 0.01


def test_a_box_of_the_whole_image_has_every_pixel_and_no_box_has_none(preprocessing):
    assert box_mask(np.array([[0, 0, 1, 1]], np.float32), (300, 200), preprocessing, 9).all()
    assert not box_mask(np.zeros((0, 4), np.float32), (300, 200), preprocessing, 9).any()


def test_a_box_outside_the_crop_has_no_pixel():
    edge = np.array([[0, 0, 0.1, 1]])
    assert not box_mask(edge, (300, 200), Preprocessing(64), 64).any()
    assert box_mask(edge, (300, 200), Preprocessing(64, "squash"), 64).mean() == pytest.approx(0.1, abs=0.01)


@pytest.mark.filterwarnings("error")
def test_shares_and_points_equal_loops_over_pixels():
    rng = np.random.default_rng(0)
    maps = rng.integers(-3, 4, size=(2, 3, 6, 6)).astype(float)  # with ties
    masks = rng.random((2, 3, 6, 6)) < 0.4
    for mask in (masks[0, 0], masks):
        inside, hits = shares(maps, mask), points(maps, mask)
        assert hits.shape == inside.positive.shape == inside.negative.shape == (2, 3)
        assert hits.dtype == bool
        for row in np.ndindex(2, 3):
            row_mask = mask[row] if mask.ndim == 4 else mask
            expected = reference.shares(maps[row], row_mask)
            np.testing.assert_allclose([inside.positive[row], inside.negative[row]], expected, rtol=1e-12)
            assert hits[row] == reference.points(maps[row], row_mask)


@pytest.mark.filterwarnings("error")
def test_the_share_of_an_absent_sign_is_nan():
    inside = shares(np.stack([np.ones((2, 2)), -np.ones((2, 2)), np.zeros((2, 2))]), np.eye(2, dtype=bool))
    np.testing.assert_array_equal(inside.positive, [0.5, np.nan, np.nan])
    np.testing.assert_array_equal(inside.negative, [np.nan, 0.5, np.nan])


def test_the_share_of_a_constant_map_is_the_area_of_the_mask():
    mask = box_mask(random_boxes(0, 3), (300, 200), Preprocessing(64), 50)
    assert float(shares(np.full((50, 50), 1e-30, np.float32), mask).positive) == pytest.approx(mask.mean())


def test_a_constant_map_points_at_random_for_either_sign():
    mask = np.zeros((8, 8), bool)
    mask[:2, :4] = True
    positive, negative = map_scores(np.stack([np.full((8, 8), 3.0), np.full((8, 8), -3.0)]), mask)
    assert positive[2] == mask.mean() == 0.125
    assert negative[3] == mask.mean()


def write_phrases(folder: Path, **by_image: list[tuple[str, list[list[float]]]]) -> Phrases:
    """Phrases with boxes in pixels, by the colour of an image."""
    rows = [
        {
            **{"image": f"{name}.png", "width": 90, "height": 70},
            "phrases": [{"phrase": text, "type": "animals", "boxes": boxes} for text, boxes in phrases],
        }
        for name, phrases in by_image.items()
    ]
    path = folder / "boxes.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return Phrases(path)


def boxes_by_lemma(evidence: EvidenceSet, phrases: Phrases, colour: str) -> dict[str, Box]:
    """The boxes of the object words of an image's caption."""
    image = next(image for image in evidence.images if image.name == f"{colour}.png")
    caption = evidence.load(image)
    boxes = object_boxes(replace(evidence.context, phrases=phrases), image, caption)
    return {str(caption.lemmas[j]): box for j, box in boxes.items()}


def slow_mask(boxes: list[list[float]]) -> np.ndarray:
    as_shares = [[left / 90, top / 70, right / 90, bottom / 70] for left, top, right, bottom in boxes]
    crop = (14.375, 4.375, 14.375 + SIDE, 4.375 + SIDE)
    return np.array(reference.box_mask(as_shares, (90, 70), crop, 64))


def test_the_captions_name_the_objects_of_these_tests(soft):
    lemmas = {image.name: {*map(str, caption.lemmas)} for image, caption in soft}
    assert lemmas["grey.png"] == {"dog", "man"}
    assert lemmas["pink.png"] == {"man", "puppy", "dog"}


def test_a_word_has_the_boxes_of_all_phrases_about_its_object(soft, tmp_path):
    first, second = [[20, 10, 40, 30], [60, 50, 70, 60]], [[30, 20, 55, 45]]
    phrases = write_phrases(
        tmp_path, grey=[("a brown dog", first), ("two dogs", second), ("a red ball", [[0, 0, 90, 70]])]
    )
    boxes = boxes_by_lemma(soft, phrases, "grey")
    assert boxes.keys() == {"dog"}
    np.testing.assert_array_equal(boxes["dog"].mask, slow_mask(first + second))


def test_a_word_has_the_boxes_of_synonyms_and_narrower_words_but_not_of_wider_ones(soft, tmp_path):
    puppy, person = [[20, 10, 40, 30]], [[50, 10, 70, 60]]
    boxes = boxes_by_lemma(soft, write_phrases(tmp_path, pink=[("a puppy", puppy), ("a person", person)]), "pink")
    assert boxes.keys() == {"dog", "puppy"}
    np.testing.assert_array_equal(boxes["dog"].mask, slow_mask(puppy))
    boxes = boxes_by_lemma(soft, write_phrases(tmp_path, pink=[("a dog", puppy), ("a guy", person)]), "pink")
    assert boxes.keys() == {"dog", "man"}
    np.testing.assert_array_equal(boxes["man"].mask, slow_mask(person))


@pytest.mark.parametrize("text", ["the dog 's mouth", "the dog's ball", "a dog toy", "the owner of the dog 's car"])
def test_a_phrase_is_not_about_an_object_that_it_names_before_another(soft, tmp_path, text):
    assert boxes_by_lemma(soft, write_phrases(tmp_path, grey=[(text, [[20, 10, 40, 30]])]), "grey") == {}


def test_a_phrase_is_about_the_last_object_that_it_names(soft, tmp_path):
    boxes = boxes_by_lemma(soft, write_phrases(tmp_path, grey=[("the man 's dog", [[20, 10, 40, 30]])]), "grey")
    assert boxes.keys() == {"dog"}


def test_boxes_outside_the_crop_do_not_count(soft, tmp_path):
    assert boxes_by_lemma(soft, write_phrases(tmp_path, grey=[("a dog", [[0, 0, 10, 70]])]), "grey") == {}


def test_the_kind_of_an_object_is_that_of_most_of_its_phrases(soft, tmp_path):
    corners = [[20, 10, 40, 30]]
    phrases = write_phrases(tmp_path, grey=[("a dog", corners), ("the dog", corners), ("dogs", corners)])
    phrases.path.write_text(phrases.path.read_text().replace('"animals"', '"other"', 1))
    assert boxes_by_lemma(soft, Phrases(phrases.path), "grey")["dog"].kind == "animals"


class PlantedMaps(EvidenceSet):
    """Evidence with these maps."""

    planted: dict[str, np.ndarray]

    def load(self, image) -> ImageEvidence:
        caption = super().load(image)
        ones = np.ones((64, 64))
        maps = {method: np.stack([self.planted.get(method, ones)] * len(caption.objects)) for method in METHODS}
        return replace(caption, maps=maps)


def test_a_map_inside_scores_one_outside_zero_and_a_constant_one_the_area(soft, tmp_path):
    corners = [[30.0, 20.0, 60.0, 50.0]]
    phrases = write_phrases(tmp_path, **{colour: [("a dog", corners)] for colour in ("grey", "pink", "gold")})
    context = replace(soft.context, phrases=phrases)
    inside = slow_mask(corners)
    evidence = PlantedMaps(soft.context)
    peak = -1.0 * ~inside
    peak[tuple(np.argwhere(inside)[0])] = 2.0
    evidence.planted = {
        "lrp": 1.0 * inside,
        "gradcam": 1.0 * ~inside,
        "guided-gradcam": peak,
        "attention": np.ones((64, 64)),
    }
    body = run(context, evidence)
    values = {
        method: {key: estimate["value"] for key, estimate in scores.items() if key != "wrong_word"}
        for method, scores in body["methods"].items()
    }
    area = pytest.approx(inside.mean())
    assert values["lrp"] == {"positive": 1, "negative": None, "pointing": 1, "pointing_negative": None}
    assert values["gradcam"] == {"positive": 0, "negative": None, "pointing": 0, "pointing_negative": None}
    assert values["guided-gradcam"] == {"positive": 1, "negative": 0, "pointing": 1, "pointing_negative": 0}
    assert values["uniform"] == values["attention"]
    assert values["uniform"] == {"positive": area, "negative": None, "pointing": area, "pointing_negative": None}
    assert body["words"] == 7  # five dogs in grey, one each in pink and gold
    assert body["skipped"] == {"no reference phrase with boxes names it": 3}
    holds = {check["claim"]: check["holds"] for check in body["checks"]}
    assert holds["lrp lies inside the boxes more than the uniform map"] is True
    assert holds["gradcam lies inside the boxes more than the uniform map"] is False
    assert holds["attention lies inside the boxes more than the uniform map"] is None
    assert holds["lrp lies inside the boxes more than attention"] is True


def test_scores_of_real_maps_equal_loops_over_pixels(soft, tmp_path):
    corners = [[30, 20, 60, 50]]
    context = replace(soft.context, phrases=write_phrases(tmp_path, pink=[("a dog", corners), ("a man", corners)]))
    body = run(context, soft)
    image = next(image for image in soft.images if image.name == "pink.png")
    caption, mask = soft.load(image), slow_mask(corners).tolist()
    assert body["words"] == 2
    expected: dict[str, list[Any]] = {method: [] for method in METHODS}
    for j, lemma in enumerate(caption.lemmas):
        if lemma == "puppy":
            continue
        for method in METHODS:
            E = caption.maps[method][j].astype(float)
            inside = reference.shares(E.tolist(), mask)
            hits = [reference.points((sign * E).tolist(), mask) for sign in (1, -1)]
            pointing = [np.nan if np.isnan(share) else hit for share, hit in zip(inside, hits, strict=True)]
            expected[method].append([*inside, *pointing])
    for method in METHODS:
        means = [estimate["value"] for estimate in list(body["methods"][method].values())[:4]]
        columns = zip(*expected[method], strict=True)
        slow = [None if np.isnan(column).all() else np.nanmean(column) for column in columns]
        assert means == [None if mean is None else pytest.approx(mean, abs=1e-6) for mean in slow], method


def test_the_wrong_word_is_the_mean_of_the_maps_of_other_objects_in_the_same_boxes(soft):
    caption = soft.load(next(image for image in soft.images if image.name == "pink.png"))
    mask = slow_mask([[30, 20, 60, 50]])
    for j, lemma in enumerate(caption.lemmas):
        others = [o for o, other in enumerate(caption.lemmas) if other != lemma]
        scores = wrong_word_scores(caption, j, mask)
        for m, method in enumerate(METHODS):
            inside = [reference.shares(caption.maps[method][o].tolist(), mask.tolist())[0] for o in others]
            assert scores[m] == pytest.approx(np.nanmean(inside), nan_ok=True)
        assert np.isnan(scores[len(METHODS) :]).all(), "baselines do not depend on the word"


def test_the_centre_is_highest_in_the_middle_and_equal_on_all_sides():
    values = centre_map(8)
    assert np.unravel_index(values.argmax(), values.shape) == (3, 3)
    np.testing.assert_allclose(values, values[::-1, ::-1].T)
    assert values[3, 3] / values[3, 0] == pytest.approx(np.exp(0.5 * ((3.5 / 8) ** 2 - (0.5 / 8) ** 2) / 0.25**2))


def test_words_are_grouped_by_the_area_of_their_boxes_and_by_kind(soft, tmp_path):
    small, half = [[40, 30, 44, 34]], [[14.375, 4.375, 14.375 + SIDE, 35]]
    context = replace(soft.context, phrases=write_phrases(tmp_path, grey=[("a dog", small)], gold=[("a dog", half)]))
    body = run(context, soft)
    assert {name: group["words"] for name, group in body["by_size"].items()} == {"under 5 %": 5, "over 40 %": 1}
    assert body["by_size"]["over 40 %"]["area"]["value"] == pytest.approx(0.5, abs=0.01)
    assert body["by_size"]["over 40 %"]["methods"]["uniform"]["value"] == pytest.approx(0.5, abs=0.01)
    assert {name: group["words"] for name, group in body["by_kind"].items()} == {"animals": 6}
    assert list(body["by_size"]["under 5 %"]["methods"]) == list(MAPS)


def test_the_best_head_is_at_least_the_mean_of_the_heads(evidence_of):
    evidence = evidence_of("mh-fc")
    body = run(evidence.context, evidence)
    heads = body["heads"]
    assert (heads["words"], heads["heads"]) == (body["words"], 8)
    for method, scores in heads["methods"].items():
        assert scores["best"]["value"] >= scores["mean"]["value"] > 0, method
        assert scores["all"]["value"] == pytest.approx(body["methods"][method]["positive"]["value"])
    # Attention of all heads is the mean of the heads, and all have the sum 1: so the mean of the shares is its share.
    attention = heads["methods"]["attention"]
    assert attention["mean"]["value"] == pytest.approx(attention["all"]["value"], abs=1e-3)
    assert heads["methods"]["lrp"]["best"]["value"] > heads["methods"]["lrp"]["mean"]["value"]


def test_shares_of_a_head_are_those_of_model_explain_with_the_head_isolated(evidence_of):
    evidence = evidence_of("mh-fc")
    context = evidence.context
    run(context, evidence)
    located = ((image, object_boxes(context, image, evidence.load(image))) for image in evidence.images)
    image, boxes = next((image, boxes) for image, boxes in located if boxes)
    caption, positive = evidence.load(image), audit_data.cached(context, "heads", image)["positive"]
    assert positive.shape == (len(boxes), 8, len(METHODS))
    with context.captioner.isolate_head(5):
        explanation = context.model.explain(image.path, methods=["lrp", "gradcam"])
    for row, (j, (mask, _)) in enumerate(boxes.items()):
        position = int(caption.objects[j])
        lrp = reference.shares(explanation.maps["lrp"][position].astype(float).tolist(), mask.tolist())[0]
        np.testing.assert_allclose(positive[row, 5, METHODS.index("lrp")], lrp, atol=1e-4)
        cam = upsample_grid(explanation.maps["gradcam"][position].reshape(explanation.grid), 64).astype(float)
        share = reference.shares(cam.tolist(), mask.tolist())[0]
        np.testing.assert_allclose(positive[row, 5, METHODS.index("gradcam")], share, atol=1e-4)
    lrp = positive[:, :, METHODS.index("lrp")]
    assert (~np.isnan(lrp)).sum(axis=1).min() > 1
    assert (np.nanmax(lrp, axis=1) - np.nanmin(lrp, axis=1)).min() > 1e-3, "heads differ"


def test_captioners_with_one_head_have_no_results_by_head(soft):
    assert run(soft.context, soft)["heads"] is None


def test_without_boxes_or_matching_phrases_it_is_not_applicable(soft, tmp_path):
    with pytest.raises(NotApplicable, match=r"has no boxes: put boxes.jsonl.gz"):
        run(replace(soft.context, phrases=None), soft)
    phrases = write_phrases(tmp_path, grey=[("a boat", [[1, 1, 50, 50]])])
    with pytest.raises(NotApplicable, match=r"no phrase with boxes names an object word of the 3 captions"):
        run(replace(soft.context, phrases=phrases), soft)
