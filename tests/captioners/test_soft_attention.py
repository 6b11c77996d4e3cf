"""Soft attention against the paper's equations in plain Python."""

from __future__ import annotations

import pytest
import torch

import tiny
from reference import soft_attention as reference
from saywhy.captioners.soft_attention import doubly_stochastic
from saywhy.errors import UserError


@pytest.mark.parametrize("tie", [False, True])
@pytest.mark.parametrize("score", ["mlp", "bilinear"])
def test_logits_alpha_and_beta_equal_the_reference(score, tie):
    sizes = {"embedding": 5, "hidden": 4, "attention": 3}
    captioner = tiny.sensitive_captioner(score=score, tie=tie, **sizes).double()
    features, words = tiny.features(2, dtype=torch.float64), tiny.captions(2, length=4)[:, :-1]
    plain = reference.SoftAttention({name: p.tolist() for name, p in captioner.state_dict().items()}, score)
    logits, attention = captioner(features, words)
    for row in range(2):
        steps = plain(features.vectors[row].tolist(), words[row].tolist())
        for t, (expected, alpha, beta) in enumerate(steps):
            torch.testing.assert_close(logits[row, t], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9)
            torch.testing.assert_close(
                attention.alpha[row, t], torch.tensor(alpha, dtype=torch.float64), rtol=0, atol=1e-9
            )
            assert attention.beta[row, t].item() == pytest.approx(beta, abs=1e-9)


def test_the_two_scores_attend_differently():
    features, words = tiny.features(2), tiny.captions(2)[:, :-1]
    mlp, bilinear = (tiny.sensitive_captioner(score=score)(features, words)[1] for score in ("mlp", "bilinear"))
    assert (mlp.alpha - bilinear.alpha).abs().max() > 0.01


def test_tied_output_layer_is_the_embedding():
    tied, untied = tiny.captioner(tie=True), tiny.captioner(tie=False)
    assert tied.L_o.weight is tied.E.weight
    assert untied.L_o.weight is not untied.E.weight


def test_unknown_score_lists_the_known_ones():
    with pytest.raises(UserError, match="bilinear"):
        tiny.captioner(score="billinear")


def test_unknown_setting_suggests_the_most_similar():
    with pytest.raises(UserError, match='"hidden"'):
        tiny.captioner(hiden=3)


def test_doubly_stochastic_penalty_equals_the_reference_and_ignores_padding():
    alpha = torch.rand(4, 5, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    mask = torch.arange(5)[None] < torch.tensor([5, 3, 1, 0])[:, None]
    penalty = doubly_stochastic(alpha, mask)
    assert penalty.tolist() == pytest.approx(reference.doubly_stochastic(alpha.tolist(), mask.tolist()), abs=1e-12)
    changed = torch.where(mask[..., None], alpha, torch.rand(1, dtype=torch.float64))
    torch.testing.assert_close(doubly_stochastic(changed, mask), penalty)
    assert penalty[3] == 6  # no words: one per feature


def test_attending_to_each_feature_once_has_no_penalty():
    assert doubly_stochastic(torch.eye(4)[None], torch.ones(1, 4, dtype=torch.bool)).item() == 0
