"""MH-FC against the paper's equations, written out, and what its heads and its gate do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from reference import mh_fc as reference
from saywhy.captioners.mh_fc import MHFCState
from saywhy.data.vocabulary import START
from saywhy.encoders.features import Features
from saywhy.errors import UserError
from saywhy.explain.composites import Composite
from saywhy.explain.passes import Relevances
from tracing import asked, close, inputs, relevances

DOUBLE = torch.float64


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_logits_alpha_and_beta_equal_those_of_the_slow_twin(kind, heads):
    captioner = tiny.opinionated("mh-fc", embedding=5, hidden=6, heads=heads).double()
    features, words = tiny.features(2, dtype=DOUBLE, kind=kind), tiny.captions(2, length=4)[:, :-1]
    twin = reference.MHFC({name: p.tolist() for name, p in captioner.state_dict().items()}, heads)
    logits, attention = captioner(features, words)
    assert attention.alpha.shape == (2, 5, heads, 6)
    for row in range(2):
        there = torch.ones(6, dtype=torch.bool) if features.mask is None else features.mask[row]
        steps = twin(features.vectors[row, there].tolist(), words[row].tolist())
        expected, alpha, beta = (torch.tensor(each, dtype=DOUBLE) for each in zip(*steps, strict=True))
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(attention.alpha[row][..., there], alpha, rtol=0, atol=1e-10)
        assert (attention.alpha[row][..., ~there] == 0).all()
        torch.testing.assert_close(attention.beta[row], beta, rtol=0, atol=1e-10)


def test_no_two_heads_look_at_the_same_places():
    alpha = tiny.opinionated("mh-fc")(tiny.features(3), tiny.captions(3)[:, :-1])[1].alpha  # (B, T, heads, L)
    between = torch.cdist(alpha.flatten(0, 1), alpha.flatten(0, 1), p=torch.inf)  # (B · T, heads, heads)
    assert between.shape[-1] == 8
    assert (between.amax(dim=0) > 0.01)[~torch.eye(8, dtype=torch.bool)].all()


def test_a_closed_gate_lets_nothing_be_seen_and_an_open_one_lets_in_all():
    captioner = tiny.opinionated("mh-fc").double()
    assert captioner.gate_admits == "image"
    state, other = (captioner.start(tiny.features(2, seed=seed, dtype=DOUBLE)) for seed in (0, 1))
    elsewhere = replace(state, K=other.K, V=other.V)  # other places of the same mean
    betas, differences = [], []
    for bias in (-1000.0, 0.0, 1000.0):
        captioner.W_mh.bias.data.fill_(bias)
        here, there = (captioner.step(torch.full((2,), START), each) for each in (state, elsewhere))
        betas.append(here.attention.beta)
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
        tiny.captioner("mh-fc", no_image="learnt")


@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_hearing_one_head_changes_nothing_that_is_said_or_looked_at(kind):
    captioner = tiny.opinionated("mh-fc")
    features, words = tiny.features(3, kind=kind), tiny.captions(3)[:, :-1]
    assert captioner.heads == 8
    with torch.no_grad():
        logits, attention = captioner(features, words)
        first = captioner.step(words[:, 0], captioner.start(features))
        for head in range(captioner.heads):
            with captioner.isolate_head(head):
                heard, looked = captioner(features, words)
                step = captioner.step(words[:, 0], captioner.start(features))
            assert heard.equal(logits)
            assert looked.alpha.equal(attention.alpha)
            assert looked.beta.equal(attention.beta)
            assert step.logits.equal(first.logits)
    assert captioner.isolated_head is None


def test_gradients_of_a_head_reach_its_own_part_and_no_word_before():
    captioner = tiny.opinionated("mh-fc", embedding=5, hidden=6, heads=3).double()
    vectors = tiny.features(2, dtype=DOUBLE).vectors.requires_grad_()
    parts = [captioner.W_k.weight, captioner.W_v.weight, captioner.E.weight, captioner.lstm.weight_ih, vectors]
    for head in range(3):
        with captioner.isolate_head(head):
            logits, _ = captioner(Features(vectors, (2, 3)), tiny.captions(2)[:, :-1])
        keys, values, words, state, image = torch.autograd.grad(
            logits[..., 5].sum(), parts, allow_unused=True, materialize_grads=True
        )
        own = torch.arange(6) // 2 == head
        for grad in (keys, values):
            assert (grad[own].abs().amax(dim=1) > 0).all()
            assert not grad[~own].any()
        assert not words.any()
        assert not state.any()
        assert image.abs().max() > 0


def test_a_head_that_is_not_there_cannot_be_heard():
    for name, head in (("mh-fc", 8), ("mh-fc", -1), ("soft-attention", 1)):
        captioner = tiny.captioner(name)
        with pytest.raises(ValueError, match=f"no head {head}"), captioner.isolate_head(head):
            pass
        assert captioner.isolated_head is None


def test_all_heads_are_heard_again_after_an_error():
    captioner = tiny.captioner("mh-fc")
    with pytest.raises(KeyboardInterrupt), captioner.isolate_head(2):
        raise KeyboardInterrupt
    assert captioner.isolated_head is None


def test_relevance_through_one_head_is_what_the_equations_give_by_hand():
    """Without ε: R_k = a_k · Wᵀ (1[I_k > 0] ⊙ W_vᵀ (α_k (W_oᵀ (gate ⊙ fc_word))⁽ⁱ⁾)), weights and gates constant."""
    captioner = tiny.opinionated("mh-fc", embedding=5, hidden=6, heads=3).double()
    vectors, boxes = inputs(captioner, "regions")
    said, word, place = tiny.captions(3)[:, :-1], 7, 3
    weights = {name: values.detach() for name, values in captioner.named_parameters()}
    with torch.no_grad():
        features = captioner.encode(vectors, boxes)
        _, attention = captioner(features, said)
        state = captioner.start(features)
        for t in range(place + 1):
            state = captioner.step(said[:, t], state).state
        gate = torch.sigmoid(state.h @ weights["W_mh.weight"].T + weights["W_mh.bias"])  # (B, d_h)
        before = gate * weights["fc.weight"][word] @ weights["W_o.weight"]  # (B, d_h), of v
        seen = vectors @ weights["W.weight"].T + weights["W.bias"] > 0  # (B, L, d_h)
    for head in range(3):
        with captioner.isolate_head(head):
            found = relevances(captioner, vectors, boxes, asked(said, [place], [word]), Composite(epsilon=0))[1]
        for row in range(3):
            for k in range(6):
                alpha = attention.alpha[row, place, head, k]
                of_value = torch.zeros(6, dtype=DOUBLE)
                of_value[2 * head : 2 * head + 2] = alpha * before[row, 2 * head : 2 * head + 2]
                of_I = seen[row, k] * (of_value @ weights["W_v.weight"])
                R = vectors[row, k] @ (of_I @ weights["W.weight"])
                assert found.places[0, row, k] == pytest.approx(float(R), abs=1e-9)
        assert not found.said.any()


@pytest.mark.parametrize("rules", [None, Composite(epsilon=0.3, relative=True)])
def test_relevance_of_all_heads_and_of_the_state_is_the_whole(rules, monkeypatch):
    captioner = tiny.opinionated("mh-fc").double()
    pixels, question = tiny.pixels(2), asked(tiny.captions(2)[:, :-1])
    _, whole = relevances(captioner, pixels, None, question, rules)
    by_head = []
    for head in range(captioner.heads):
        with captioner.isolate_head(head):
            by_head.append(relevances(captioner, pixels, None, question, rules)[1])
    assert all(each.places.abs().max() > 1e-6 for each in by_head)
    start = captioner.start

    def blind(features: Features) -> MHFCState:
        """Only what the state takes in can be followed back."""
        state = start(features)
        return replace(state, V=replace(state.V, vectors=state.V.vectors.detach()))

    monkeypatch.setattr(captioner, "start", blind)
    monkeypatch.setattr(Relevances, "check_conservation", lambda *_: None)
    _, through_state = relevances(captioner, pixels, None, question, rules)
    close(sum(each.places for each in by_head) + through_state.places, whole.places)
    close(sum(each.pixels for each in by_head) + through_state.pixels, whole.pixels)
    close(through_state.said, whole.said)
