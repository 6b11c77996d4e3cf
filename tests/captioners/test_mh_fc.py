"""MH-FC against the paper's equations, written out, and what its heads and its gate do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from reference import mh_fc as reference
from saywhy.data.vocabulary import START
from saywhy.errors import UserError

DOUBLE = torch.float64


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_logits_alpha_and_beta_equal_those_of_the_slow_twin(kind, heads):
    captioner = tiny.opinionated("mh-fc", embedding=5, hidden=6, heads=heads).double()
    annotations, words = tiny.annotations(2, dtype=DOUBLE, kind=kind), tiny.captions(2, length=4)[:, :-1]
    twin = reference.MHFC({name: p.tolist() for name, p in captioner.state_dict().items()}, heads)
    logits, glance = captioner(annotations, words)
    assert glance.alpha.shape == (2, 5, heads, 6)
    for row in range(2):
        there = torch.ones(6, dtype=torch.bool) if annotations.mask is None else annotations.mask[row]
        steps = twin(annotations.vectors[row, there].tolist(), words[row].tolist())
        expected, alpha, beta = (torch.tensor(each, dtype=DOUBLE) for each in zip(*steps, strict=True))
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(glance.alpha[row][..., there], alpha, rtol=0, atol=1e-10)
        assert (glance.alpha[row][..., ~there] == 0).all()
        torch.testing.assert_close(glance.beta[row], beta, rtol=0, atol=1e-10)


def test_no_two_heads_look_at_the_same_places():
    alpha = tiny.opinionated("mh-fc")(tiny.annotations(3), tiny.captions(3)[:, :-1])[1].alpha  # (B, T, heads, L)
    between = torch.cdist(alpha.flatten(0, 1), alpha.flatten(0, 1), p=torch.inf)  # (B · T, heads, heads)
    assert between.shape[-1] == 8
    assert (between.amax(dim=0) > 0.01)[~torch.eye(8, dtype=torch.bool)].all()


def test_a_closed_gate_lets_nothing_be_seen_and_an_open_one_lets_in_all():
    captioner = tiny.opinionated("mh-fc").double()
    assert captioner.beta_admits == "picture"
    state, other = (captioner.start(tiny.annotations(2, seed=seed, dtype=DOUBLE)) for seed in (0, 1))
    elsewhere = replace(state, K=other.K, V=other.V)  # other places of the same mean
    betas, differences = [], []
    for bias in (-1000.0, 0.0, 1000.0):
        captioner.W_mh.bias.data.fill_(bias)
        here, there = (captioner.step(torch.full((2,), START), each) for each in (state, elsewhere))
        betas.append(here.glance.beta)
        differences.append((here.logits - there.logits).abs().max())
    assert (betas[0] == 0).all()
    assert ((betas[1] > 0) & (betas[1] < 1)).all()
    assert (betas[2] == 1).all()
    assert differences[0] == 0
    assert 0.1 < differences[1] < differences[2]


@pytest.mark.parametrize("wrong", [{"embedding": 0}, {"hidden": 0}, {"heads": 0}, {"dropout": 1.0}])
def test_sizes_that_cannot_be_are_refused_in_one_line(wrong):
    with pytest.raises(UserError, match=f"mh-fc: .*{next(iter(wrong))}"):
        tiny.captioner("mh-fc", **wrong)


def test_heads_that_do_not_divide_the_hidden_width_are_refused_in_one_line():
    with pytest.raises(UserError, match="3 does not divide 16"):
        tiny.captioner("mh-fc", heads=3)


def test_what_every_captioner_refuses_is_refused():
    with pytest.raises(UserError, match='"learned"'):
        tiny.captioner("mh-fc", no_picture="learnt")
