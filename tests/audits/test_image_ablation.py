"""Image ablation, compared with masking, captioning and teacher forcing image by image."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import audit_data
from reference import audits as reference
from saywhy.audits import image_ablation
from saywhy.audits.context import AuditContext
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.image_ablation import FRACTIONS, RANKINGS, ImageAblation, patch_relevance
from saywhy.audits.statistics import random_for
from saywhy.data.datasets import CaptionedImage
from saywhy.data.images import open_image
from saywhy.data.preprocess import Preprocessing
from saywhy.data.tokenizer import START, UNK
from saywhy.explain.methods import METHODS
from saywhy.explain.occlusion import MEAN

run = ImageAblation().run


def input_pixels(context: AuditContext, image: CaptionedImage) -> np.ndarray:
    return context.model.preprocessing(open_image(image.path))  # (3, S, S)


def tie_break(image: CaptionedImage, caption: ImageEvidence, j: int) -> list[float]:
    return random_for(image.name).random((len(caption.objects), 64))[j].tolist()


def probability(context: AuditContext, pixels: np.ndarray, prefix: list[str], word: str) -> float:
    """The probability of a word after a prefix, step by step."""
    captioner, ids = context.captioner, context.model.vocabulary.ids
    with torch.no_grad():
        state = captioner.start(captioner.encode(torch.as_tensor(pixels)[None]))
        for token in (START, *(ids[earlier] for earlier in prefix)):
            step = captioner.step(torch.tensor([token]), state)
            state = step.state
    words = [i for i in range(len(ids)) if i >= UNK + 1 or i == 2]
    odds = step.logits[0, words].double().exp()
    return float(odds[words.index(ids[word])] / odds.sum())


def masked(pixels: np.ndarray, selected: list[bool]) -> np.ndarray:
    return np.array(reference.mask_patches(pixels.tolist(), selected, 8, MEAN), np.uint8)


def test_every_word_equals_masking_and_captioning_one_image(evidence):
    context = evidence.context
    run(context, evidence)
    images = evidence.images_with_objects()
    for number, image in enumerate(images):
        caption, arrays = evidence.load(image), audit_data.cached(context, "image-ablation", image)
        j = len(caption.objects) - 1
        position, lemma = int(caption.objects[j]), str(caption.lemmas[j])
        prefix, word = caption.words[:position].tolist(), str(caption.words[position])
        pixels = input_pixels(context, image)
        assert arrays["before"][j] == pytest.approx(probability(context, pixels, prefix, word), rel=1e-3)
        for m, method in enumerate(RANKINGS[:-1]):
            if m % 2 == number % 2:  # half of the methods for each image
                continue
            sums = reference.patch_sums(caption.maps[method][j].astype(float).tolist(), 8)
            selected = reference.select_highest(sums, 20, tie_break(image, caption, j))
            ablated = masked(pixels, selected)
            assert arrays["after"][j, m] == pytest.approx(probability(context, ablated, prefix, word), abs=1e-4)
            words = caption_of_input(context, Image.fromarray(ablated.transpose(1, 2, 0)))
            named = [audit_data.OBJECTS.get(word) for word in words]
            assert arrays["no_longer_generated"][j, m] == (lemma not in named)
    assert len(images) == 3


def caption_of_input(context: AuditContext, image: Image.Image) -> tuple[str, ...]:
    """The caption of an image that has the size of the encoder's input, which a margin of 1 does not crop."""
    model = context.model
    default: Preprocessing = model.preprocessing
    model.preprocessing = replace(default, margin=1)
    try:
        return model.caption(image).words
    finally:
        model.preprocessing = default


def test_curves_equal_masking_image_by_image_and_end_at_the_full_and_the_masked_image(soft):
    context, body = soft.context, run(soft.context, soft)
    images = soft.images_with_objects()
    full, blank, middle = [], [], []
    for image in images:
        caption, arrays = soft.load(image), audit_data.cached(context, "image-ablation", image)
        j = int(random_for(image.name).integers(len(caption.objects)))
        position, word = int(caption.objects[j]), str(caption.words[caption.objects[j]])
        pixels, prefix = input_pixels(context, image), caption.words[:position].tolist()
        full.append(probability(context, pixels, prefix, word))
        masked_pixels = np.broadcast_to(np.array(MEAN, np.uint8)[:, None, None], pixels.shape).copy()
        blank.append(probability(context, masked_pixels, prefix, word))
        sums = reference.patch_sums(caption.maps["lrp"][j].astype(float).tolist(), 8)
        highest = reference.select_highest(sums, round(0.4 * len(sums)), tie_break(image, caption, j))
        column = FRACTIONS.index(0.4) - 1
        deleted, inserted = (
            probability(context, masked(pixels, selected), prefix, word)
            for selected in (highest, [not patch for patch in highest])
        )
        middle.append((deleted, inserted))
        np.testing.assert_allclose(arrays["deleted"][0, column], deleted, atol=1e-4)
        np.testing.assert_allclose(arrays["inserted"][0, column], inserted, atol=1e-4)
    assert abs(np.mean(full) - np.mean(blank)) > 0.01
    for name, (first, last) in {"deletion": (full, blank), "insertion": (blank, full)}.items():
        for method in RANKINGS:
            curve = body["curves"][name][method]["curve"]
            assert len(curve) == len(FRACTIONS)
            assert (curve[0], curve[-1]) == pytest.approx((np.mean(first), np.mean(last)), abs=1e-4)
            area = body["curves"][name][method]["area"]
            assert area["value"] == pytest.approx(reference.area(FRACTIONS, curve), abs=1e-6)
            assert area["n"] == len(images)
    lrp = [body["curves"][name]["lrp"]["curve"][FRACTIONS.index(0.4)] for name in ("deletion", "insertion")]
    np.testing.assert_allclose(lrp, np.mean(middle, axis=0), atol=1e-4)


def test_results_are_means_over_words(soft):
    body = run(soft.context, soft)
    arrays = [audit_data.cached(soft.context, "image-ablation", image) for image in soft.images_with_objects()]
    assert body["words"] == sum(len(caption.objects) for _, caption in soft) == 10
    for m, method in enumerate(RANKINGS):
        drops = np.concatenate([values["before"] - values["after"][:, m] for values in arrays])
        missing = np.concatenate([values["no_longer_generated"][:, m] for values in arrays])
        scores = body["methods"][method]
        assert scores["probability_drop"]["value"] == pytest.approx(drops.mean())
        assert scores["share_dropped"]["value"] == pytest.approx((drops > 0).mean())
        assert scores["no_longer_generated"]["value"] == pytest.approx(missing.mean())
    lrp, random = (body["methods"][method]["no_longer_generated"]["value"] for method in ("lrp", "random"))
    assert lrp > 0
    claims = {check["claim"]: check["difference"]["value"] for check in body["checks"]}
    assert claims["masking by lrp removes more words than masking by random"] == pytest.approx(lrp - random)


def test_masking_no_patch_changes_no_word(soft, tmp_path, monkeypatch):
    monkeypatch.setattr(image_ablation, "PATCHES", 0)
    body = run(replace(soft.context, cache=tmp_path), soft)
    for scores in body["methods"].values():
        assert scores["no_longer_generated"]["value"] == 0
        assert abs(scores["probability_drop"]["value"]) < 1e-5


class PlantedMaps(EvidenceSet):
    """Evidence whose maps are all high in one corner."""

    def load(self, image: CaptionedImage) -> ImageEvidence:
        caption = super().load(image)
        corner = np.zeros((64, 64), np.float32)
        corner[:32, 32:] = 1 + np.arange(32)
        return replace(caption, maps={method: np.stack([corner] * len(caption.objects)) for method in METHODS})


def test_the_patches_with_the_highest_relevance_are_masked_and_no_others(soft, tmp_path, monkeypatch):
    selections = []
    monkeypatch.setattr(image_ablation, "mask_patches", lambda pixels, s: selections.append(s.clone()) or pixels)
    monkeypatch.setattr(image_ablation, "PATCHES", 8)
    run(replace(soft.context, cache=tmp_path), PlantedMaps(soft.context))
    words = len(soft.load(soft.images[0]).objects)
    selected = torch.cat(selections)[: words * len(RANKINGS)].view(words, len(RANKINGS), 8, 8)[:, : len(METHODS)]
    expected = torch.zeros(8, 8, dtype=torch.bool)
    expected[:4, 6:] = True
    assert (selected == expected).all()


def test_random_ranking_depends_on_the_image_only(soft):
    caption = soft.load(soft.images[0])
    first, again, other = (patch_relevance(image, caption)[:, -1] for image in soft.images[:1] * 2 + soft.images[1:2])
    np.testing.assert_array_equal(first, again)
    assert (first != other).mean() > 0.9
    assert len(np.unique(first)) == first.size


def test_results_do_not_depend_on_the_batch_size(soft, tmp_path):
    single, batched = run(soft.context, soft), run(replace(soft.context, cache=tmp_path, batch_size=3), soft)
    assert single["words"] == batched["words"]
    for method, scores in single["methods"].items():
        for key in ("no_longer_generated", "probability_drop"):  # rounding may change the sign of a drop near 0
            assert batched["methods"][method][key]["value"] == pytest.approx(scores[key]["value"], abs=1e-5)
