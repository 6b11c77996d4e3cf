"""Altered models differ where they should, and the audited model stays unchanged."""

from __future__ import annotations

import itertools
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
from saywhy.audits import sanity
from saywhy.audits.evidence import EvidenceSet, ImageEvidence
from saywhy.audits.sanity import (
    PARTS,
    SHIFT,
    Sanity,
    patch_relevance,
    randomisation_stages,
    shift_input,
    shuffle_weights,
)
from saywhy.captioners import Captioner
from saywhy.explain import passes
from saywhy.explain.methods import METHODS

STAGES = ["decoder", "¼ encoder", "½ encoder", "¾ encoder", "whole encoder"]
NAMES = ("soft-attention", "ada-lstm", "mh-fc")
run = Sanity().run


def with_distinct_values(captioner: Captioner) -> Captioner:
    """A copy in which no two values of a tensor are equal, so that every shuffle changes it."""
    copy = deepcopy(captioner)
    random = torch.Generator().manual_seed(0)
    for values in (*copy.parameters(), *copy.buffers()):
        if values.is_floating_point():
            values.data.add_(0.01 * torch.rand(values.shape, generator=random))
    return copy


def changed_tensors(before: Captioner, after: Captioner) -> set[str]:
    old, new = before.state_dict(), after.state_dict()
    assert old.keys() == new.keys()
    return {name for name in old if not old[name].equal(new[name])}


def logits(captioner: Captioner) -> torch.Tensor:
    with torch.no_grad():
        return captioner(captioner.encode(tiny.pixels(3)), tiny.captions(3, words=len(audit_data.WORDS))[:, :-1])[0]


@pytest.mark.parametrize("name", NAMES)
def test_a_shuffled_copy_computes_other_logits_and_the_model_stays_unchanged(name):
    captioner = audit_data.captioner(name)
    before, expected = deepcopy(captioner), logits(captioner)
    for stage, first in randomisation_stages(captioner).items():
        assert (logits(shuffle_weights(captioner, first)) - expected).abs().max() > 0.1, stage
    assert changed_tensors(before, captioner) == set()
    assert logits(captioner).equal(expected)


def test_stages_go_from_the_decoder_to_the_whole_encoder():
    assert list(randomisation_stages(audit_data.captioner())) == STAGES
    assert PARTS == ("¼", "½", "¾", "whole")


@pytest.mark.parametrize("name", NAMES)
def test_each_stage_shuffles_the_decoder_and_the_last_blocks_of_the_encoder(name):
    captioner = with_distinct_values(audit_data.captioner(name))
    blocks = captioner.encoder.blocks()
    tensors = {name for name, values in captioner.state_dict().items() if values.numel() > 1}
    decoder = {tensor for tensor in tensors if not tensor.startswith("encoder.")}
    assert decoder
    for part, (stage, first) in enumerate(randomisation_stages(captioner).items()):
        last = tuple(f"encoder.body.{block}." for block in blocks[len(blocks) - round(len(blocks) * part / 4) :])
        encoder = {tensor for tensor in tensors if tensor.startswith(last)}
        assert changed_tensors(captioner, shuffle_weights(captioner, first)) == decoder | encoder, stage
    assert encoder | decoder == tensors


def test_the_last_stage_shuffles_every_trained_tensor_of_a_transformer_encoder():
    torch.manual_seed(0)
    captioner = audit_data.captioner()
    captioner.encoder = encoders.build("timm:test_vit", weights=None, size=64)
    captioner = with_distinct_values(captioner)
    last = randomisation_stages(captioner)["whole encoder"]
    trained = {name for name, values in captioner.named_parameters() if values.numel() > 1}
    assert sorted(trained - changed_tensors(captioner, shuffle_weights(captioner, last))) == []


def test_shuffled_tensors_have_the_same_values():
    captioner = audit_data.captioner()
    copy = shuffle_weights(captioner, 0)
    for name, values in captioner.state_dict().items():
        assert copy.state_dict()[name].flatten().sort().values.equal(values.flatten().sort().values), name


def test_shuffling_is_deterministic():
    captioner = audit_data.captioner()
    first, second = (shuffle_weights(captioner, randomisation_stages(captioner)["½ encoder"]) for _ in range(2))
    assert changed_tensors(first, second) == set()


@pytest.mark.parametrize("name", NAMES)
def test_a_captioner_with_shifted_input_computes_the_same_logits(name):
    for dtype, tolerance in ((torch.float32, 1e-3), (torch.float64, 1e-9)):
        captioner = audit_data.captioner(name).to(dtype)
        copy = shift_input(captioner)
        torch.testing.assert_close(logits(copy), logits(captioner), rtol=0, atol=tolerance)
    pixels = tiny.pixels(2)
    difference = copy.encoder.normalise(pixels) - captioner.encoder.normalise(pixels)
    torch.testing.assert_close(difference, torch.full_like(difference, SHIFT))
    assert type(captioner.encoder) is not type(copy.encoder)


@pytest.fixture
def body(soft, monkeypatch):
    monkeypatch.setattr(sanity, "IMAGES", 1)
    return run(soft.context, soft)


def test_a_constant_shift_changes_gradient_times_input_and_randomisation_changes_all(body, soft):
    assert [stage["down_to"] for stage in body["randomised"]] == STAGES
    assert body["altered"] == {"images": 1, "words": len(soft.load(soft.images[0]).objects)}
    for method in ("attention", "gradcam", "guided-backprop", "guided-gradcam"):  # no factor is the input
        assert body["constant_shift"][method]["value"] == pytest.approx(1, abs=1e-3)
    assert body["constant_shift"]["gradient-input"]["value"] < 0.99
    for stage in body["randomised"]:
        assert max(abs(estimate["value"]) for estimate in stage["methods"].values()) < 1
    assert len(body["checks"]) == len(METHODS) - 1


def test_similarities_of_words_and_methods_equal_slow_rank_correlations(body, soft):
    words, methods = [], []
    for image in soft.images:
        strength = np.abs(patch_relevance(soft.load(image))).tolist()  # (J, M, P)
        for i in range(len(strength)):
            methods.append(reference.rank_correlation(strength[i][0], strength[i][1]))
            for j in range(i + 1, len(strength)):
                words.append(reference.rank_correlation(strength[i][0], strength[j][0]))
    assert body["two_words"]["lrp"]["value"] == pytest.approx(np.nanmean(words), abs=1e-6)
    positive = []
    for image in soft.images:
        parts = np.maximum(patch_relevance(soft.load(image)), 0).tolist()
        pairs = itertools.combinations(parts, 2)
        positive += [reference.rank_correlation(one[0], other[0]) for one, other in pairs]
    assert body["two_words_positive"]["lrp"]["value"] == pytest.approx(np.nanmean(positive), abs=1e-6)
    assert body["agreement"]["lrp"]["gradcam"] == pytest.approx(np.nanmean(methods), abs=1e-5)
    assert body["agreement"]["gradcam"]["lrp"] == body["agreement"]["lrp"]["gradcam"]
    assert {body["agreement"][method][method] for method in METHODS} == {1.0}


def test_the_relevance_of_a_patch_is_its_sum(soft):
    caption = soft.load(soft.images[0])
    expected = reference.patch_sums(caption.maps["lrp"][1].astype(float).tolist(), 8)
    np.testing.assert_allclose(patch_relevance(caption)[1, 0], expected, rtol=1e-4, atol=1e-7)


class BlankGradCAM(EvidenceSet):
    """Evidence in which all maps of Grad-CAM are zero, as they are if every weighted sum is negative."""

    def load(self, image) -> ImageEvidence:
        caption = super().load(image)
        return replace(caption, maps=caption.maps | {"gradcam": np.zeros_like(caption.maps["gradcam"])})


def test_a_method_with_blank_maps_has_no_agreement_and_no_warning(soft):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        similarities = sanity._trained_similarities(BlankGradCAM(soft.context))
    assert similarities["agreement"]["gradcam"]["lrp"] is None
    json.dumps(similarities, allow_nan=False)


def test_results_do_not_depend_on_the_batch_size(soft, tmp_path, monkeypatch):
    monkeypatch.setattr(sanity, "IMAGES", 2)
    single, batched = (run(replace(soft.context, cache=tmp_path / str(size), batch_size=size), soft) for size in (1, 2))
    for key in ("constant_shift", "translated"):
        for method in METHODS:
            assert single[key][method]["value"] == pytest.approx(batched[key][method]["value"], abs=5e-3)


def test_altered_models_need_not_pass_the_conservation_check(soft, tmp_path, monkeypatch):
    monkeypatch.setattr(sanity, "IMAGES", 1)
    monkeypatch.setattr(passes, "TOLERANCE", -1.0)  # no model passes
    body = run(replace(soft.context, cache=tmp_path), soft)
    assert body["randomised"][0]["methods"]["lrp"]["value"] is not None
