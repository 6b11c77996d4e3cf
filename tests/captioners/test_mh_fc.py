"""MH-FC against the paper's equations in plain Python, its heads and its gate."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tiny
from reference import mh_fc as reference
from saywhy.captioners.mh_fc import MHFCState
from saywhy.data.tokenizer import START
from saywhy.encoders.base import Features
from saywhy.errors import UserError
from saywhy.explain.composites import Composite
from saywhy.explain.passes import Relevance
from tracing import assert_close, inputs, make_targets, relevance_of

DOUBLE = torch.float64


@pytest.mark.parametrize("heads", [1, 2, 6])
@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_logits_alpha_and_beta_equal_the_reference(kind, heads):
    captioner = tiny.sensitive_captioner("mh-fc", embedding=5, hidden=6, heads=heads).double()
    features, words = tiny.features(2, dtype=DOUBLE, kind=kind), tiny.captions(2, length=4)[:, :-1]
    plain = reference.MHFC({name: p.tolist() for name, p in captioner.state_dict().items()}, heads)
    logits, attention = captioner(features, words)
    assert attention.alpha.shape == (2, 5, heads, 6)
    for row in range(2):
        mask = torch.ones(6, dtype=torch.bool) if features.mask is None else features.mask[row]
        steps = plain(features.vectors[row, mask].tolist(), words[row].tolist())
        expected, alpha, beta = (torch.tensor(values, dtype=DOUBLE) for values in zip(*steps, strict=True))
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(attention.alpha[row][..., mask], alpha, rtol=0, atol=1e-10)
        assert (attention.alpha[row][..., ~mask] == 0).all()
        torch.testing.assert_close(attention.beta[row], beta, rtol=0, atol=1e-10)


def test_all_heads_attend_differently():
    alpha = tiny.sensitive_captioner("mh-fc")(tiny.features(3), tiny.captions(3)[:, :-1])[1].alpha  # (B, T, heads, L)
    distances = torch.cdist(alpha.flatten(0, 1), alpha.flatten(0, 1), p=torch.inf)  # (B · T, heads, heads)
    assert distances.shape[-1] == 8
    assert (distances.amax(dim=0) > 0.01)[~torch.eye(8, dtype=torch.bool)].all()


def test_closed_gate_hides_the_image_and_open_gate_admits_it():
    captioner = tiny.sensitive_captioner("mh-fc").double()
    assert captioner.beta_admits == "image"
    state, other = (captioner.start(tiny.features(2, seed=seed, dtype=DOUBLE)) for seed in (0, 1))
    changed = replace(state, K=other.K, V=other.V)  # other features, the same mean
    betas, differences = [], []
    for bias in (-1000.0, 0.0, 1000.0):
        captioner.W_mh.bias.data.fill_(bias)
        first, second = (captioner.step(torch.full((2,), START), before) for before in (state, changed))
        betas.append(first.attention.beta)
        differences.append((first.logits - second.logits).abs().max())
    assert (betas[0] == 0).all()
    assert ((betas[1] > 0) & (betas[1] < 1)).all()
    assert (betas[2] == 1).all()
    assert differences[0] == 0
    assert 0.1 < differences[1] < differences[2]


@pytest.mark.parametrize("invalid", [{"embedding": 0}, {"hidden": 0}, {"heads": 0}, {"dropout": 1.0}])
def test_invalid_settings_are_refused_in_one_line(invalid):
    with pytest.raises(UserError, match=f"mh-fc: .*{next(iter(invalid))}"):
        tiny.captioner("mh-fc", **invalid)


def test_heads_that_do_not_divide_the_hidden_width_are_refused_in_one_line():
    with pytest.raises(UserError, match="3 does not divide 16"):
        tiny.captioner("mh-fc", heads=3)


def test_invalid_no_image_is_refused():
    with pytest.raises(UserError, match='"learned"'):
        tiny.captioner("mh-fc", no_image="learnt")


@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_isolating_a_head_does_not_change_logits_and_attention(kind):
    captioner = tiny.sensitive_captioner("mh-fc")
    features, words = tiny.features(3, kind=kind), tiny.captions(3)[:, :-1]
    assert captioner.heads == 8
    with torch.no_grad():
        logits, attention = captioner(features, words)
        first = captioner.step(words[:, 0], captioner.start(features))
        for head in range(captioner.heads):
            with captioner.isolate_head(head):
                isolated, isolated_attention = captioner(features, words)
                step = captioner.step(words[:, 0], captioner.start(features))
            assert isolated.equal(logits)
            assert isolated_attention.alpha.equal(attention.alpha)
            assert isolated_attention.beta.equal(attention.beta)
            assert step.logits.equal(first.logits)
    assert captioner.isolated_head is None


def test_gradients_of_an_isolated_head_reach_its_weights_and_no_earlier_word():
    captioner = tiny.sensitive_captioner("mh-fc", embedding=5, hidden=6, heads=3).double()
    vectors = tiny.features(2, dtype=DOUBLE).vectors.requires_grad_()
    tensors = [captioner.W_k.weight, captioner.W_v.weight, captioner.E.weight, captioner.lstm.weight_ih, vectors]
    for head in range(3):
        with captioner.isolate_head(head):
            logits, _ = captioner(Features(vectors, (2, 3)), tiny.captions(2)[:, :-1])
        keys, values, words, state, image = torch.autograd.grad(
            logits[..., 5].sum(), tensors, allow_unused=True, materialize_grads=True
        )
        in_head = torch.arange(6) // 2 == head
        for grad in (keys, values):
            assert (grad[in_head].abs().amax(dim=1) > 0).all()
            assert not grad[~in_head].any()
        assert not words.any()
        assert not state.any()
        assert image.abs().max() > 0


def test_head_that_does_not_exist_is_refused():
    for name, head in (("mh-fc", 8), ("mh-fc", -1), ("soft-attention", 1)):
        captioner = tiny.captioner(name)
        with pytest.raises(ValueError, match=f"no head {head}"), captioner.isolate_head(head):
            pass
        assert captioner.isolated_head is None


def test_isolation_ends_after_an_error():
    captioner = tiny.captioner("mh-fc")
    with pytest.raises(KeyboardInterrupt), captioner.isolate_head(2):
        raise KeyboardInterrupt
    assert captioner.isolated_head is None


def test_relevance_through_one_head_equals_the_equations():
    """Without ε: R_k = a_k · Wᵀ (1[I_k > 0] ⊙ W_vᵀ (α_k (W_oᵀ (gate ⊙ fc_word))⁽ⁱ⁾)), weights and gates constant."""
    captioner = tiny.sensitive_captioner("mh-fc", embedding=5, hidden=6, heads=3).double()
    vectors, boxes = inputs(captioner, "regions")
    tokens, word, position = tiny.captions(3)[:, :-1], 7, 3
    weights = {name: values.detach() for name, values in captioner.named_parameters()}
    with torch.no_grad():
        features = captioner.encode(vectors, boxes)
        _, attention = captioner(features, tokens)
        state = captioner.start(features)
        for t in range(position + 1):
            state = captioner.step(tokens[:, t], state).state
        gate = torch.sigmoid(state.h @ weights["W_mh.weight"].T + weights["W_mh.bias"])  # (B, d_h)
        of_v = gate * weights["fc.weight"][word] @ weights["W_o.weight"]  # (B, d_h)
        active = vectors @ weights["W.weight"].T + weights["W.bias"] > 0  # (B, L, d_h)
    for head in range(3):
        with captioner.isolate_head(head):
            targets = make_targets(tokens, [position], [word])
            relevance = relevance_of(captioner, vectors, boxes, targets, Composite(epsilon=0))[1]
        for row in range(3):
            for k in range(6):
                alpha = attention.alpha[row, position, head, k]
                of_value = torch.zeros(6, dtype=DOUBLE)
                of_value[2 * head : 2 * head + 2] = alpha * of_v[row, 2 * head : 2 * head + 2]
                of_I = active[row, k] * (of_value @ weights["W_v.weight"])
                R = vectors[row, k] @ (of_I @ weights["W.weight"])
                assert relevance.features[0, row, k] == pytest.approx(float(R), abs=1e-9)
        assert not relevance.tokens.any()


@pytest.mark.parametrize("composite", [None, Composite(epsilon=0.3, relative_epsilon=True)])
def test_relevance_of_all_heads_and_of_the_state_sums_to_the_total(composite, monkeypatch):
    captioner = tiny.sensitive_captioner("mh-fc").double()
    pixels, targets = tiny.pixels(2), make_targets(tiny.captions(2)[:, :-1])
    _, total = relevance_of(captioner, pixels, None, targets, composite)
    by_head = []
    for head in range(captioner.heads):
        with captioner.isolate_head(head):
            by_head.append(relevance_of(captioner, pixels, None, targets, composite)[1])
    assert all(relevance.features.abs().max() > 1e-6 for relevance in by_head)
    start = captioner.start

    def without_heads(features: Features) -> MHFCState:
        """Relevance flows back through the state only."""
        state = start(features)
        return replace(state, V=replace(state.V, vectors=state.V.vectors.detach()))

    monkeypatch.setattr(captioner, "start", without_heads)
    monkeypatch.setattr(Relevance, "check_conservation", lambda *_: None)
    _, through_state = relevance_of(captioner, pixels, None, targets, composite)
    assert_close(sum(relevance.features for relevance in by_head) + through_state.features, total.features)
    assert_close(sum(relevance.pixels for relevance in by_head) + through_state.pixels, total.pixels)
    assert_close(through_state.tokens, total.tokens)
