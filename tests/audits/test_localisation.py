"""Localisation on planted boxes and maps, and against loops over pixels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import audit_data
from reference import audits as reference
from saywhy.audits import localisation
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.localisation import MAPPED, located
from saywhy.audits.localisation import localisation as audit
from saywhy.audits.results import NotApplicable
from saywhy.data.phrases import Phrases
from saywhy.explain.methods import METHODS

SQUARE = 61.25  # pixels of an image of 90 × 70 that the encoder sees, from (14.375, 4.375) on


def phrases(folder: Path, **told: list[tuple[str, list[list[float]]]]) -> Phrases:
    """Phrases with boxes in pixels, by the colour of an image."""
    rows = [
        {
            **{"image": f"{name}.png", "width": 90, "height": 70},
            "phrases": [{"phrase": text, "type": "animals", "boxes": boxes} for text, boxes in of],
        }
        for name, of in told.items()
    ]
    path = folder / "boxes.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    return Phrases(path)


def masks(cases: EvidenceSet, told: Phrases, colour: str) -> dict[str, tuple[np.ndarray, str]]:
    """By lemma, the pixels in the boxes of the words of an image's caption."""
    bench = replace(cases.bench, phrases=told)
    image = next(each for each in cases.images if each.name == f"{colour}.png")
    case = cases.of(image)
    found = localisation._Located(bench, cases).masks(image, case)
    return {str(case.lemmas[j]): each for j, each in found.items()}


def lemmas(cases: EvidenceSet, colour: str) -> set[str]:
    return next({*map(str, case.lemmas)} for image, case in cases if image.name == f"{colour}.png")


def by_loops(boxes: list[list[float]]) -> np.ndarray:
    where = [[left / 90, top / 70, right / 90, bottom / 70] for left, top, right, bottom in boxes]
    return np.array(reference.box_mask(where, (90, 70), (14.375, 4.375, 14.375 + SQUARE, 4.375 + SQUARE), 64))


def test_the_captions_name_what_these_tests_are_about(soft):
    assert lemmas(soft, "grey") == {"dog", "man"}
    assert lemmas(soft, "pink") == {"man", "puppy", "dog"}


def test_a_word_has_the_boxes_of_all_phrases_that_name_it_together(soft, tmp_path):
    one, other = [[20, 10, 40, 30], [60, 50, 70, 60]], [[30, 20, 55, 45]]
    told = phrases(tmp_path, grey=[("a brown dog", one), ("two dogs", other), ("a red ball", [[0, 0, 90, 70]])])
    found = masks(soft, told, "grey")
    assert found.keys() == {"dog"}
    np.testing.assert_array_equal(found["dog"][0], by_loops(one + other))


def test_narrower_words_and_synonyms_are_boxes_of_a_word_and_wider_ones_are_not(soft, tmp_path):
    puppy, person = [[20, 10, 40, 30]], [[50, 10, 70, 60]]
    found = masks(soft, phrases(tmp_path, pink=[("a puppy", puppy), ("a person", person)]), "pink")
    assert found.keys() == {"dog", "puppy"}
    np.testing.assert_array_equal(found["dog"][0], by_loops(puppy))
    of_dog = masks(soft, phrases(tmp_path, pink=[("a dog", puppy), ("a guy", person)]), "pink")
    assert of_dog.keys() == {"dog", "man"}
    np.testing.assert_array_equal(of_dog["man"][0], by_loops(person))


@pytest.mark.parametrize("phrase", ["the dog 's mouth", "the dog's ball", "a dog toy", "the owner of the dog 's car"])
def test_a_phrase_belongs_to_the_last_thing_it_names(soft, tmp_path, phrase):
    assert masks(soft, phrases(tmp_path, grey=[(phrase, [[20, 10, 40, 30]])]), "grey") == {}


def test_the_last_thing_of_a_phrase_may_come_after_others(soft, tmp_path):
    found = masks(soft, phrases(tmp_path, grey=[("the man 's dog", [[20, 10, 40, 30]])]), "grey")
    assert found.keys() == {"dog"}


def test_boxes_that_the_crop_cut_away_are_none(soft, tmp_path):
    assert masks(soft, phrases(tmp_path, grey=[("a dog", [[0, 0, 10, 70]])]), "grey") == {}


def test_the_kind_is_that_of_most_of_its_phrases(soft, tmp_path):
    box = [[20, 10, 40, 30]]
    told = phrases(tmp_path, grey=[("a dog", box), ("the dog", box), ("dogs", box)])
    text = told.path.read_text().replace('"animals"', '"other"', 1)
    told.path.write_text(text)
    assert masks(soft, Phrases(told.path), "grey")["dog"][1] == "animals"


class Planted(EvidenceSet):
    """EvidenceSet whose maps are these."""

    planted: dict[str, np.ndarray]

    def of(self, image) -> ImageEvidence:
        case = super().of(image)
        maps = {m: np.stack([self.planted.get(m, np.ones((64, 64)))] * len(case.objects)) for m in METHODS}
        return replace(case, maps=maps)


def test_a_map_inside_scores_one_one_outside_none_and_an_even_one_the_area(soft, tmp_path):
    boxes = [[30.0, 20.0, 60.0, 50.0]]
    bench = replace(soft.bench, phrases=phrases(tmp_path, **{c: [("a dog", boxes)] for c in ("grey", "pink", "gold")}))
    inside = by_loops(boxes)
    cases = Planted(soft.bench)
    peak = -1.0 * ~inside
    peak[np.argwhere(inside)[0][0], np.argwhere(inside)[0][1]] = 2.0
    cases.planted = {
        "lrp": 1.0 * inside,
        "gradcam": 1.0 * ~inside,
        "guided-gradcam": peak,
        "attention": np.ones((64, 64)),
    }
    told = audit(bench, cases)
    values = {m: {name: each["value"] for name, each in row.items()} for m, row in told["methods"].items()}
    area = pytest.approx(inside.mean())
    assert values["lrp"] == {"positive": 1, "negative": None, "pointing": 1, "pointing_negative": None}
    assert values["gradcam"] == {"positive": 0, "negative": None, "pointing": 0, "pointing_negative": None}
    assert values["guided-gradcam"] == {"positive": 1, "negative": 0, "pointing": 1, "pointing_negative": 0}
    assert values["uniform"] == values["attention"]
    assert values["uniform"] == {"positive": area, "negative": None, "pointing": area, "pointing_negative": None}
    assert told["words"] == 7  # five dogs in grey, one each in pink and gold
    assert told["skipped"] == {"no reference phrase with boxes names it": 3}
    holds = {each["claim"]: each["holds"] for each in told["checks"]}
    assert holds["lrp lies inside the boxes more than the uniform map"] is True
    assert holds["gradcam lies inside the boxes more than the uniform map"] is False
    assert holds["attention lies inside the boxes more than the uniform map"] is None
    assert holds["lrp lies inside more than attention"] is True


def test_scores_of_real_maps_are_those_of_loops_over_pixels(soft, tmp_path):
    boxes = [[30, 20, 60, 50]]
    bench = replace(soft.bench, phrases=phrases(tmp_path, pink=[("a dog", boxes), ("a man", boxes)]))
    told = audit(bench, soft)
    image = next(each for each in soft.images if each.name == "pink.png")
    case = soft.of(image)
    assert told["words"] == 2
    wanted: dict[str, list[Any]] = {method: [] for method in METHODS}
    for j, lemma in enumerate(case.lemmas):
        if lemma != "puppy":
            for method in METHODS:
                E = case.maps[method][j].astype(float)
                shares = reference.shares(E.tolist(), by_loops(boxes).tolist())
                hits = [reference.points((sign * E).tolist(), by_loops(boxes).tolist()) for sign in (1, -1)]
                wanted[method].append(
                    [*shares, *(np.nan if np.isnan(s) else h for s, h in zip(shares, hits, strict=True))]
                )
    for method in METHODS:
        means = [each["value"] for each in told["methods"][method].values()]
        slow = [None if np.isnan(column).all() else np.nanmean(column) for column in zip(*wanted[method], strict=True)]
        assert means == [None if each is None else pytest.approx(each, abs=1e-6) for each in slow], method


def test_a_flat_map_points_by_chance_for_either_sign():
    mask = np.zeros((8, 8), bool)
    mask[:2, :4] = True
    up, down = located(np.stack([np.full((8, 8), 3.0), np.full((8, 8), -3.0)]), mask)
    assert up[2] == mask.mean() == 0.125
    assert down[3] == mask.mean()


def test_words_are_told_by_the_size_and_kind_of_their_boxes(soft, tmp_path):
    tiny_box, half = [[40, 30, 44, 34]], [[14.375, 4.375, 14.375 + SQUARE, 35]]
    bench = replace(soft.bench, phrases=phrases(tmp_path, grey=[("a dog", tiny_box)], gold=[("a dog", half)]))
    told = audit(bench, soft)
    assert {name: each["words"] for name, each in told["by_size"].items()} == {"under 5 %": 5, "over 40 %": 1}
    assert told["by_size"]["over 40 %"]["area"]["value"] == pytest.approx(0.5, abs=0.01)
    assert told["by_size"]["over 40 %"]["methods"]["uniform"]["value"] == pytest.approx(0.5, abs=0.01)
    assert {name: each["words"] for name, each in told["by_kind"].items()} == {"animals": 6}
    assert list(told["by_size"]["under 5 %"]["methods"]) == list(MAPPED)


def test_the_best_head_is_no_worse_than_the_mean_and_attention_of_a_head_is_its_own(heard, tmp_path):
    cases = heard("mh-fc")
    told = audit(cases.bench, cases)
    heads = told["heads"]
    assert (heads["words"], heads["heads"]) == (told["words"], 8)
    for method, row in heads["methods"].items():
        assert row["best"]["value"] >= row["mean"]["value"] > 0, method
        assert row["all"]["value"] == pytest.approx(told["methods"][method]["positive"]["value"])
    # attention of all heads is their mean: of positive maps of one sum, the mean of shares is the share of the mean
    assert heads["methods"]["attention"]["mean"]["value"] == pytest.approx(
        heads["methods"]["attention"]["all"]["value"], abs=1e-3
    )
    assert heads["methods"]["lrp"]["best"]["value"] > heads["methods"]["lrp"]["mean"]["value"]


def test_hearing_a_head_is_explaining_with_that_head_alone(heard):
    """ResultCache shares of one image, method by method, against `Model.explain` while a head is heard."""
    from saywhy.data.preprocess import enlarged

    cases = heard("mh-fc")
    audit(cases.bench, cases)
    where = localisation._Located(cases.bench, cases)
    image, masks = next((each, found) for each in cases.images if (found := where.masks(each, cases.of(each))))
    case, found = cases.of(image), audit_data.kept(cases.bench, "heads", image)["positive"]
    assert found.shape == (len(masks), 8, len(METHODS))
    with cases.bench.captioner.isolate_head(5):
        why = cases.bench.model.explain(image.path, methods=["lrp", "gradcam"])
    for row, (j, (mask, _)) in enumerate(masks.items()):
        place = int(case.objects[j])
        lrp = reference.shares(why.maps["lrp"][place].astype(float).tolist(), mask.tolist())[0]
        np.testing.assert_allclose(found[row, 5, METHODS.index("lrp")], lrp, atol=1e-4)
        cam = enlarged(why.maps["gradcam"][place].reshape(why.grid), 64).astype(float)
        share = reference.shares(cam.tolist(), mask.tolist())[0]
        np.testing.assert_allclose(found[row, 5, METHODS.index("gradcam")], share, atol=1e-4)
    of_lrp = found[:, :, METHODS.index("lrp")]
    assert (~np.isnan(of_lrp)).sum(axis=1).min() > 1
    assert (np.nanmax(of_lrp, axis=1) - np.nanmin(of_lrp, axis=1)).min() > 1e-3, "heads differ"


def test_captioners_of_one_head_have_no_heads_to_tell_of(soft):
    assert audit(soft.bench, soft)["heads"] is None


def test_without_boxes_or_without_their_words_it_is_left_out_with_a_reason(soft, tmp_path):
    with pytest.raises(NotApplicable, match=r"has no boxes: put boxes.jsonl.gz beside"):
        audit(replace(soft.bench, phrases=None), soft)
    with pytest.raises(NotApplicable, match=r"no phrase with boxes names an object word of the 3 captions"):
        audit(replace(soft.bench, phrases=phrases(tmp_path, grey=[("a boat", [[1, 1, 50, 50]])])), soft)
