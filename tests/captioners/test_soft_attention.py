"""Soft attention against the paper's equations, written out."""

from __future__ import annotations

import pytest
import torch

import tiny
from reference import soft_attention as reference
from saywhy.captioners.soft_attention import doubly_stochastic
from saywhy.errors import UserError


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("score", ["mlp", "bilinear"])
def test_logits_alpha_and_beta_equal_those_of_the_slow_twin(score, tie):
    sizes = {"embedding": 5, "hidden": 4, "attention": 3}
    captioner = tiny.opinionated(score=score, tie=tie, **sizes).double()
    features, words = tiny.features(2, dtype=torch.float64), tiny.captions(2, length=4)[:, :-1]
    twin = reference.SoftAttention({name: p.tolist() for name, p in captioner.state_dict().items()}, score)
    logits, attention = captioner(features, words)
    for row in range(2):
        steps = twin(features.vectors[row].tolist(), words[row].tolist())
        for t, (expected, alpha, beta) in enumerate(steps):
            torch.testing.assert_close(logits[row, t], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)
            torch.testing.assert_close(
                attention.alpha[row, t], torch.tensor(alpha, dtype=torch.float64), rtol=0, atol=1e-9
            )
            assert attention.beta[row, t].item() == pytest.approx(beta, abs=1e-9)


def test_the_two_scores_look_elsewhere():
    features, words = tiny.features(2), tiny.captions(2)[:, :-1]
    mlp, bilinear = (tiny.opinionated(score=score)(features, words)[1] for score in ("mlp", "bilinear"))
    assert (mlp.alpha - bilinear.alpha).abs().max() > 0.01


def test_tied_the_output_layer_is_the_embedding():
    tied, apart = tiny.captioner(tie=True), tiny.captioner(tie=False)
    assert tied.L_o.weight is tied.E.weight
    assert apart.L_o.weight is not apart.E.weight


def test_an_unknown_score_is_answered_with_the_known_ones():
    with pytest.raises(UserError, match="bilinear"):
        tiny.captioner(score="billinear")


def test_an_unknown_setting_is_answered_with_the_nearest():
    with pytest.raises(UserError, match='"hidden"'):
        tiny.captioner(hiden=3)


def test_the_doubly_stochastic_penalty_equals_its_slow_twin_and_overlooks_padding():
    alpha = torch.rand(4, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    spoken = torch.arange(5)[None] < torch.tensor([5, 3, 1, 0])[:, None]
    found = doubly_stochastic(alpha, spoken)
    assert found.tolist() == pytest.approx(reference.doubly_stochastic(alpha.tolist(), spoken.tolist()), abs=1e-12)
    elsewhere = torch.where(spoken[..., None], alpha, torch.rand(1, dtype=torch.float64))
    torch.testing.assert_close(doubly_stochastic(elsewhere, spoken), found)
    assert found[3] == 6  # nothing was looked at: one for each place


def test_looking_once_at_every_place_costs_nothing():
    assert doubly_stochastic(torch.eye(4)[None], torch.ones(1, 4, dtype=torch.bool)).item() == 0
