"""Ada-LSTM against the paper's equations in plain Python, and its sentinel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import tiny
from reference import ada_lstm as reference
from saywhy.captioners import Captioner, Step
from saywhy.captioners.ada_lstm import AdaLSTMState
from saywhy.data.tokenizer import START
from saywhy.errors import UserError

DOUBLE = torch.float64


def raise_sentinel(captioner: Captioner, amount: float) -> None:
    """Shift the argument of the tanh of b in the direction of w_a: raises b, does not change a."""
    captioner.W_s.register_forward_hook(lambda layer, inputs, out: out + amount * captioner.w_a.weight[0].sign())


def first_word(captioner: Captioner, state: AdaLSTMState) -> Step[AdaLSTMState]:
    return captioner.step(torch.full((len(state.h),), START), state)


@pytest.mark.parametrize("kind", ["grid", "regions"])
def test_logits_alpha_and_beta_equal_the_reference(kind):
    captioner = tiny.sensitive_captioner("ada-lstm", embedding=5, hidden=4, attention=3).double()
    features, words = tiny.features(2, dtype=DOUBLE, kind=kind), tiny.captions(2, length=4)[:, :-1]
    plain = reference.AdaLSTM({name: p.tolist() for name, p in captioner.state_dict().items()})
    logits, attention = captioner(features, words)
    for row in range(2):
        mask = torch.ones(6, dtype=torch.bool) if features.mask is None else features.mask[row]
        steps = plain(features.vectors[row, mask].tolist(), words[row].tolist())
        expected, alpha, beta = (torch.tensor(values, dtype=DOUBLE) for values in zip(*steps, strict=True))
        torch.testing.assert_close(logits[row], expected, rtol=0, atol=1e-10)
        torch.testing.assert_close(attention.alpha[row][:, mask], alpha, rtol=0, atol=1e-10)
        assert (attention.alpha[row][:, ~mask] == 0).all()
        torch.testing.assert_close(attention.beta[row], beta, rtol=0, atol=1e-10)


def test_beta_is_the_share_of_the_words_and_grows_with_the_energy_of_the_sentinel():
    features, words = tiny.features(3, kind="regions"), tiny.captions(3)[:, :1]
    betas = []
    for amount in (-1.0, 0.0, 1.0):
        captioner = tiny.sensitive_captioner("ada-lstm")
        raise_sentinel(captioner, amount)
        betas.append(captioner(features, words)[1].beta)
    assert captioner.beta_admits == "words"
    assert (betas[0] < betas[1]).all()
    assert (betas[1] < betas[2]).all()


def test_sentinel_with_the_largest_energy_hides_the_image():
    captioner = tiny.sensitive_captioner("ada-lstm").double()
    state, other = (captioner.start(tiny.features(2, seed=seed, dtype=DOUBLE)) for seed in (0, 1))
    changed = replace(state, image=other.image, keys=other.keys)  # other features, the same mean
    logits = [first_word(captioner, before).logits for before in (state, changed)]
    assert (logits[0] - logits[1]).abs().max() > 0.1

    captioner.w_a.weight.data *= 1000
    raise_sentinel(captioner, 100.0)
    hidden = [first_word(captioner, before) for before in (state, changed)]
    assert (hidden[0].attention.beta == 1).all()
    assert torch.equal(hidden[0].logits, hidden[1].logits)
    assert torch.equal(hidden[0].state.h2, hidden[1].state.h2)


def test_sentinel_with_the_smallest_energy_is_not_in_the_context():
    captioner = tiny.sensitive_captioner("ada-lstm").double()
    captioner.w_a.weight.data *= 1000
    raise_sentinel(captioner, -100.0)
    language_inputs: list[Tensor] = []
    captioner.language_lstm.register_forward_pre_hook(lambda cell, inputs: language_inputs.append(inputs[0]))
    state = captioner.start(tiny.features(2, dtype=DOUBLE, kind="regions"))
    step = first_word(captioner, state)
    assert (step.attention.beta < 1e-300).all()
    context = (step.attention.alpha[..., None] * state.image.vectors).sum(dim=1)
    torch.testing.assert_close(language_inputs[0].chunk(2, dim=-1)[0], context)  # [c; h]


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_beta_is_the_last_entry_of_the_extended_softmax_also_for_large_energies(scale):
    captioner = tiny.sensitive_captioner("ada-lstm")
    captioner.w_a.weight.data *= scale
    energies: list[Tensor] = []
    captioner.w_a.register_forward_hook(lambda layer, inputs, out: energies.append(out.squeeze(-1)))
    state = captioner.start(tiny.features(4, kind="regions"))
    attention = first_word(captioner, state).attention
    a, b = energies
    extended = torch.cat([state.image.hide(a), b[:, None]], dim=1).softmax(dim=-1)  # (B, L + 1)
    torch.testing.assert_close(attention.beta, extended[:, -1])
    torch.testing.assert_close((1 - attention.beta)[:, None] * attention.alpha, extended[:, :-1])


@pytest.mark.parametrize("invalid", [{"embedding": 0}, {"hidden": 0}, {"attention": -1}, {"dropout": 1.0}])
def test_invalid_settings_are_refused_in_one_line(invalid):
    with pytest.raises(UserError, match=f"ada-lstm: .*{next(iter(invalid))}"):
        tiny.captioner("ada-lstm", **invalid)


def test_invalid_no_image_is_refused():
    with pytest.raises(UserError, match='"learned"'):
        tiny.captioner("ada-lstm", no_image="learnt")
