"""The audit specificity equals loops over words and pixels, and finds what planted maps show."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import audit_data
from reference import audits as reference
from saywhy.audits.context import NotApplicable
from saywhy.audits.evidence import EvidenceSet
from saywhy.audits.object_boxes import object_boxes
from saywhy.audits.specificity import MAPS, PAIR_SCORES, WORD_SCORES, Specificity, comparable
from saywhy.audits.statistics import random_for
from saywhy.data.phrases import Phrases
from saywhy.data.stop_words import STOP_WORDS
from saywhy.explain.composites import composite
from saywhy.explain.methods import METHODS
from saywhy.explain.occlusion import MEAN

IMAGE = "pink.png"  # its caption has a dog, a man and a puppy


@pytest.fixture
def boxed(soft, tmp_path):
    """Evidence of an image with boxes of a dog on the left, and of a man on the right."""
    phrases = [
        {"phrase": text, "type": "other", "boxes": [corners]}
        for text, corners in (("a dog", [20, 10, 40, 30]), ("a man", [50, 30, 75, 60]))
    ]
    entry = {"image": IMAGE, "width": audit_data.SIZE[0], "height": audit_data.SIZE[1], "phrases": phrases}
    (tmp_path / "boxes.jsonl").write_text(json.dumps(entry) + "\n")
    context = replace(soft.context, phrases=Phrases(tmp_path / "boxes.jsonl"), cache=tmp_path / "cache")
    return context, soft


def scores_of(context, evidence):
    """The scores of the words and of the pairs of the one image with boxes."""
    Specificity().run(context, evidence)
    image = next(image for image in evidence.images if image.name == IMAGE)
    arrays = audit_data.cached(context, "specificity", image)
    caption = evidence.load(image)
    return image, caption, object_boxes(context, image, caption), arrays


def inside(E, mask):
    return reference.shares(np.asarray(E, float).tolist(), mask.tolist())[0]


def test_shares_inside_and_margins_equal_loops(boxed):
    context, evidence = boxed
    image, caption, boxes, arrays = scores_of(context, evidence)
    words = caption.words.tolist()
    functions = [i for i, word in enumerate(words) if word in STOP_WORDS]
    drawn = functions[random_for(IMAGE).integers(len(functions))]
    explanation = context.model.explain(image.path, caption=" ".join(words), position=drawn + 1)
    masks = {j: box.mask for j, box in boxes.items()}
    pairs = [(i, j) for i in masks for j in masks if caption.lemmas[i] != caption.lemmas[j]]
    assert list(comparable(masks, caption.lemmas)) == pairs
    assert len(arrays["words"]) == len(masks) >= 2
    assert arrays["pairs"].shape == (len(pairs), len(MAPS), len(PAIR_SCORES))
    for m, method in enumerate(METHODS):
        maps = caption.maps[method]
        for row, (j, mask) in enumerate(masks.items()):
            scores = dict(zip(WORD_SCORES, arrays["words"][row, m], strict=True))
            own = inside(maps[j], mask)
            function_word = explanation.maps[method][0]
            if function_word.ndim == 2 and method not in ("gradcam", "attention"):
                expected = own - inside(function_word, mask)
                assert scores["over_function_word"] == pytest.approx(expected, abs=2e-3, nan_ok=True)
            assert scores["inside"] == pytest.approx(own, abs=1e-6, nan_ok=True)
            assert scores["highest"] == reference.points(maps[j].tolist(), mask.tolist())
        for row, (j, o) in enumerate(pairs):
            scores = dict(zip(PAIR_SCORES, arrays["pairs"][row, m], strict=True))
            margin = inside(maps[j], masks[j]) - inside(maps[o], masks[j])
            assert scores["margin"] == pytest.approx(margin, abs=1e-6, nan_ok=True)
            assert np.isnan(margin) or scores["right_order"] == (margin > 0)
            sums = [np.array(reference.patch_sums(maps[k].tolist(), 8)) for k in (j, o)]
            two = reference.rank_correlation(*np.abs(sums).tolist())
            assert scores["two_words"] == pytest.approx(two, abs=1e-5, nan_ok=True)


@torch.no_grad()
def test_drops_equal_those_of_images_masked_pixel_by_pixel(boxed):
    context, evidence = boxed
    _, caption, boxes, arrays = scores_of(context, evidence)
    (batch,) = context.batches([image for image in evidence.images if image.name == IMAGE])
    ids = [context.model.vocabulary.ids[word] for word in caption.words]
    S, m = context.input_size, METHODS.index("lrp")

    def probability(of: int, masked: int | None) -> float:
        pixels = batch.pixels.clone().float()
        if masked is not None:
            order = np.argsort(-caption.maps["lrp"][masked].ravel(), kind="stable")[: round(0.1 * S * S)]
            for pixel in order.tolist():
                pixels[0, :, pixel // S, pixel % S] = torch.tensor(MEAN, dtype=pixels.dtype)
        position = caption.objects[of]
        tokens = torch.tensor([[context.start_token, *ids[:position]]])
        logits, _ = context.captioner(context.captioner.encode(pixels), tokens)
        allowed = logits[0, -1].clone()
        allowed[[context.model.vocabulary.ids[marker] for marker in ("<pad>", "<start>", "<unk>")]] = -torch.inf
        return float(allowed.softmax(-1)[ids[position]])

    masks = {j: box.mask for j, box in boxes.items()}
    for row, j in enumerate(masks):
        drop = arrays["words"][row, m, WORD_SCORES.index("drop")]
        assert drop == pytest.approx(probability(j, None) - probability(j, j), abs=2e-3)
    for row, (j, o) in enumerate(comparable(masks, caption.lemmas)):
        spec = arrays["pairs"][row, m, PAIR_SCORES.index("spec")]
        assert spec == pytest.approx(probability(j, o) - probability(j, j), abs=2e-3)


def test_the_map_of_the_composite_is_among_the_maps_of_lrp(boxed):
    context, evidence = boxed
    body = Specificity().run(context, evidence)
    for key in ("inside", "margin"):
        values = [body["methods"][method][key]["value"] for method in ("lrp", "lrp-why")]
        assert values[0] == pytest.approx(values[1], abs=1e-3)
    assert context.composite == composite("by-stride")
    assert {"words", "pairs", "area", "methods", "checks"} == set(body)


def test_occlusion_is_compared_where_it_is_asked_for(boxed):
    context, evidence = boxed
    assert "occlusion" not in Specificity().run(context, evidence)["methods"]
    context = replace(context, occlusion=True, cache=context.cache.parent / "with-occlusion")
    image, caption, boxes, arrays = scores_of(context, evidence)
    explanation = context.model.explain(image.path, caption=" ".join(caption.words), methods=["occlusion"])
    assert arrays["words"].shape == (len(boxes), len(MAPS) + 1, len(WORD_SCORES))
    for row, (j, box) in enumerate(boxes.items()):
        expected = inside(explanation.maps["occlusion"][caption.objects[j]], box.mask)
        assert arrays["words"][row, -1, WORD_SCORES.index("inside")] == pytest.approx(expected, abs=1e-4, nan_ok=True)
    assert "occlusion" in Specificity().run(context, evidence)["methods"]


class PlantedMaps(EvidenceSet):
    """Evidence in which LRP's map of each word is its boxes, and that of attention the same for all words."""

    def load(self, image):
        caption = super().load(image)
        boxes = object_boxes(self.boxed, image, caption)
        own = [boxes[j].mask if j in boxes else np.ones((64, 64)) for j in range(len(caption.objects))]
        same = np.ones((len(caption.objects), 64, 64))
        return replace(caption, maps=dict.fromkeys(METHODS, same) | {"lrp": np.stack(own).astype(float)})


def test_maps_of_the_words_boxes_have_a_margin_and_equal_maps_have_none(boxed):
    context, _ = boxed
    evidence = PlantedMaps(replace(context, cache=context.cache.parent.parent / "planted"))
    evidence.boxed = context
    body = Specificity().run(context, evidence)
    planted, same = (body["methods"][method] for method in ("lrp", "attention"))
    assert (planted["inside"]["value"], planted["margin"]["value"], planted["right_order"]["value"]) == (1, 1, 1)
    assert (same["margin"]["value"], same["right_order"]["value"]) == (0, 0)
    holds = {check["claim"]: check["holds"] for check in body["checks"]}
    assert holds["lrp has a larger margin than attention"] is True


def test_without_boxes_it_is_not_applicable_and_without_pairs_it_has_scores_of_words(soft, tmp_path):
    with pytest.raises(NotApplicable, match="has no boxes"):
        Specificity().run(replace(soft.context, phrases=None), soft)
    entry = {"image": IMAGE, "width": 90, "height": 70}
    for text in ("a table", "a dog"):
        entry["phrases"] = [{"phrase": text, "type": "other", "boxes": [[20, 10, 40, 30]]}]
        (tmp_path / "boxes.jsonl").write_text(json.dumps(entry) + "\n")
        context = replace(soft.context, phrases=Phrases(tmp_path / "boxes.jsonl"), cache=tmp_path)
        if text == "a table":
            with pytest.raises(NotApplicable, match="no phrase with boxes names an object word"):
                Specificity().run(context, soft)
    body = Specificity().run(context, soft)
    assert (body["words"] > 0, body["pairs"]) == (True, 0)
    assert body["methods"]["lrp"]["inside"]["value"] is not None
    assert body["methods"]["lrp"]["margin"] == {"value": None, "low": None, "high": None, "n": 0}


def test_page_parts_are_made_of_the_results(boxed):
    context, evidence = boxed
    body, audit = Specificity().run(context, evidence), Specificity()
    assert [len(table.rows) for table in audit.tables(body)] == [len(MAPS)] * 2
    assert len(audit.summary(body).rows) == len(MAPS)
