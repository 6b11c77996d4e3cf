"""CaptionedImage ablation against a twin that masks, captions and forces its teacher by hand."""

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
from saywhy.audits.image_ablation import FRACTIONS, RANKED, random_of, relevances
from saywhy.audits.image_ablation import image_ablation as audit
from saywhy.audits.patches import MEAN
from saywhy.data.datasets import CaptionedImage
from saywhy.data.images import open_image
from saywhy.data.vocabulary import START, UNK
from saywhy.explain.methods import METHODS


def square(bench: AuditContext, image: CaptionedImage) -> np.ndarray:
    return bench.model.preprocessing(open_image(image.path))  # (3, S, S)


def chance(image: CaptionedImage, case: ImageEvidence, j: int) -> list[float]:
    """What decides between equal patches of a word."""
    return random_of(image).random((len(case.objects), 64))[j].tolist()


def probability(bench: AuditContext, pixels: np.ndarray, before: list[str], word: str) -> float:
    """p of a word after others, step by step."""
    captioner, numbers = bench.captioner, bench.model.vocabulary.numbers
    with torch.no_grad():
        state = captioner.start(captioner.encode(torch.as_tensor(pixels)[None]))
        for said in (START, *(numbers[each] for each in before)):
            step = captioner.step(torch.tensor([said]), state)
            state = step.state
    speakable = [i for i in range(len(numbers)) if i >= UNK + 1 or i == 2]
    odds = step.logits[0, speakable].double().exp()
    return float(odds[speakable.index(numbers[word])] / odds.sum())


def test_what_becomes_of_a_word_is_what_becomes_of_it_by_hand(cases):
    bench = cases.bench
    audit(bench, cases)
    looked_at = 0
    for image in cases.with_objects():
        case, found = cases.of(image), audit_data.kept(bench, "image-ablation", image)
        j = len(case.objects) - 1
        place, lemma = int(case.objects[j]), str(case.lemmas[j])
        pixels = square(bench, image)
        assert found["before"][j] == pytest.approx(
            probability(bench, pixels, case.words[:place].tolist(), str(case.words[place])), rel=1e-3
        )
        for m, method in enumerate(RANKED[:-1]):
            if m % 2 == looked_at % 2:  # half of the methods of each image, in turns
                continue
            sums = reference.patch_sums(case.maps[method][j].astype(float).tolist(), 8)
            chosen = reference.highest(sums, 20, chance(image, case, j))
            without = np.array(reference.masked(pixels.tolist(), chosen, 8, MEAN), np.uint8)
            p = probability(bench, without, case.words[:place].tolist(), str(case.words[place]))
            assert found["after"][j, m] == pytest.approx(p, abs=1e-4)
            # captioned as an image of its own: one that preprocessing leaves as it is
            plain = replace(bench.model.preprocessing, margin=1)
            said = _captioned(bench, Image.fromarray(without.transpose(1, 2, 0)), plain)
            assert found["vanished"][j, m] == (lemma not in [audit_data.OBJECTS.get(word) for word in said])
        looked_at += 1
    assert looked_at == 3


def _captioned(bench: AuditContext, image: Image.Image, preprocessing) -> tuple[str, ...]:
    usual, bench.model.preprocessing = bench.model.preprocessing, preprocessing
    try:
        return bench.model.caption(image).words
    finally:
        bench.model.preprocessing = usual


def test_curves_begin_and_end_where_they_must_and_are_those_by_hand_between(soft):
    bench, told = soft.bench, audit(soft.bench, soft)
    images = soft.with_objects()
    before, blind, half = [], [], []
    for image in images:
        case, found = soft.of(image), audit_data.kept(bench, "image-ablation", image)
        j = int(random_of(image).integers(len(case.objects)))
        place, word = int(case.objects[j]), str(case.words[case.objects[j]])
        pixels, said = square(bench, image), case.words[:place].tolist()
        before.append(probability(bench, pixels, said, word))
        all_mask = np.broadcast_to(np.array(MEAN, np.uint8)[:, None, None], pixels.shape).copy()
        blind.append(probability(bench, all_mask, said, word))
        order = reference.patch_sums(case.maps["lrp"][j].astype(float).tolist(), 8)
        first = reference.highest(order, round(0.4 * len(order)), chance(image, case, j))
        at = FRACTIONS.index(0.4) - 1
        gone, shown = (
            probability(bench, np.array(reference.masked(pixels.tolist(), chosen, 8, MEAN), np.uint8), said, word)
            for chosen in (first, [not each for each in first])
        )
        half.append((gone, shown))
        np.testing.assert_allclose(found["deleted"][0, at], gone, atol=1e-4)
        np.testing.assert_allclose(found["inserted"][0, at], shown, atol=1e-4)
    assert abs(np.mean(before) - np.mean(blind)) > 0.01
    for name, (first, last) in {"deletion": (before, blind), "insertion": (blind, before)}.items():
        for method in RANKED:
            curve = told["curves"][name][method]["curve"]
            assert len(curve) == len(FRACTIONS)
            assert (curve[0], curve[-1]) == pytest.approx((np.mean(first), np.mean(last)), abs=1e-4)
            area = told["curves"][name][method]["area"]
            assert area["value"] == pytest.approx(reference.area(FRACTIONS, curve), abs=1e-6)
            assert area["n"] == len(images)
    lrp = [told["curves"][name]["lrp"]["curve"][FRACTIONS.index(0.4)] for name in ("deletion", "insertion")]
    np.testing.assert_allclose(lrp, np.mean(half, axis=0), atol=1e-4)


def test_what_is_told_is_the_mean_over_words(soft):
    told = audit(soft.bench, soft)
    found = [audit_data.kept(soft.bench, "image-ablation", image) for image in soft.with_objects()]
    assert told["words"] == sum(len(case.objects) for _, case in soft) == 10
    for m, method in enumerate(RANKED):
        drops = [b - a for each in found for b, a in zip(each["before"], each["after"][:, m], strict=True)]
        gone = [float(value) for each in found for value in each["vanished"][:, m]]
        row = told["methods"][method]
        assert row["drop"]["value"] == pytest.approx(np.mean(drops))
        assert row["dropped"]["value"] == pytest.approx(np.mean([drop > 0 for drop in drops]))
        assert row["vanished"]["value"] == pytest.approx(np.mean(gone))
    assert told["methods"]["lrp"]["vanished"]["value"] > 0
    claims = {each["claim"]: each["difference"]["value"] for each in told["checks"]}
    by_hand = told["methods"]["lrp"]["vanished"]["value"] - told["methods"]["random"]["vanished"]["value"]
    assert claims["lrp makes more words vanish than random"] == pytest.approx(by_hand)


def test_masking_nothing_drops_nothing(soft, tmp_path, monkeypatch):
    monkeypatch.setattr(image_ablation, "PATCHES", 0)
    told = audit(replace(soft.bench, cache=tmp_path), soft)
    for row in told["methods"].values():
        assert row["vanished"]["value"] == 0
        assert abs(row["drop"]["value"]) < 1e-5


class Planted(EvidenceSet):
    """EvidenceSet whose maps all point at one corner of the square."""

    def of(self, image: CaptionedImage) -> ImageEvidence:
        case = super().of(image)
        corner = np.zeros((64, 64), np.float32)
        corner[:32, 32:] = 1 + np.arange(32)
        return replace(case, maps={method: np.stack([corner] * len(case.objects)) for method in METHODS})


def test_the_patches_that_a_planted_map_points_at_are_masked_and_no_others(soft, tmp_path, monkeypatch):
    seen = []
    bench = replace(soft.bench, cache=tmp_path)
    monkeypatch.setattr(image_ablation, "masked", lambda pixels, chosen: seen.append(chosen.clone()) or pixels)
    monkeypatch.setattr(image_ablation, "PATCHES", 8)
    cases = Planted(soft.bench)
    audit(bench, cases)
    words = len(soft.of(soft.images[0]).objects)
    chosen = torch.cat(seen)[: words * len(RANKED)].view(words, len(RANKED), 8, 8)[:, : len(METHODS)]
    wanted = torch.zeros(8, 8, dtype=torch.bool)
    wanted[:4, 6:] = True
    assert (chosen == wanted).all()


def test_chance_is_another_for_other_images_and_the_same_whenever_it_is_asked(soft):
    case = soft.of(soft.images[0])
    one, again, other = (relevances(image, case)[:, -1] for image in soft.images[:1] * 2 + soft.images[1:2])
    np.testing.assert_array_equal(one, again)
    assert (one != other).mean() > 0.9
    assert len(np.unique(one)) == one.size


def test_the_batch_changes_no_number(soft, tmp_path):
    alone, together = audit(soft.bench, soft), audit(replace(soft.bench, cache=tmp_path, batch=3), soft)
    assert alone["words"] == together["words"]
    for method, row in alone["methods"].items():
        for what, each in row.items():
            if what != "dropped":  # of drops about 0, the sign may turn by rounding
                assert together["methods"][method][what]["value"] == pytest.approx(each["value"], abs=1e-5)
