"""Altered models are altered where they should be, and the model on trial stays as it was."""

from __future__ import annotations

import json
import warnings
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch

import audit_data
import tiny
from reference import audits as reference
from saywhy import encoders
from saywhy.audits import sanity as audit_of_sanity
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.sanity import PARTS, SHIFT, randomised, shifted, shuffled, strengths
from saywhy.audits.sanity import sanity as audit
from saywhy.captioners import Captioner
from saywhy.explain import passes
from saywhy.explain.methods import METHODS

STAGES = ["decoder", "¼ encoder", "½ encoder", "¾ encoder", "whole encoder"]
NAMES = ("soft-attention", "ada-lstm", "mh-fc")


def tensors(captioner: Captioner) -> dict[str, torch.Tensor]:
    return {name: values.clone() for name, values in captioner.state_dict().items()}


def varied(captioner: Captioner) -> Captioner:
    """The same with no two numbers of a tensor alike, so that another order shows."""
    copy = deepcopy(captioner)
    random = torch.Generator().manual_seed(0)
    for values in (*copy.parameters(), *copy.buffers()):
        if values.is_floating_point():
            values.data.add_(0.01 * torch.rand(values.shape, generator=random))
    return copy


def changed(before: Captioner, after: Captioner) -> set[str]:
    old, new = before.state_dict(), after.state_dict()
    assert old.keys() == new.keys()
    return {name for name in old if not old[name].equal(new[name])}


def logits(captioner: Captioner) -> torch.Tensor:
    with torch.no_grad():
        return captioner(captioner.encode(tiny.pixels(3)), tiny.captions(3, words=len(audit_data.WORDS))[:, :-1])[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_shuffled_copy_leaves_the_model_as_it_was_and_says_otherwise(name):
    captioner = audit_data.captioner(name)
    before, said = tensors(captioner), logits(captioner)
    for stage, first in randomised(captioner).items():
        assert (logits(shuffled(captioner, first)) - said).abs().max() > 0.1, stage
    assert all(captioner.state_dict()[each].equal(values) for each, values in before.items())
    assert logits(captioner).equal(said)


def test_stages_go_from_the_decoder_to_the_whole_encoder():
    made = randomised(audit_data.captioner())
    assert list(made) == STAGES
    assert PARTS == ("¼", "½", "¾", "whole")


@pytest.mark.parametrize("name", NAMES)
def test_each_stage_changes_the_decoder_and_the_last_blocks_of_the_encoder(name):
    captioner = varied(audit_data.captioner(name))
    blocks = captioner.encoder.blocks()
    every = {name for name, values in captioner.state_dict().items() if values.numel() > 1}
    decoder = {each for each in every if not each.startswith("encoder.")}
    assert decoder
    for part, (stage, first) in enumerate(randomised(captioner).items()):
        last = blocks[len(blocks) - round(len(blocks) * part / 4) :]
        of_encoder = {each for each in every if any(each.startswith(f"encoder.body.{block}.") for block in last)}
        assert changed(captioner, shuffled(captioner, first)) == decoder | of_encoder, stage
    assert of_encoder | decoder == every


def test_whatever_an_encoder_learnt_is_forgotten_when_the_whole_of_it_is_randomised():
    torch.manual_seed(0)
    captioner = audit_data.captioner()
    captioner.encoder = encoders.build("timm:test_vit", weights=None, size=64)
    captioner = varied(captioner)
    altered = changed(captioner, shuffled(captioner, randomised(captioner)["whole encoder"]))
    learnt = {name for name, values in captioner.named_parameters() if values.numel() > 1}
    assert sorted(learnt - altered) == []


def test_another_order_has_the_same_numbers():
    captioner = audit_data.captioner()
    copy = shuffled(captioner, 0)
    for name, values in captioner.state_dict().items():
        assert copy.state_dict()[name].flatten().sort().values.equal(values.flatten().sort().values), name


def test_randomised_models_are_the_same_each_time():
    captioner = audit_data.captioner()
    one, other = (shuffled(captioner, randomised(captioner)["½ encoder"]) for _ in range(2))
    assert changed(one, other) == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_shifted_captioner_says_the_same_of_shifted_input(name):
    for dtype, within in ((torch.float32, 1e-3), (torch.float64, 1e-9)):
        captioner = audit_data.captioner(name).to(dtype)
        copy = shifted(captioner)
        torch.testing.assert_close(logits(copy), logits(captioner), rtol=0, atol=within)
    pixels = tiny.pixels(2)
    given = copy.encoder.normalise(pixels) - captioner.encoder.normalise(pixels)
    torch.testing.assert_close(given, torch.full_like(given, SHIFT))
    assert type(captioner.encoder) is not type(copy.encoder)


@pytest.fixture
def told(soft, monkeypatch):
    monkeypatch.setattr(audit_of_sanity, "IMAGES", 1)
    return audit(soft.bench, soft)


def test_what_a_shift_cannot_change_stays_and_what_was_learnt_is_forgotten(told, soft):
    assert [each["down_to"] for each in told["randomised"]] == STAGES
    assert told["altered"] == {"images": 1, "words": len(soft.of(soft.images[0]).objects)}
    for method in ("attention", "gradcam", "guided-backprop", "guided-gradcam"):  # no input among their factors
        assert told["constant_shift"][method]["value"] == pytest.approx(1, abs=1e-3)
    assert told["constant_shift"]["gradient-input"]["value"] < 0.99
    for stage in told["randomised"]:
        assert max(abs(each["value"]) for each in stage["methods"].values()) < 1
    assert len(told["checks"]) == len(METHODS) - 1


def test_words_and_methods_are_held_against_one_another_by_ranks(told, soft):
    pairs, between = [], []
    for image in soft.images:
        values = strengths(soft.of(image))  # (J, M, P)
        for i in range(len(values)):
            between.append(reference.rank_correlation(values[i, 0].tolist(), values[i, 1].tolist()))
            for j in range(i + 1, len(values)):
                pairs.append(reference.rank_correlation(values[i, 0].tolist(), values[j, 0].tolist()))
    assert told["two_words"]["lrp"]["value"] == pytest.approx(np.nanmean(pairs), abs=1e-6)
    assert told["agreement"]["lrp"]["gradcam"] == pytest.approx(np.nanmean(between), abs=1e-5)
    assert told["agreement"]["gradcam"]["lrp"] == told["agreement"]["lrp"]["gradcam"]
    assert {told["agreement"][method][method] for method in METHODS} == {1.0}


def test_the_strength_of_a_patch_is_the_size_of_its_sum(soft):
    case = soft.of(soft.images[0])
    slow = [abs(each) for each in reference.patch_sums(case.maps["lrp"][1].astype(float).tolist(), 8)]
    np.testing.assert_allclose(strengths(case)[1, 0], slow, rtol=1e-4, atol=1e-7)


class Blank(EvidenceSet):
    """EvidenceSet in which a method says nothing at all, as Grad-CAM may where every weighted sum is negative."""

    def of(self, image) -> ImageEvidence:
        case = super().of(image)
        return replace(case, maps=case.maps | {"gradcam": np.zeros_like(case.maps["gradcam"])})


def test_a_method_that_says_nothing_agrees_with_none_and_the_numbers_are_still_json(soft):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = audit_of_sanity._untouched(Blank(soft.bench))
    assert found["agreement"]["gradcam"]["lrp"] is None
    json.dumps(found, allow_nan=False)


def test_the_batch_changes_no_number(soft, told, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_of_sanity, "IMAGES", 2)
    alone, together = (audit(replace(soft.bench, cache=tmp_path / str(n), batch=n), soft) for n in (1, 2))
    for table in ("constant_shift", "moved"):
        for method in METHODS:
            assert alone[table][method]["value"] == pytest.approx(together[table][method]["value"], abs=5e-3)


def test_books_of_altered_models_need_not_balance(soft, tmp_path, monkeypatch):
    monkeypatch.setattr(audit_of_sanity, "IMAGES", 1)
    monkeypatch.setattr(passes, "TOLERANCE", -1.0)  # no books balance
    told = audit(replace(soft.bench, cache=tmp_path), soft)
    assert told["randomised"][0]["methods"]["lrp"]["value"] is not None
