"""Ada-LSTM against the paper's equations, written out, and what its sentinel does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import tiny
from reference import ada_lstm as reference
from saywhy.captioners import Captioner, Step
from saywhy.captioners.ada_lstm import AdaLSTMState
from saywhy.data.vocabulary import START
from saywhy.errors import UserError

DOUBLE = torch.float64


def raise_sentinel(captioner: Captioner, by: float) -> None:
    """Push what is inside the tanh of b the way w_a points, which raises b and leaves a alone."""
    captioner.W_s.register_forward_hook(lambda layer, inputs, out: out + by * captioner.w_a.weight[0].sign())


def first_word(captioner: Captioner, state: AdaLSTMState) -> Step[AdaLSTMState]:
    return captioner.step(torch.full((len(state.h),), START), state)


@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_logits_alpha_and_beta_equal_those_of_the_slow_twin(kind):
    captioner = tiny.opinionated("ada-lstm", embedding=5, hidden=4, attention=3).double()
    features, words = tiny.features(2, dtype=DOUBLE, kind=kind), tiny.captions(2, length=4)[:, :-1]
    twin = reference.AdaLSTM({name: p.tolist() for name, p in captioner.state_dict().items()})
    logits, attention = captioner(features, words)
    for row in range(2):
        there = torch.ones(6, dtype=torch.bool) if features.mask is None else features.mask[row]
        steps = twin(features.vectors[row, there].tolist(), words[row].tolist())
        expected, alpha, beta = (torch.tensor(each, dtype=DOUBLE) for each in zip(*steps, strict=True))
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(attention.alpha[row][:, there], alpha, rtol=0, atol=1e-10)
        assert (attention.alpha[row][:, ~there] == 0).all()
        torch.testing.assert_close(attention.beta[row], beta, rtol=0, atol=1e-10)


def test_beta_is_the_share_of_the_words_and_rises_with_the_energy_of_the_sentinel():
    features, words = tiny.features(3, kind="regions"), tiny.captions(3)[:, :1]
    betas = []
    for by in (-1.0, 0.0, 1.0):
        captioner = tiny.opinionated("ada-lstm")
        raise_sentinel(captioner, by)
        betas.append(captioner(features, words)[1].beta)
    assert captioner.gate_admits == "words"
    assert (betas[0] < betas[1]).all()
    assert (betas[1] < betas[2]).all()


def test_a_sentinel_that_outdoes_every_place_leaves_nothing_to_see():
    captioner = tiny.opinionated("ada-lstm").double()
    state, other = (captioner.start(tiny.features(2, seed=seed, dtype=DOUBLE)) for seed in (0, 1))
    elsewhere = replace(state, places=other.places, keys=other.keys)  # other places of the same mean
    seeing = [first_word(captioner, each).logits for each in (state, elsewhere)]
    assert (seeing[0] - seeing[1]).abs().max() > 0.1

    captioner.w_a.weight.data *= 1000
    raise_sentinel(captioner, 100.0)
    blind = [first_word(captioner, each) for each in (state, elsewhere)]
    assert (blind[0].attention.beta == 1).all()
    assert torch.equal(blind[0].logits, blind[1].logits)
    assert torch.equal(blind[0].state.h2, blind[1].state.h2)


def test_a_sentinel_that_every_place_outdoes_is_not_heard():
    captioner = tiny.opinionated("ada-lstm").double()
    captioner.w_a.weight.data *= 1000
    raise_sentinel(captioner, -100.0)
    read: list[Tensor] = []
    captioner.language_lstm.register_forward_pre_hook(lambda cell, inputs: read.append(inputs[0]))
    state = captioner.start(tiny.features(2, dtype=DOUBLE, kind="regions"))
    step = first_word(captioner, state)
    assert (step.attention.beta < 1e-300).all()
    seen = (step.attention.alpha[..., None] * state.places.vectors).sum(dim=1)
    torch.testing.assert_close(read[0].chunk(2, dim=-1)[0], seen)  # [c; h]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_beta_is_the_last_entry_of_the_longer_softmax_however_large_the_energies(scale):
    captioner = tiny.opinionated("ada-lstm")
    captioner.w_a.weight.data *= scale
    energies: list[Tensor] = []
    captioner.w_a.register_forward_hook(lambda layer, inputs, out: energies.append(out.squeeze(-1)))
    state = captioner.start(tiny.features(4, kind="regions"))
    attention = first_word(captioner, state).attention
    a, b = energies
    longer = torch.cat([state.places.hide(a), b[:, None]], dim=1).softmax(dim=-1)  # (B, L + 1)
    torch.testing.assert_close(attention.beta, longer[:, -1])
    torch.testing.assert_close((1 - attention.beta)[:, None] * attention.alpha, longer[:, :-1])


@pytest.mark.parametrize("wrong", [{"embedding": 0}, {"hidden": 0}, {"attention": -1}, {"dropout": 1.0}])
def test_sizes_that_cannot_be_are_refused_in_one_line(wrong):
    with pytest.raises(UserError, match=f"ada-lstm: .*{next(iter(wrong))}"):
        tiny.captioner("ada-lstm", **wrong)


def test_what_every_captioner_refuses_is_refused():
    with pytest.raises(UserError, match='"learned"'):
        tiny.captioner("ada-lstm", no_image="learnt")
